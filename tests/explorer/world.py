"""What can happen to one key, and what must hold whatever happens.

A `Scenario` bounds a world: its machines, deliveries, faults and time. `World` numbers everything that can be in it
(records, writes, processes), so that a state is a short tuple of small numbers, and lists the steps that lead out of a
state. Each step is judged as it is taken; `Broken` says which promise it broke.

Requests are separate from their effect: a process waits with a request until the request takes place, or the client
gives it up while it is still under way, so that it takes place at any later time, or never. A process that is told
nothing may try the same request again, go on without an answer, or die. To lose an answer is therefore to give up a
request that takes place next.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from idempotency import decision, stores
from idempotency.observation import BUSY, DEAD_LETTERED, NEW, RETRIED, TAKEOVER
from idempotency.observation import QUARANTINED as ALREADY_QUARANTINED
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from tests.explorer.process import (
    ADVANCE,
    AWAKE,
    BEATS,
    CONFLICT,
    END,
    GAVE_UP,
    INSERT,
    NOT_SENT,
    POISONED,
    RAISES,
    READ,
    RETURNS,
    SEND,
    SENT,
    SLEEP,
    SWAP,
    WORK,
    WRITES,
    Kind,
    Message,
    Process,
    Processes,
    Request,
    timeless,
)

# A delivery, as its transport sees it: how often it was tried, or one of these.
UNSENT: Final = -3
DEAD: Final = -2
"""Its tries are used up: Lambda's OnFailure destination or the queue's dead-letter queue has it."""
ACKNOWLEDGED: Final = -1

RAN: Final = frozenset({NEW, RETRIED, TAKEOVER})

ABSENT: Final = 0
"""The number of no record."""
NO_ANSWER: Final = -1


@dataclass(frozen=True)
class Scenario:
    """The bounds of one world."""

    name: str
    about: str
    kinds: tuple[Kind, ...]
    messages: tuple[Message, ...] = (Message("D1"), Message("D2"))
    """What may be delivered; those with equal fingerprints are deliveries of one event."""
    tries: int = 2
    """How often the transport tries a delivery."""
    at_once: int = 2
    """How many processes may run at the same time."""
    times_ms: tuple[int, ...] = (0, 3_500, 7_000, 10_500)
    """When something may happen, by the store's clock."""
    leap: int | None = None
    """The place in ``times_ms`` before which so much time passes that nothing outlasts it: no process, no request."""
    faults: int = 2
    """How many crashes, losses, late answers, late writes and abandoned processes, in all."""
    copies: bool = False
    """Whether a transport may take a process for dead that runs on, and deliver again at once."""
    beats: int = 0
    releases: int = 0
    """How often an operator may give the key back, and redrive its dead letter."""
    handler: tuple[str, ...] = (RETURNS, RAISES)
    conflicts: bool = False
    """Whether an effect's own condition may refuse a commit; each time is a fault."""
    skew_is_bounded: bool = True
    """Whether the machines' clocks differ by no more than their policies allow."""

    def __post_init__(self) -> None:
        offsets = [0, *(kind.clock_ms for kind in self.kinds)]
        allowed_ms = min(int(kind.policy.clock_skew * 1000) for kind in self.kinds)
        if self.skew_is_bounded != (max(offsets) - min(offsets) <= allowed_ms):
            raise ValueError(f"{self.name}: the clocks contradict skew_is_bounded")
        if len({kind.policy.max_attempts for kind in self.kinds}) > 1:
            raise ValueError(f"{self.name}: one key has one max_attempts")


type State = tuple[int, ...]
"""Environment, record, requests under way, then one number for each running process, in the order in which they began."""

type Label = tuple[str, int, int]
"""A step: what happened, to which process (its place in the state) or request, and a detail."""


class Broken(Exception):  # noqa: N818 - a promise is broken; the explorer is not
    """A promise of the protocol was broken by a step."""

    def __init__(self, promise: str, label: Label) -> None:
        super().__init__(promise)
        self.promise = promise
        self.label = label


class Environment(NamedTuple):
    """Everything but the record, the requests under way and the processes."""

    tick: int
    faults: int
    beats: int
    releases: int
    lettered: int
    """The events that are in a dead-letter queue: a bit for each."""
    committed: int
    """The events that have taken effect: a bit for each."""
    window_ms: int
    """Until when the last effect forbids another; -1 where nothing does."""
    deliveries: tuple[int, ...]


class Write(NamedTuple):
    """A request that changes the record if its condition holds."""

    kind: str
    seen: int
    record: int
    effects: bool


class Landing(NamedTuple):
    """What a write does to a record."""

    after: int
    written: bool
    promise: str | None = None
    """What it breaks, whenever and wherever it is written."""
    ousted: str | None = None
    """The owner from whom it takes the key."""
    over_ms: int = -1
    """The end of the window that it ends."""
    not_before_ms: int = -1
    committed: int = 0
    """The event whose effect it commits, as a bit."""
    window_ms: int = -1


class Node(NamedTuple):
    """A process, and what there is to know of it."""

    process: Process
    request: str
    write: int
    delivery: int
    owners: int
    """The owner tokens that it may still use or compare, as bits."""
    clock_ms: int
    deadline_ms: int | None
    back: int
    """While it waits for a heartbeat: the process that goes on afterwards."""
    acknowledges: bool
    promise: str | None


class Worker(NamedTuple):
    """One running process in a state."""

    node: int
    abandoned: bool = False
    """Its transport takes it for dead and does not listen to it any more."""
    resting: bool = False
    """Nothing happens to it before time passes."""
    held_ms: int = -1
    """Until when it knows itself to hold the key, by its own clock."""
    begins: bool = False
    """It has made its first request just now."""
    answer: int = NO_ANSWER
    """The answer that is on its way to it: a record's number."""


class World:
    """The steps and promises of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.outcomes: set[str] = set()
        """What became of deliveries, anywhere in this world."""
        prints = list(dict.fromkeys(message.fingerprint for message in scenario.messages))
        self._event_of = {fingerprint: 1 << index for index, fingerprint in enumerate(prints)}
        self._once = sum(
            self._event_of[fingerprint]
            for fingerprint in prints
            if all(message.sent_ms is not None for message in scenario.messages if message.fingerprint == fingerprint)
        )
        self._event = [self._event_of[message.fingerprint] for message in scenario.messages]
        self._max_attempts = scenario.kinds[0].policy.max_attempts
        self._latest_clock_ms = max(0, *(kind.clock_ms for kind in scenario.kinds))
        self._processes = Processes()
        self._records: list[Record | None] = [None]
        self._record_ids: dict[Record | None, int] = {None: ABSENT}
        self._writes: list[Write] = []
        self._write_ids: dict[Write, int] = {}
        self._write_owners: list[int] = []
        self._owner_bits: list[int] = [0]
        self._nodes: list[Node] = []
        self._started: dict[tuple[int, int, int, int], int] = {}
        self._told: dict[tuple[int, int, int | str], int] = {}
        self._futures: dict[tuple[object, ...], int] = {}
        self._workers: list[Worker] = []
        self._worker_ids: dict[Worker, int] = {}
        self._environments: list[Environment] = []
        self._environment_ids: dict[Environment, int] = {}
        self._networks: list[tuple[int, ...]] = []
        self._network_ids: dict[tuple[int, ...], int] = {}
        self._landings: dict[tuple[int, int], Landing] = {}
        self._applied: dict[tuple[int, int], tuple[int, bool]] = {}
        self._unsettled: dict[int, str | None] = {}

    def initial(self) -> State:
        """Return the state in which nothing has happened."""
        scenario = self.scenario
        environment = Environment(
            0,
            scenario.faults,
            scenario.beats,
            scenario.releases,
            0,
            0,
            -1,
            (UNSENT,) * len(scenario.messages),
        )
        return self._environment_id(environment), ABSENT, self._network_id(()), *()

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def steps(self, state: State) -> list[tuple[Label, State]]:
        """Return every step that leads out of ``state``, with where it leads.

        Raises:
            Broken: one of them breaks a promise.
        """
        workers = [self._workers[number] for number in state[3:]]
        environment = self._environments[state[0]]
        steps: list[tuple[Label, State]] = []
        # What concerns nobody else until time passes leads to the same in any order, so one process does it at a time,
        # before all else: the choices of a handler, the beginning of a delivery up to its first request, and the end
        # of one whose event has taken effect.
        for place, worker in enumerate(workers):
            if worker.resting:
                continue
            node = self._nodes[worker.node]
            if node.request == WORK:
                return self._handler_steps(state, place, worker)
            if worker.begins:
                self._process_steps(steps, state, environment, place, worker._replace(begins=False))
                stalled = self._with(state, place, worker._replace(begins=False, resting=True))
                steps.append((("stalls", place, 0), stalled))
                return steps
            if node.request == END and environment.committed & self._event[node.delivery]:
                self._process_steps(steps, state, environment, place, worker)
                return steps
        for place, worker in enumerate(workers):
            self._process_steps(steps, state, environment, place, worker)
        if len(workers) < self.scenario.at_once:
            self._deliveries(steps, state, environment, workers)
        self._late_writes(steps, state, environment, workers)
        self._time_and_people(steps, state, environment, workers)
        return steps

    def _handler_steps(self, state: State, place: int, worker: Worker) -> list[tuple[Label, State]]:
        environment = self._environments[state[0]]
        steps = []
        for choice, does in enumerate(self.scenario.handler):
            label = ("handler", place, choice)
            steps.append((label, self._told_state(state, place, worker, does, label)))
        node = self._nodes[worker.node]
        if environment.beats and node.process.claim is not None:
            label = ("handler", place, -1)
            beating = self._tell(worker.node, self._now_ms(environment) + node.clock_ms, BEATS, label)
            lease_ms = self._record(self._writes[self._nodes[beating].write].record).lease_ms
            if lease_ms is not None and lease_ms > worker.held_ms:
                number = self._environment_id(environment._replace(beats=environment.beats - 1))
                after = self._with(state, place, worker._replace(node=beating, begins=False))
                steps.append((label, (number, *after[1:])))
        works_on = self._with(state, place, worker._replace(resting=True, begins=False))
        steps.append((("handler works on", place, 0), works_on))
        return steps

    def _process_steps(
        self,
        steps: list[tuple[Label, State]],
        state: State,
        environment: Environment,
        place: int,
        worker: Worker,
    ) -> None:
        node = self._nodes[worker.node]
        request = node.request
        label: Label
        if worker.answer != NO_ANSWER:
            if not worker.resting:
                label = ("late answer", place, worker.answer)
                told = worker._replace(answer=NO_ANSWER)
                steps.append((label, self._told_state(state, place, told, worker.answer, label)))
        elif request in WRITES and not worker.resting:
            label = ("takes place", place, node.write)
            landed, answer = self._land(state, node.write, environment, label)
            steps.append((label, self._told_state(landed, place, worker, answer, label)))
            if environment.faults:
                label = ("takes place, answer delayed", place, node.write)
                late = self._with(self._faulty(landed), place, worker._replace(answer=answer, resting=True))
                steps.append((label, late))
                under_way = self._faulty(self._under_way(state, node.write))
                steps.append((("is sent again", place, node.write), self._with(under_way, place, worker)))
                label = ("is given up", place, node.write)
                steps.append((label, self._told_state(under_way, place, worker, GAVE_UP, label)))
                if self.scenario.conflicts and self._writes[node.write].effects:
                    label = ("meets a conflict", place, node.write)
                    steps.append((label, self._told_state(self._faulty(state), place, worker, CONFLICT, label)))
        elif request == END:
            steps.append((("acknowledges", place, 0), self._acknowledged(state, environment, place, node, worker)))
        elif request == SEND:
            label = ("dead letter is sent", place, 0)
            lettered = self._lettered(state, environment, node)
            steps.append((label, self._told_state(lettered, place, worker, SENT, label)))
            if environment.faults:
                label = ("dead letter is sent, answer lost", place, 0)
                steps.append((label, self._told_state(self._faulty(lettered), place, worker, NOT_SENT, label)))
                label = ("dead letter is refused", place, 0)
                steps.append((label, self._told_state(self._faulty(state), place, worker, NOT_SENT, label)))
        elif request == READ:
            label = ("reads", place, state[1])
            steps.append((label, self._told_state(state, place, worker, state[1], label)))
        elif request == SLEEP and not worker.resting:
            label = ("wakes", place, 0)
            steps.append((label, self._told_state(state, place, worker, AWAKE, label)))
        if environment.faults:
            steps.append((("crashes", place, 0), self._crashed(self._faulty(state), place, node, worker)))
            if self.scenario.copies and not worker.abandoned and request != END:
                label = ("is taken for dead", place, 0)
                gone = self._with(self._faulty(state), place, worker._replace(abandoned=True))
                steps.append((label, self._undelivered(gone, node)))

    def _deliveries(
        self,
        steps: list[tuple[Label, State]],
        state: State,
        environment: Environment,
        workers: list[Worker],
    ) -> None:
        owner = self._fresh_owner(state, workers)
        for delivery, tried in enumerate(environment.deliveries):
            if tried != UNSENT and (not 0 <= tried < self.scenario.tries or self._is_running(delivery, workers)):
                continue
            tries = list(environment.deliveries)
            tries[delivery] = max(tried, 0) + 1
            number = self._environment_id(environment._replace(deliveries=tuple(tries)))
            for kind in range(len(self.scenario.kinds)):
                label = ("is delivered", len(workers), delivery)
                node = self._start(kind, delivery, owner, self._now_ms(environment), label)
                steps.append((label, (number, *state[1:], self._worker_id(Worker(node, begins=True)))))

    def _late_writes(
        self,
        steps: list[tuple[Label, State]],
        state: State,
        environment: Environment,
        workers: list[Worker],
    ) -> None:
        network = self._networks[state[2]]
        for place, write in enumerate(network):
            if not self._applies(state[1], write)[1] or (place and network[place - 1] == write):
                continue
            label = ("takes place late", -1, write)
            rest = self._network_id(network[:place] + network[place + 1 :])
            landed, _ = self._land((*state[:2], rest, *state[3:]), write, environment, label)
            steps.append((label, landed))

    def _time_and_people(
        self,
        steps: list[tuple[Label, State]],
        state: State,
        environment: Environment,
        workers: list[Worker],
    ) -> None:
        found = self._records[state[1]]
        now_ms = self._now_ms(environment)
        label: Label
        if found is not None and found.expiry is not None and found.expiry * 1000 < now_ms:
            label = ("DynamoDB deletes the record", -1, state[1])
            if found.status == QUARANTINED:
                raise Broken("a quarantined key is forgotten only when an operator says so", label)
            self._require_dead(found.owner, now_ms, workers, None, label)
            steps.append((label, (state[0], ABSENT, *state[2:])))
        if environment.releases and found is not None and found.status == QUARANTINED:
            steps.append(self._release(state, environment, found, now_ms))
        next_tick = environment.tick + 1
        if next_tick < len(self.scenario.times_ms) and not (next_tick == self.scenario.leap and workers):
            steps.append((("time passes", -1, 0), self._later(state, environment)))

    def _release(
        self, state: State, environment: Environment, found: Record, now_ms: int
    ) -> tuple[Label, State]:
        """Give the key back, and deliver again what its dead-letter queue holds."""
        label: Label = ("operator releases the key", -1, 0)
        window_s = self.scenario.kinds[0].policy.window
        owner = f"operator {environment.releases}"
        free = timeless(decision.released(found, owner, now_ms, window_s))
        if not stores.may_swap(found, found):
            raise Broken("an operator can release a quarantined key", label)
        number = self._record_id(free)
        promise = self._settles(number)
        if promise is not None:
            raise Broken(promise, label)
        after = environment._replace(releases=environment.releases - 1)
        event = self._event_of[free.fingerprint or ""]
        for delivery, tried in enumerate(environment.deliveries):
            if self._event[delivery] == event and tried == UNSENT and environment.lettered & event:
                deliveries = (*environment.deliveries[:delivery], 0, *environment.deliveries[delivery + 1 :])
                after = after._replace(lettered=environment.lettered & ~event, deliveries=deliveries)
                break
        return label, (self._environment_id(after), number, *state[2:])

    def _later(self, state: State, environment: Environment) -> State:
        tick = environment.tick + 1
        now_ms = self.scenario.times_ms[tick]
        window_ms = environment.window_ms if environment.window_ms >= now_ms else -1
        number = self._environment_id(environment._replace(tick=tick, window_ms=window_ms))
        network = self._network_id(()) if tick == self.scenario.leap else state[2]
        after: State = (number, state[1], network, *state[3:])
        for place in range(len(state) - 4, -1, -1):
            worker = self._workers[state[3 + place]]
            node = self._nodes[worker.node]
            if node.deadline_ms is not None and now_ms + node.clock_ms > node.deadline_ms:
                after = self._crashed(after, place, node, worker)
            elif worker.resting:
                after = self._with(after, place, worker._replace(resting=False))
        return after

    def describe(self, state: State, label: Label) -> str:
        """Return one line that tells what ``label`` does in ``state``."""
        what, place, detail = label
        now = f"{self._now_ms(self._environments[state[0]]) / 1000:6.1f} s  "
        if what == "is delivered":
            kinds = " or ".join(kind.name for kind in self.scenario.kinds)
            return f"{now}{self.scenario.messages[detail].id} is delivered ({kinds})"
        if place < 0:
            return now + (f"{self._told_write(detail)} takes place late" if what == "takes place late" else what)
        process = self._nodes[self._workers[state[3 + place]].node].process
        who = f"{process.owner} ({process.message.id}, {process.kind.name}): "
        if what == "handler":
            return now + who + ("heartbeat" if detail < 0 else f"handler {self.scenario.handler[detail]}")
        if what in ("takes place", "takes place, answer delayed", "is sent again", "is given up", "meets a conflict"):
            landing = self._landing(state[1], detail)
            refused = what.startswith("takes place") and not landing.written
            by = f", refused by {_told_record(self._records[state[1]])}" if refused else ""
            return f"{now}{who}{self._told_write(detail)} {what}{by}"
        if what in ("late answer", "reads"):
            return f"{now}{who}{what}: {_told_record(self._records[detail])}"
        return now + who + what

    def _told_write(self, number: int) -> str:
        write = self._writes[number]
        seen = f" over {_told_record(self._records[write.seen])}" if write.kind == SWAP else ""
        return f"{write.kind} {_told_record(self._records[write.record])}{seen}"

    # ── Parts of steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def _told_state(self, state: State, place: int, worker: Worker, answer: int | str, label: Label) -> State:
        """Return ``state`` after the process at ``place`` was told ``answer``."""
        now_ms = self._now_ms(self._environments[state[0]])
        node = self._nodes[worker.node]
        number = self._tell(worker.node, now_ms + node.clock_ms, answer, label)
        worker = worker._replace(begins=False)
        if node.back >= 0:  # it was a heartbeat
            found = self._records[answer] if isinstance(answer, int) else None
            held_ms = worker.held_ms
            if found is not None and found.owner == node.process.owner and found.lease_ms is not None:
                held_ms = max(held_ms, found.lease_ms)
            return self._with(state, place, worker._replace(node=node.back, held_ms=held_ms, resting=False))
        next_node = self._nodes[number]
        if next_node.request == END and (not next_node.acknowledges or worker.abandoned):
            return self._gone(state, place, worker, next_node)
        held_ms = worker.held_ms
        if next_node.request == WORK and next_node.process.claim is not None:
            held_ms = max(held_ms, next_node.process.claim.lease_ms or 0)
        elif next_node.request == END:
            held_ms = -1
        return self._with(
            state, place, worker._replace(node=number, held_ms=held_ms, resting=next_node.request == SLEEP)
        )

    def _tell(self, number: int, now_ms: int, answer: int | str, label: Label) -> int:
        key = (number, now_ms, answer)
        known = self._told.get(key)
        if known is None:
            node = self._nodes[number]
            said = self._records[answer] if isinstance(answer, int) else answer
            process = self._processes.tell(node.process, now_ms, said)
            back = number if answer == BEATS else -1
            owners = node.owners | (self._owner_bits[answer] if isinstance(answer, int) else 0)
            if node.back >= 0:
                promise = _misjudged_beat(process, said)
                known = self._add(process, node.delivery, owners, -1, promise) if promise else node.back
            else:
                known = self._add(process, node.delivery, owners, back, self._misdeed(process, now_ms))
            self._told[key] = known
        promise = self._nodes[known].promise
        if promise is not None:
            raise Broken(promise, label)
        return known

    def _start(self, kind: int, delivery: int, owner: int, now_ms: int, label: Label) -> int:
        key = (kind, delivery, owner, now_ms)
        known = self._started.get(key)
        if known is None:
            machine = self.scenario.kinds[kind]
            own_ms = now_ms + machine.clock_ms
            process = self._processes.start(machine, self.scenario.messages[delivery], f"#{owner}", own_ms)
            known = self._add(process, delivery, 1 << owner, -1, self._misdeed(process, own_ms))
            self._started[key] = known
        return known

    def _add(self, process: Process, delivery: int, owners: int, back: int, promise: str | None) -> int:
        request = process.request
        if process.observation is not None:
            self.outcomes.add(process.observation.outcome)
        if promise is None:
            future = (*future_of(process), back)
            known = self._futures.setdefault(future, len(self._nodes))
            if known < len(self._nodes):
                return known
        kind = process.kind
        acknowledges = request.kind == END and process.error is None
        write = -1
        if request.kind in WRITES:
            write = self._write_id(request)
            owners |= self._write_owners[write]
        self._nodes.append(
            Node(
                process,
                request.kind,
                write,
                delivery,
                0 if request.kind == END else owners,
                kind.clock_ms,
                process.deadline_ms,
                back,
                acknowledges,
                promise,
            )
        )
        return len(self._nodes) - 1

    def _land(self, state: State, write: int, environment: Environment, label: Label) -> tuple[State, int]:
        """Return ``state`` after ``write`` took place, and the record that is now under the key."""
        landing = self._landing(state[1], write)
        if not landing.written:
            return state, state[1]
        now_ms = self._now_ms(environment)
        if landing.promise is not None:
            raise Broken(landing.promise, label)
        if landing.ousted is not None:
            workers = [self._workers[number] for number in state[3:]]
            self._require_dead(landing.ousted, now_ms, workers, self._record(landing.after), label)
        if self.scenario.skew_is_bounded and now_ms <= landing.over_ms:
            raise Broken("a completed key is run again only when its window is over", label)
        if now_ms + self._latest_clock_ms < landing.not_before_ms:
            raise Broken("a failed key is not run again before its back-off is over", label)
        if not landing.committed:
            return (state[0], landing.after, *state[2:]), landing.after
        if now_ms <= environment.window_ms:
            raise Broken("at most one effect is committed in a window", label)
        if environment.committed & landing.committed & self._once:
            raise Broken("an event that says when it was sent takes effect once, ever", label)
        number = self._environment_id(
            environment._replace(
                committed=environment.committed | landing.committed,
                window_ms=landing.window_ms if landing.window_ms >= now_ms else -1,
            )
        )
        return (number, landing.after, *state[2:]), landing.after

    def _landing(self, before: int, write: int) -> Landing:
        known = self._landings.get((before, write))
        if known is None:
            after, written = self._applies(before, write)
            known = self._judged(before, write, after) if written else Landing(before, written=False)
            self._landings[before, write] = known
        return known

    def _judged(self, before: int, write: int, after: int) -> Landing:
        kind, seen, _, effects = self._writes[write]
        old, new = self._records[before], self._record(after)
        promise = misstep(old, kind, self._records[seen], new, effects=effects, max_attempts=self._max_attempts)
        taken = old is not None and token(old) != token(new)
        claims = new.attempt > (old.attempt if old else 0)
        return Landing(
            after,
            written=True,
            promise=promise or self._settles(after),
            ousted=old.owner if old and taken and old.status == IN_PROGRESS else None,
            over_ms=old.expiry * 1000 if old and old.status == COMPLETED and old.expiry else -1,
            not_before_ms=old.retry_ms or -1 if old and old.status == FAILED and claims else -1,
            committed=self._event_of[new.fingerprint or ""] if effects else 0,
            window_ms=(new.expiry or 0) * 1000,
        )

    def _applies(self, before: int, write: int) -> tuple[int, bool]:
        """Return the record that ``write`` leaves under the key, and whether that is its own: by the real conditions."""
        known = self._applied.get((before, write))
        if known is None:
            kind, seen, record, _ = self._writes[write]
            found = self._records[before]
            if kind == INSERT:
                written = stores.may_insert(found)
            elif kind == SWAP:
                written = stores.may_swap(found, self._record(seen))
            else:
                written = stores.may_advance(found, self._record(record))
            known = (record, True) if written else (before, False)
            self._applied[before, write] = known
        return known

    def _require_dead(
        self, owner: str | None, now_ms: int, workers: list[Worker], taker: Record | None, label: Label
    ) -> None:
        """Refuse that a key is taken from a process that holds it by its own clock."""
        if not self.scenario.skew_is_bounded:
            return
        for worker in workers:
            node = self._nodes[worker.node]
            process = node.process
            if process.owner != owner or worker.held_ms < now_ms + node.clock_ms:
                continue
            same = taker is not None and taker.delivery == process.message.id
            if not (same and process.kind.policy.same_delivery_takes_over):
                raise Broken("a live claim is not taken over", label)

    def _acknowledged(
        self, state: State, environment: Environment, place: int, node: Node, worker: Worker
    ) -> State:
        deliveries = list(environment.deliveries)
        deliveries[node.delivery] = ACKNOWLEDGED
        event = self._event[node.delivery]
        stands = any(tried >= 0 and self._event[index] == event for index, tried in enumerate(deliveries))
        if not stands and not (environment.committed | environment.lettered) & event:
            raise Broken("no event is acknowledged that is neither done, nor dead-lettered, nor due", ("acknowledges", place, 0))
        number = self._environment_id(environment._replace(deliveries=tuple(deliveries)))
        return (number, *state[1 : 3 + place], *state[4 + place :])

    def _crashed(self, state: State, place: int, node: Node, worker: Worker) -> State:
        under_way = node.write >= 0 and worker.answer == NO_ANSWER
        return self._gone(self._under_way(state, node.write) if under_way else state, place, worker, node)

    def _gone(self, state: State, place: int, worker: Worker, node: Node) -> State:
        """Remove a process; its transport delivers again, unless it has long done so."""
        without = (*state[: 3 + place], *state[4 + place :])
        return without if worker.abandoned else self._undelivered(without, node)

    def _undelivered(self, state: State, node: Node) -> State:
        environment = self._environments[state[0]]
        if environment.deliveries[node.delivery] < self.scenario.tries:
            return state
        deliveries = list(environment.deliveries)
        deliveries[node.delivery] = DEAD
        lettered = environment.lettered | self._event[node.delivery]
        after = environment._replace(deliveries=tuple(deliveries), lettered=lettered)
        return (self._environment_id(after), *state[1:])

    def _lettered(self, state: State, environment: Environment, node: Node) -> State:
        after = environment._replace(lettered=environment.lettered | self._event[node.delivery])
        return (self._environment_id(after), *state[1:])

    def _faulty(self, state: State) -> State:
        environment = self._environments[state[0]]
        return (self._environment_id(environment._replace(faults=environment.faults - 1)), *state[1:])

    def _under_way(self, state: State, write: int) -> State:
        network = self._network_id(tuple(sorted((*self._networks[state[2]], write))))
        return (*state[:2], network, *state[3:])

    def _with(self, state: State, place: int, worker: Worker) -> State:
        return (*state[: 3 + place], self._worker_id(worker), *state[4 + place :])

    def _is_running(self, delivery: int, workers: list[Worker]) -> bool:
        return any(not worker.abandoned and self._nodes[worker.node].delivery == delivery for worker in workers)

    def _fresh_owner(self, state: State, workers: list[Worker]) -> int:
        """Return the lowest token that nothing in this state could be compared with: it is as good as a random one."""
        used = self._owner_bits[state[1]] | 1
        for worker in workers:
            used |= self._nodes[worker.node].owners
            if worker.answer != NO_ANSWER:
                used |= self._owner_bits[worker.answer]
        for write in self._networks[state[2]]:
            used |= self._write_owners[write]
        owner = 1
        while used >> owner & 1:
            owner += 1
        return owner

    def _now_ms(self, environment: Environment) -> int:
        return self.scenario.times_ms[environment.tick]

    # ── Promises ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _misdeed(self, process: Process, now_ms: int) -> str | None:
        """Return the promise that a process breaks by where it stands."""
        policy = process.kind.policy
        if process.runs > 1 + policy.conflict_reruns:
            return "one delivery runs the handler once"
        request = process.request.kind
        claim = process.claim
        if request == WORK and process.runs == 1 and claim is not None and claim.lease_ms is not None and process.kind.timeout_ms is None:
            if claim.lease_ms - now_ms < int(policy.lease * 1000) // 2:
                return "a run begins with at least half of its lease"
        if request != END:
            return None
        observation, answer = process.observation, process.answer
        if observation is None:
            return "every delivery is observed once"
        if answer is None:
            return None
        record, own = answer.record, answer.record is not None and answer.record.owner == process.owner
        if answer.outcome in RAN and not (own and record and record.status == COMPLETED):
            return "only the run that was committed says that it ran"
        if answer.outcome == BUSY and own:
            return "nobody waits for himself"
        if record is not None and record.status == COMPLETED and answer.value() != record.owner:
            return "every delivery is answered with the result of the committed run"
        settled = record is not None and (record.status == COMPLETED or record.dead_lettered)
        if not settled and answer.outcome not in (BUSY, DEAD_LETTERED):
            return "what is acknowledged is done, dead-lettered, or in other hands"
        return None

    def _settles(self, number: int) -> str | None:
        if number not in self._unsettled:
            self._unsettled[number] = self._stuck(number)
        return self._unsettled[number]

    def _stuck(self, number: int) -> str | None:
        """Return the promise that is broken where undisturbed deliveries do not bring the key to an end."""
        record = self._record(number)
        for kind in self.scenario.kinds:
            skew_ms = int(kind.policy.clock_skew * 1000)
            free_ms = max(record.lease_ms or 0, record.retry_ms or 0) + skew_ms + 1
            message = self.scenario.messages[0]._replace(fingerprint=record.fingerprint or "")
            if not self._comes_to_an_end(kind, message, number, free_ms, RETURNS, 1):
                return "one undisturbed delivery brings a key to its end"
            if not self._comes_to_an_end(kind, message, number, free_ms, RAISES, self._max_attempts + 1):
                return "a key whose handler always fails ends in the dead-letter queue"
            if record.status == COMPLETED and record.expiry is not None:
                over_ms = record.expiry * 1000 + skew_ms + 1
                other = message._replace(fingerprint="1:other")
                if self._alone(kind, other, number, over_ms, RETURNS)[1] is None:
                    return "a key whose window is over is free again, whatever the payload"
            if record.status == FAILED and record.attempt == 0:
                again, _ = self._alone(kind, message, number, free_ms, RETURNS)
                if self._record(again).status != COMPLETED:
                    return "a key that was given back is run again"
        return None

    def _comes_to_an_end(
        self, kind: Kind, message: Message, number: int, now_ms: int, handler: str, deliveries: int
    ) -> bool:
        for _ in range(deliveries):
            number, answer = self._alone(kind, message, number, now_ms, handler)
            record = self._record(number)
            if answer is not None:
                return record.status == COMPLETED or answer == SENT or record.dead_lettered
            now_ms = max(now_ms, record.retry_ms or 0)
        return False

    def _alone(self, kind: Kind, message: Message, number: int, now_ms: int, handler: str) -> tuple[int, str | None]:
        """Deliver once, with nothing else going on; return the record, and how it was acknowledged if it was."""
        found = self._records[number]
        owner = "#later" if found is None or found.owner != "#later" else "#still later"
        process = self._processes.start(kind, message, owner, now_ms)
        sent = False
        while process.request.kind != END:
            request = process.request.kind
            if request in WRITES:
                number, _ = self._applies(number, self._write_id(process.request))
                answer: object = self._records[number]
            elif request == READ:
                answer = self._records[number]
            elif request == SEND:
                sent = True
                answer = SENT
            else:
                answer = handler if request == WORK else AWAKE
                now_ms += process.request.pause_ms
            process = self._processes.tell(process, now_ms, answer)
        if process.error is not None:
            return number, None
        return number, SENT if sent else "done"

    # ── Numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, number: int) -> Record:
        record = self._records[number]
        if record is None:
            raise AssertionError("there is no record")
        return record

    def _record_id(self, record: Record | None) -> int:
        number = self._record_ids.get(record)
        if number is None:
            number = self._record_ids[record] = len(self._records)
            self._records.append(record)
            self._owner_bits.append(_bit(record))
        return number

    def _write_id(self, request: Request) -> int:
        write = Write(
            request.kind, self._record_id(request.seen), self._record_id(request.record), request.effects
        )
        number = self._write_ids.get(write)
        if number is None:
            number = self._write_ids[write] = len(self._writes)
            self._writes.append(write)
            self._write_owners.append(self._owner_bits[write.seen] | self._owner_bits[write.record])
        return number

    def _worker_id(self, worker: Worker) -> int:
        number = self._worker_ids.get(worker)
        if number is None:
            number = self._worker_ids[worker] = len(self._workers)
            self._workers.append(worker)
        return number

    def _environment_id(self, environment: Environment) -> int:
        number = self._environment_ids.get(environment)
        if number is None:
            number = self._environment_ids[environment] = len(self._environments)
            self._environments.append(environment)
        return number

    def _network_id(self, network: tuple[int, ...]) -> int:
        number = self._network_ids.get(network)
        if number is None:
            number = self._network_ids[network] = len(self._networks)
            self._networks.append(network)
        return number


def future_of(process: Process) -> tuple[object, ...]:
    """Return what the future of ``process`` depends on: where two agree, one stands for both, whatever their past."""
    kind, request = process.kind, process.request
    if request.kind == END:
        outcome = process.observation.outcome if process.observation and process.error is None else None
        return process.message, outcome in RAN or outcome
    if kind.policy.busy == "wait":
        return kind.name, process.message, process.owner, process.told
    records = [said for _, said in process.told if isinstance(said, Record)]
    letter = records[-1] if request.kind == SEND and records else None
    return kind.name, process.message, process.owner, process.deadline_ms, request, process.runs, process.claim, letter


def misstep(
    old: Record | None, kind: str, seen: Record | None, new: Record, *, effects: bool, max_attempts: int
) -> str | None:
    """Return the promise that a write which took place has broken: what may follow upon what, said once more.

    Args:
        old: what was under the key.
        kind: how it was written.
        seen: what the writer of a swap had judged.
        new: what is under the key now.
        effects: whether the writer's effects took place with it.
        max_attempts: how many runs a key may have.
    """
    if effects != (new.status == COMPLETED):
        return "effects take place with the completion, and only with it"
    if new.status == IN_PROGRESS and new.attempt > max_attempts:
        return "a key is run at most max_attempts times"
    if old is None:
        return None if kind == INSERT and new.attempt == 1 else "the first attempt at an absent key is an insert"
    if kind == INSERT:
        return "an insert replaces nothing"
    if kind == ADVANCE:
        if token(old) != token(new):
            return "a stale owner's write changes nothing"
        if old.status != IN_PROGRESS:
            return "an owner that has finished changes nothing"
        return None if old.attempt == new.attempt else "attempts are counted by claims"
    if seen is None or old._replace(dead_lettered=False) != seen._replace(dead_lettered=False):
        return "a swap replaces what its writer has judged"
    return _misswap(old, new, max_attempts)


def _misswap(old: Record, new: Record, max_attempts: int) -> str | None:
    if old.status == QUARANTINED:
        marked = new == old._replace(dead_lettered=True)
        return None if marked else "a quarantined key is never run"
    if token(old) == token(new):
        renews = old.status == new.status == IN_PROGRESS and old.attempt == new.attempt
        return None if renews else "one run counts as one attempt"
    if old.status == COMPLETED:
        return None if new.attempt == 1 else "a new window begins with attempt 1"
    given_up = new.status == QUARANTINED and old.attempt >= max_attempts and new.attempt == old.attempt
    return None if given_up or new.attempt == old.attempt + 1 else "every run counts as an attempt"


def _misjudged_beat(process: Process, said: Record | str | None) -> str | None:
    if said == GAVE_UP:
        return None
    holds = isinstance(said, Record) and said.owner == process.owner and said.status == IN_PROGRESS
    return None if holds != process.lost else "a heartbeat says whether the claim still holds"


def _told_record(record: Record | None) -> str:
    if record is None:
        return "nothing"
    lease = f", lease to {record.lease_ms / 1000} s" if record.lease_ms is not None else ""
    mark = ", dead-lettered" if record.dead_lettered else ""
    return f"[{record.status} of {record.owner}, attempt {record.attempt}{lease}{mark}]"


def token(record: Record) -> str:
    """Return the token of the delivery that wrote a record; a quarantine's has its time behind it."""
    return (record.owner or "").partition("/")[0]


def _bit(record: Record | None) -> int:
    """Return the owner token of a record as a bit; an operator's is never used by a process."""
    name = token(record)[1:] if record is not None else ""
    return 1 << int(name) if name.isdigit() else 0
