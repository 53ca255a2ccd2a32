"""What can happen to one key, and where it leads.

A `Scenario` bounds a world: its machines, deliveries, faults and time. `World` numbers everything that can be in it
(records, writes, processes), so that a state is a short tuple of small numbers, and lists the steps that lead out of a
state. Each step is judged as it is taken; `Broken` says which promise it broke.

A request and its effect are two things: a process waits with a request until the request takes place, or until the
client gives it up while it is still under way, so that it takes place at any later time, or never. A process that was
told nothing tries the same request again, goes on without an answer, or dies. To lose an answer is therefore to give up
a request that takes place next, and to crash before or after a step is to crash with its request under way.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from idempotency import decision, stores
from idempotency.observation import EXPIRED
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from tests.explorer import promises
from tests.explorer.numbers import Numbers
from tests.explorer.process import (
    AWAKE,
    BEATS,
    CONFLICT,
    END,
    GAVE_UP,
    INSERT,
    NOT_SENT,
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
    future_of,
    timeless,
)

# A delivery, as its transport sees it: how often it was tried, or one of these.
UNSENT: Final = -3
DEAD: Final = -2
"""Its tries are used up: Lambda's OnFailure destination or the queue's own dead-letter queue has it."""
ACKNOWLEDGED: Final = -1

ABSENT: Final = 0
"""The number of no record."""
NO_ANSWER: Final = -1
GONE: Final = -1


@dataclass(frozen=True, kw_only=True)
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
    times_ms: tuple[int, ...] = (0, 3_500, 7_500)
    """When something may happen, by the store's clock."""
    leap: int | None = None
    """The place in ``times_ms`` before which so much time passes that nothing outlasts it: no process, no request."""
    faults: int = 1
    """How many crashes, losses, conflicts, late answers, late writes and processes taken for dead, in all."""
    copies: bool = False
    """Whether a transport may take a process for dead that runs on, and deliver again at once."""
    conflicts: bool = False
    """Whether an effect's own condition may refuse a commit."""
    beats: int = 0
    releases: int = 0
    """How often an operator may give the key back, and redrive its dead letter."""
    handler: tuple[str, ...] = (RETURNS, RAISES)
    skew_is_bounded: bool = True
    """Whether the machines' clocks differ by no more than their policies allow."""
    unjudged: frozenset[str] = frozenset()
    """Promises about single writes that may be broken here, to see what follows from it."""

    def __post_init__(self) -> None:
        offsets_ms = [0, *(kind.clock_ms for kind in self.kinds)]
        allowed_ms = min(int(kind.policy.clock_skew * 1000) for kind in self.kinds)
        if self.skew_is_bounded != (max(offsets_ms) - min(offsets_ms) <= allowed_ms):
            raise ValueError(f"{self.name}: the clocks contradict skew_is_bounded")
        if len({kind.policy.max_attempts for kind in self.kinds}) > 1:
            raise ValueError(f"{self.name}: one key has one max_attempts")


type State = tuple[int, ...]
"""The environment, the record, the requests under way, then each running process in the order in which they began."""

type Label = tuple[str, int, int]
"""A step: what happens, to which process (its place among them; -1 where to none), and a detail."""

type Steps = list[tuple[Label, State]]


class Broken(Exception):  # noqa: N818 - it is a promise that is broken, not the explorer
    """A step broke a promise of the protocol."""

    def __init__(self, promise: str, label: Label) -> None:
        super().__init__(promise)
        self.promise = promise
        self.label = label


class Environment(NamedTuple):
    """Everything but the record, the requests under way and the processes."""

    time: int
    faults: int
    beats: int
    releases: int
    lettered: int
    """The events that are in a dead-letter queue (or were dropped by age): a bit for each."""
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
    """What it breaks wherever it takes place."""
    ousted: str | None = None
    """The owner from whom it takes the key."""
    over_ms: int = -1
    """The end of the window that it ends."""
    not_before_ms: int = -1
    committed: int = 0
    """The event whose effect it commits, as a bit."""
    window_ms: int = -1


class Node(NamedTuple):
    """A process, and what its steps depend on."""

    process: Process
    request: str
    write: int
    delivery: int
    owners: int
    """The owner tokens that it may still use or compare, as bits."""
    clock_ms: int
    deadline_ms: int | None
    back: int
    """While it waits for a heartbeat: the process that goes on afterwards; otherwise -1."""
    acknowledges: bool
    promise: str | None


class Worker(NamedTuple):
    """One running process in a state."""

    node: int
    abandoned: bool = False
    """Its transport takes it for dead and does not listen to it any more."""
    resting: bool = False
    """Nothing happens to it before time passes, unless it crashes."""
    begins: bool = False
    """It has made its first request just now."""
    held_ms: int = -1
    """Until when it knows itself to hold the key, by its own clock."""
    answer: int = NO_ANSWER
    """The answer that is on its way to it: a record's number."""


class World:
    """The steps of one scenario.

    Args:
        scenario: its bounds.
        reduced: leave out steps whose order makes no difference. Without it a world has the same ends, and more ways.
    """

    def __init__(self, scenario: Scenario, *, reduced: bool = True) -> None:
        self.scenario = scenario
        self._reduced = reduced
        self.outcomes: set[str] = set()
        """What became of deliveries, anywhere in this world."""
        self.overlaps = 0
        """How many steps took a key from a process that held it, where clocks allow that."""
        self.merged: list[tuple[Process, Process]] = []
        """The processes for which another one stands: that one first."""
        messages = scenario.messages
        events = Numbers(*(message.fingerprint for message in messages))
        self._event_of = {fingerprint: 1 << number for number, fingerprint in enumerate(events.values)}
        self._event = [self._event_of[message.fingerprint] for message in messages]
        undated = {message.fingerprint for message in messages if message.sent_ms is None}
        self._dated = sum(bit for fingerprint, bit in self._event_of.items() if fingerprint not in undated)
        self._allowed = scenario.unjudged | {None}
        self._max_attempts = scenario.kinds[0].policy.max_attempts
        self._latest_clock_ms = max(0, *(kind.clock_ms for kind in scenario.kinds))
        self._processes = Processes()
        self._records: Numbers[Record | None] = Numbers(None)
        self._owner_bits = [0]
        self._writes: Numbers[Write] = Numbers()
        self._write_owners: list[int] = []
        self._workers: Numbers[Worker] = Numbers()
        self._environments: Numbers[Environment] = Numbers()
        self._networks: Numbers[tuple[int, ...]] = Numbers(())
        self._nodes: list[Node] = []
        self._futures: dict[tuple[object, ...], int] = {}
        # What was computed once: each of these is a pure function of its key.
        self._told: dict[tuple[int, int, int | str], int] = {}
        self._started: dict[tuple[int, int, int, int], int] = {}
        self._next: dict[tuple[int, int, int | str], int] = {}
        self._landings: dict[tuple[int, int], Landing] = {}
        self._applied: dict[tuple[int, int], tuple[int, bool]] = {}
        self._stuck: dict[int, str | None] = {}
        self._released_runs: dict[int, bool] = {}
        self._delayed: dict[tuple[int, int], int] = {}
        self._abandoned: dict[int, int] = {}
        self._rested: dict[int, int] = {}
        self._faulty: dict[int, int] = {}
        self._later: dict[int, int] = {}
        self._failed: dict[tuple[int, int], int] = {}
        self._tried: dict[tuple[int, int], int] = {}
        self._lettered: dict[tuple[int, int], int] = {}

    def initial(self) -> State:
        """Return the state in which nothing has happened."""
        scenario = self.scenario
        unsent = (UNSENT,) * len(scenario.messages)
        environment = Environment(0, scenario.faults, scenario.beats, scenario.releases, 0, 0, -1, unsent)
        return self._environments.of(environment), ABSENT, self._networks.of(())

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def steps(self, state: State) -> Steps:
        """Return every step that leads out of ``state``, with where it leads.

        Raises:
            Broken: one of them breaks a promise.
        """
        environment = self._environments.values[state[0]]
        workers = [self._workers.values[number] for number in state[3:]]
        steps: Steps = []
        if self._reduced and self._private_steps(steps, state, environment, workers):
            return steps
        for place in range(len(workers)):
            self._process_steps(steps, state, environment, place)
        if len(workers) < self.scenario.at_once:
            self._deliveries(steps, state, environment, workers)
        self._late_writes(steps, state, environment)
        self._time_and_people(steps, state, environment, workers)
        return steps

    def _private_steps(self, steps: Steps, state: State, environment: Environment, workers: list[Worker]) -> bool:
        """Say whether a process has something to do that is to be done before all else.

        What concerns nobody else before time passes leads to the same in any order, so one process does it at a time:
        the choices of a handler, the beginning of a delivery up to its first request, and the end of one whose event
        has taken effect.
        """
        for place, worker in enumerate(workers):
            if worker.resting:
                continue
            node = self._nodes[worker.node]
            ends = node.request == END and environment.committed & self._event[node.delivery]
            if worker.begins:
                number = self._workers.of(worker._replace(begins=False))
                self._process_steps(steps, _with(state, place, number), environment, place)
                stalled = self._workers.of(worker._replace(begins=False, resting=True))
                steps.append((("stalls", place, 0), _with(state, place, stalled)))
                return True
            if node.request == WORK or ends:
                self._process_steps(steps, state, environment, place)
                return True
        return False

    def _handler_steps(self, steps: Steps, state: State, environment: Environment, place: int, worker: Worker) -> None:
        number = state[3 + place]
        for choice, does in enumerate(self.scenario.handler):
            label = ("handler", place, choice)
            steps.append((label, self._told_state(state, place, number, does, label)))
        node = self._nodes[worker.node]
        if environment.beats and node.process.claim is not None:
            label = ("handler", place, -1)
            beating = self._tell(worker.node, self._now_ms(environment) + node.clock_ms, BEATS, label)
            beat = self._records[self._writes[self._nodes[beating].write].record]
            if beat is not None and (beat.lease_ms or 0) > worker.held_ms:
                spent = self._environments.of(environment._replace(beats=environment.beats - 1))
                after = _with(state, place, self._workers.of(worker._replace(node=beating)))
                steps.append((label, (spent, *after[1:])))
        works_on = self._workers.of(worker._replace(resting=True))
        steps.append((("handler works on", place, 0), _with(state, place, works_on)))

    def _process_steps(self, steps: Steps, state: State, environment: Environment, place: int) -> None:
        number = state[3 + place]
        worker = self._workers.values[number]
        node = self._nodes[worker.node]
        request = node.request
        if request == WORK and not worker.resting:
            self._handler_steps(steps, state, environment, place, worker)
            return
        if environment.faults:
            self._fault_steps(steps, state, place, node, worker)
        if worker.resting:
            return
        label: Label
        if worker.answer != NO_ANSWER:
            label = ("learns late", place, worker.answer)
            steps.append((label, self._told_state(state, place, number, worker.answer, label)))
        elif request in WRITES:
            self._write_steps(steps, state, environment, place, node)
        elif request == END:
            label = ("acknowledges", place, 0)
            steps.append((label, self._acknowledged(state, environment, place, node, label)))
        elif request == SEND:
            self._letter_steps(steps, state, environment, place, node)
        elif request == READ:
            self._read_steps(steps, state, environment, place)
        elif request == SLEEP:
            label = ("wakes", place, 0)
            steps.append((label, self._told_state(state, place, number, AWAKE, label)))

    def _read_steps(self, steps: Steps, state: State, environment: Environment, place: int) -> None:
        number, found = state[3 + place], state[1]
        label = ("reads", place, found)
        steps.append((label, self._told_state(state, place, number, found, label)))
        if environment.faults:
            label = ("gives up reading", place, 0)
            steps.append((label, self._told_state(self._with_fault(state), place, number, GAVE_UP, label)))

    def _letter_steps(self, steps: Steps, state: State, environment: Environment, place: int, node: Node) -> None:
        number = state[3 + place]
        lettered = (self._letter(state[0], self._event[node.delivery]), *state[1:])
        label = ("dead letter is sent", place, 0)
        steps.append((label, self._told_state(lettered, place, number, SENT, label)))
        if environment.faults:
            label = ("dead letter is sent, answer lost", place, 0)
            steps.append((label, self._told_state(self._with_fault(lettered), place, number, NOT_SENT, label)))
            label = ("dead letter is refused", place, 0)
            steps.append((label, self._told_state(self._with_fault(state), place, number, NOT_SENT, label)))

    def _fault_steps(self, steps: Steps, state: State, place: int, node: Node, worker: Worker) -> None:
        faulty = self._with_fault(state)
        steps.append((("crashes", place, 0), self._crashed(faulty, place)))
        if self.scenario.copies and not worker.abandoned and node.request != END:
            gone = _with(faulty, place, self._abandon(state[3 + place]))
            steps.append((("is taken for dead", place, 0), self._undelivered(gone, node.delivery)))

    def _write_steps(self, steps: Steps, state: State, environment: Environment, place: int, node: Node) -> None:
        number, write = state[3 + place], node.write
        label = ("takes place", place, write)
        landed, answer = self._land(state, write, environment, label)
        steps.append((label, self._told_state(landed, place, number, answer, label)))
        if not environment.faults:
            return
        late = _with(self._with_fault(landed), place, self._delay(number, answer))
        steps.append((("takes place, answer delayed", place, write), late))
        under_way = self._under_way(self._with_fault(state), write)
        steps.append((("is sent again", place, write), under_way))
        label = ("is given up", place, write)
        steps.append((label, self._told_state(under_way, place, number, GAVE_UP, label)))
        if self.scenario.conflicts and self._writes[write].effects:
            label = ("meets a conflict", place, write)
            steps.append((label, self._told_state(self._with_fault(state), place, number, CONFLICT, label)))

    def _deliveries(self, steps: Steps, state: State, environment: Environment, workers: list[Worker]) -> None:
        owner = 0
        for delivery, tried in enumerate(environment.deliveries):
            if tried != UNSENT and (not 0 <= tried < self.scenario.tries or self._is_running(delivery, workers)):
                continue
            owner = owner or self._fresh_owner(state, workers)
            key = (state[0], delivery)
            number = self._tried.get(key)
            if number is None:
                number = self._tried[key] = self._environments.of(_delivery(environment, delivery, max(tried, 0) + 1))
            for kind in range(len(self.scenario.kinds)):
                label = ("is delivered", kind, delivery)
                worker = self._start(kind, delivery, owner, environment, label)
                steps.append((label, (number, *state[1:], worker)))

    def _late_writes(self, steps: Steps, state: State, environment: Environment) -> None:
        network = self._networks.values[state[2]]
        for place, write in enumerate(network):
            if not self._applies(state[1], write)[1] or (place and network[place - 1] == write):
                continue  # one that is refused could as well never have arrived
            label = ("takes place late", -1, write)
            rest = self._networks.of(network[:place] + network[place + 1 :])
            landed, _ = self._land((state[0], state[1], rest, *state[3:]), write, environment, label)
            steps.append((label, landed))

    def _time_and_people(self, steps: Steps, state: State, environment: Environment, workers: list[Worker]) -> None:
        found = self._records.values[state[1]]
        now_ms = self._now_ms(environment)
        if found is not None and found.expiry is not None and found.expiry * 1000 < now_ms:
            label = ("DynamoDB deletes the record", -1, 0)
            if found.status == QUARANTINED:
                raise Broken(promises.POISON_STAYS, label)
            if found.status == IN_PROGRESS:
                self._require_dead(promises.token(found), now_ms, workers, None, label)
            steps.append((label, (state[0], ABSENT, *state[2:])))
        if environment.releases and found is not None and found.status == QUARANTINED:
            label = ("operator releases the key", -1, 0)
            steps.append((label, self._released(state, environment, found, label)))
        next_time = environment.time + 1
        if next_time < len(self.scenario.times_ms) and not (workers and next_time == self.scenario.leap):
            steps.append((("time passes", -1, 0), self._time_passed(state, environment)))

    def _released(self, state: State, environment: Environment, found: Record, label: Label) -> State:
        """Give the key back, and deliver again what its dead-letter queue holds."""
        operator = f"operator {environment.releases}"
        window_s = self.scenario.kinds[0].policy.window
        free = self._record(timeless(decision.released(found, operator, self._now_ms(environment), window_s)))
        promise = self._settles(free)
        if promise is not None:
            raise Broken(promise, label)
        if not self._runs_again(free, self._now_ms(environment)):
            raise Broken(promises.RELEASED, label)
        after = environment._replace(releases=environment.releases - 1)
        event = self._event_of[found.fingerprint or ""]
        for delivery, tried in enumerate(environment.deliveries):
            if tried == UNSENT and self._event[delivery] == event and environment.lettered & event:
                after = _delivery(after, delivery, 0)._replace(lettered=environment.lettered & ~event)
                break
        return (self._environments.of(after), free, *state[2:])

    def _time_passed(self, state: State, environment: Environment) -> State:
        number = self._later.get(state[0])
        if number is None:
            now_ms = self.scenario.times_ms[environment.time + 1]
            window_ms = environment.window_ms if environment.window_ms >= now_ms else -1
            later = environment._replace(time=environment.time + 1, window_ms=window_ms)
            number = self._later[state[0]] = self._environments.of(later)
        later = self._environments.values[number]
        now_ms = self._now_ms(later)
        network = self._networks.of(()) if later.time == self.scenario.leap else state[2]
        after: State = (number, state[1], network, *state[3:])
        for place in range(len(state) - 4, -1, -1):
            worker = self._workers.values[state[3 + place]]
            node = self._nodes[worker.node]
            if node.deadline_ms is not None and now_ms + node.clock_ms > node.deadline_ms:
                after = self._crashed(after, place)
            elif worker.resting:
                after = _with(after, place, self._wake(state[3 + place]))
        return after

    # ── What processes do ─────────────────────────────────────────────────────────────────────────────────────────────

    def _told_state(self, state: State, place: int, number: int, answer: int | str, label: Label) -> State:
        """Return ``state`` after the process at ``place`` was told ``answer``."""
        environment = self._environments.values[state[0]]
        key = (number, environment.time, answer)
        after = self._next.get(key)
        if after is None:
            after = self._next[key] = self._told_worker(self._workers[number], environment, answer, label)
        if after != GONE:
            return _with(state, place, after)
        return self._gone(state, place)

    def _told_worker(self, worker: Worker, environment: Environment, answer: int | str, label: Label) -> int:
        node = self._nodes[worker.node]
        told = self._tell(worker.node, self._now_ms(environment) + node.clock_ms, answer, label)
        worker = worker._replace(node=told, begins=False, resting=False, answer=NO_ANSWER)
        if node.back >= 0:  # it was a heartbeat
            found = self._records[answer] if isinstance(answer, int) else None
            if found is not None and found.owner == node.process.owner and found.lease_ms is not None:
                worker = worker._replace(held_ms=max(worker.held_ms, found.lease_ms))
            return self._workers.of(worker)
        node = self._nodes[told]
        if node.request == END:
            heard = node.acknowledges and not worker.abandoned
            return self._workers.of(worker._replace(held_ms=-1)) if heard else GONE
        if node.request == WORK and node.process.claim is not None:
            worker = worker._replace(held_ms=max(worker.held_ms, node.process.claim.lease_ms or 0))
        return self._workers.of(worker._replace(resting=node.request == SLEEP))

    def _tell(self, number: int, now_ms: int, answer: int | str, label: Label) -> int:
        key = (number, now_ms, answer)
        told = self._told.get(key)
        if told is None:
            node = self._nodes[number]
            said = self._records[answer] if isinstance(answer, int) else answer
            process = self._processes.tell(node.process, now_ms, said)
            owners = node.owners | (self._owner_bits[answer] if isinstance(answer, int) else 0)
            if node.back >= 0:
                promise = promises.broken_by_heartbeat(process, said, now_ms)
                told = self._add(process, node.delivery, owners, -1, promise) if promise else node.back
            else:
                back = number if answer == BEATS else -1
                told = self._add(process, node.delivery, owners, back, promises.broken_by_process(process, now_ms))
            self._told[key] = told
        promise = self._nodes[told].promise
        if promise is not None:
            raise Broken(promise, label)
        return told

    def _start(self, kind: int, delivery: int, owner: int, environment: Environment, label: Label) -> int:
        key = (kind, delivery, owner, environment.time)
        worker = self._started.get(key)
        if worker is None:
            machine = self.scenario.kinds[kind]
            now_ms = self._now_ms(environment) + machine.clock_ms
            process = self._processes.start(machine, self.scenario.messages[delivery], f"#{owner}", now_ms)
            promise = promises.broken_by_process(process, now_ms)
            if promise is not None:
                raise Broken(promise, label)
            if process.request.kind == END:
                raise AssertionError(f"{machine.name} has no time to begin anything")
            node = self._add(process, delivery, 1 << owner, -1, None)
            worker = self._started[key] = self._workers.of(Worker(node, begins=self._reduced))
        return worker

    def _add(self, process: Process, delivery: int, owners: int, back: int, promise: str | None) -> int:
        """Return the number of ``process``, or of one that has the same future."""
        if process.observation is not None:
            self.outcomes.add(process.observation.outcome)
        if promise is None:
            future = (*future_of(process), back)
            known = self._futures.setdefault(future, len(self._nodes))
            if known < len(self._nodes):
                self.merged.append((self._nodes[known].process, process))
                return known
        request = process.request.kind
        write = -1
        if request in WRITES:
            write = self._write(process.request)
            owners |= self._write_owners[write]
        self._nodes.append(
            Node(
                process,
                request,
                write,
                delivery,
                0 if request == END else owners,
                process.kind.clock_ms,
                process.deadline_ms,
                back,
                request == END and process.error is None,
                promise,
            )
        )
        return len(self._nodes) - 1

    def _acknowledged(self, state: State, environment: Environment, place: int, node: Node, label: Label) -> State:
        after = _delivery(environment, node.delivery, ACKNOWLEDGED)
        event = self._event[node.delivery]
        if node.process.observation is not None and node.process.observation.outcome == EXPIRED:
            after = after._replace(lettered=after.lettered | event)
        due = any(tried >= 0 and self._event[index] == event for index, tried in enumerate(after.deliveries))
        if not due and not (after.committed | after.lettered) & event:
            raise Broken(promises.NOTHING_LOST, label)
        return (self._environments.of(after), *_without(state, place)[1:])

    def _crashed(self, state: State, place: int) -> State:
        worker = self._workers.values[state[3 + place]]
        write = self._nodes[worker.node].write
        if write >= 0 and worker.answer == NO_ANSWER:
            state = self._under_way(state, write)
        return self._gone(state, place)

    def _gone(self, state: State, place: int) -> State:
        """Remove a process; its transport delivers again, unless it has long done so."""
        worker = self._workers.values[state[3 + place]]
        after = _without(state, place)
        return after if worker.abandoned else self._undelivered(after, self._nodes[worker.node].delivery)

    def _undelivered(self, state: State, delivery: int) -> State:
        key = (state[0], delivery)
        number = self._failed.get(key)
        if number is None:
            after = self._environments[state[0]]
            if after.deliveries[delivery] >= self.scenario.tries:
                after = _delivery(after, delivery, DEAD)
                after = after._replace(lettered=after.lettered | self._event[delivery])
            number = self._failed[key] = self._environments.of(after)
        return (number, *state[1:])

    def _is_running(self, delivery: int, workers: list[Worker]) -> bool:
        return any(not worker.abandoned and self._nodes[worker.node].delivery == delivery for worker in workers)

    def _fresh_owner(self, state: State, workers: list[Worker]) -> int:
        """Return the lowest token that nothing in this state could be compared with: it is as good as a random one."""
        used = self._owner_bits[state[1]] | 1
        for worker in workers:
            used |= self._nodes[worker.node].owners
            if worker.answer != NO_ANSWER:
                used |= self._owner_bits[worker.answer]
        for write in self._networks.values[state[2]]:
            used |= self._write_owners[write]
        owner = 1
        while used >> owner & 1:
            owner += 1
        return owner

    # ── What the store does ───────────────────────────────────────────────────────────────────────────────────────────

    def _land(self, state: State, write: int, environment: Environment, label: Label) -> tuple[State, int]:
        """Return ``state`` after ``write`` took place, and what is now under the key."""
        landing = self._landing(state[1], write)
        if not landing.written:
            return state, state[1]
        now_ms = self._now_ms(environment)
        if landing.ousted is not None:
            workers = [self._workers.values[number] for number in state[3:]]
            self._require_dead(landing.ousted, now_ms, workers, self._records[landing.after], label)
        if landing.promise is not None:
            raise Broken(landing.promise, label)
        if self.scenario.skew_is_bounded and now_ms <= landing.over_ms:
            raise Broken(promises.REMEMBERED, label)
        if now_ms + self._latest_clock_ms < landing.not_before_ms:
            raise Broken(promises.BACKED_OFF, label)
        if not landing.committed:
            return (state[0], landing.after, *state[2:]), landing.after
        if now_ms <= environment.window_ms:
            raise Broken(promises.ONE_EFFECT, label)
        if environment.committed & landing.committed & self._dated:
            raise Broken(promises.ONE_EFFECT_EVER, label)
        window_ms = landing.window_ms if landing.window_ms >= now_ms else -1
        after = self._environments.values[state[0]]
        after = after._replace(committed=after.committed | landing.committed, window_ms=window_ms)
        return (self._environments.of(after), landing.after, *state[2:]), landing.after

    def _landing(self, before: int, write: int) -> Landing:
        landing = self._landings.get((before, write))
        if landing is None:
            after, written = self._applies(before, write)
            landing = self._judged(before, write, after) if written else Landing(before, written=False)
            self._landings[before, write] = landing
        return landing

    def _judged(self, before: int, write: int, after: int) -> Landing:
        kind, seen, _, effects = self._writes[write]
        old, new = self._records[before], self._present(after)
        promise = promises.broken_by_write(
            old, kind, self._records[seen], new, effects=effects, max_attempts=self._max_attempts
        )
        landing = Landing(
            after,
            written=True,
            promise=self._settles(after) if promise in self._allowed else promise,
            committed=self._event_of[new.fingerprint or ""] if effects else 0,
            window_ms=(new.expiry or 0) * 1000,
        )
        if old is None:
            return landing
        if old.status == IN_PROGRESS and promises.token(old) != promises.token(new):
            return landing._replace(ousted=promises.token(old))
        if old.status == COMPLETED:
            return landing._replace(over_ms=(old.expiry or 0) * 1000)
        if old.status == FAILED and new.attempt > old.attempt:
            return landing._replace(not_before_ms=old.retry_ms or -1)
        return landing

    def _applies(self, before: int, write: int) -> tuple[int, bool]:
        """Return what ``write`` leaves under the key, and whether that is its own record: by the real conditions."""
        applied = self._applied.get((before, write))
        if applied is None:
            kind, seen, record, _ = self._writes[write]
            found = self._records[before]
            if kind == INSERT:
                written = stores.may_put_if_absent(found)
            elif kind == SWAP:
                written = stores.may_compare_and_swap(found, self._present(seen))
            else:
                written = stores.may_update_if_owner(found, self._present(record))
            applied = self._applied[before, write] = (record, True) if written else (before, False)
        return applied

    def _require_dead(self, owner: str, now_ms: int, workers: list[Worker], taker: Record | None, label: Label) -> None:
        """Refuse that a key is taken from a process that holds it by its own clock."""
        for worker in workers:
            node = self._nodes[worker.node]
            if node.process.owner != owner or worker.held_ms < now_ms + node.clock_ms:
                continue
            same = taker is not None and taker.delivery == node.process.message.id
            if same and node.process.kind.policy.same_delivery_takes_over:
                continue
            if self.scenario.skew_is_bounded:
                raise Broken(promises.LIVE_CLAIM, label)
            self.overlaps += 1

    # ── Whether a key can come to its end ─────────────────────────────────────────────────────────────────────────────

    def _settles(self, number: int) -> str | None:
        """Return the promise that is broken where undisturbed deliveries do not bring this record to its end.

        Asked for every record that is ever under the key, as if all who could have helped it were dead.
        """
        if number not in self._stuck:
            self._stuck[number] = self._stuck_at(number)
        return self._stuck[number]

    def _stuck_at(self, number: int) -> str | None:
        record = self._present(number)
        message = Message("D9", fingerprint=record.fingerprint or "")
        for kind in self.scenario.kinds:
            skew_ms = int(kind.policy.clock_skew * 1000)
            free_ms = max(record.lease_ms or 0, record.retry_ms or 0) + skew_ms + 1
            if not self._comes_to_an_end(kind, message, number, free_ms, RETURNS, 1):
                return promises.ENDS
            if not self._comes_to_an_end(kind, message, number, free_ms, RAISES, self._max_attempts + 1):
                return promises.GIVEN_UP
            if record.status == COMPLETED and record.expiry is not None:
                over_ms = record.expiry * 1000 + skew_ms + 1
                after, _ = self._alone(kind, message._replace(fingerprint="1:other"), number, over_ms, RETURNS)
                if after == number:
                    return promises.FREE_AGAIN
        return None

    def _runs_again(self, number: int, now_ms: int) -> bool:
        """Say whether a delivery runs and completes what an operator has given back."""
        if number not in self._released_runs:
            message = Message("D9", fingerprint=self._present(number).fingerprint or "")
            after, _ = self._alone(self.scenario.kinds[0], message, number, now_ms, RETURNS)
            self._released_runs[number] = self._present(after).status == COMPLETED
        return self._released_runs[number]

    def _comes_to_an_end(
        self, kind: Kind, message: Message, number: int, now_ms: int, handler: str, deliveries: int
    ) -> bool:
        for _ in range(deliveries):
            number, answer = self._alone(kind, message, number, now_ms, handler)
            record = self._present(number)
            if answer is not None:
                return record.status == COMPLETED or answer == SENT or record.dead_lettered
            now_ms = max(now_ms, record.retry_ms or 0)
        return False

    def _alone(self, kind: Kind, message: Message, number: int, now_ms: int, handler: str) -> tuple[int, str | None]:
        """Deliver once, with nothing else going on; return the record, and how it was acknowledged if it was."""
        found = self._records[number]
        owner = "#later" if found is None or promises.token(found) != "#later" else "#last"
        process = self._processes.start(kind, message, owner, now_ms)
        answered: str | None = "done"
        while process.request.kind != END:
            request = process.request.kind
            if request in WRITES:
                number, _ = self._applies(number, self._write(process.request))
            if request == SEND:
                answered = SENT
            now_ms += process.request.pause_ms
            answers = {WORK: handler, SEND: SENT, SLEEP: AWAKE}
            process = self._processes.tell(process, now_ms, answers.get(request, self._records[number]))
        return number, answered if process.error is None else None

    # ── Numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _now_ms(self, environment: Environment) -> int:
        return self.scenario.times_ms[environment.time]

    def _present(self, number: int) -> Record:
        record = self._records[number]
        if record is None:
            raise AssertionError("there is no record")
        return record

    def _record(self, record: Record | None) -> int:
        number = self._records.of(record)
        if number == len(self._owner_bits):
            name = promises.token(record)[1:] if record is not None else ""
            self._owner_bits.append(1 << int(name) if name.isdigit() else 0)
        return number

    def _write(self, request: Request) -> int:
        seen, record = self._record(request.seen), self._record(request.record)
        number = self._writes.of(Write(request.kind, seen, record, request.effects))
        if number == len(self._write_owners):
            self._write_owners.append(self._owner_bits[seen] | self._owner_bits[record])
        return number

    def _delay(self, number: int, answer: int) -> int:
        delayed = self._delayed.get((number, answer))
        if delayed is None:
            worker = self._workers[number]._replace(answer=answer, resting=True)
            delayed = self._delayed[number, answer] = self._workers.of(worker)
        return delayed

    def _abandon(self, number: int) -> int:
        if number not in self._abandoned:
            self._abandoned[number] = self._workers.of(self._workers[number]._replace(abandoned=True))
        return self._abandoned[number]

    def _wake(self, number: int) -> int:
        if number not in self._rested:
            self._rested[number] = self._workers.of(self._workers[number]._replace(resting=False))
        return self._rested[number]

    def _with_fault(self, state: State) -> State:
        number = self._faulty.get(state[0])
        if number is None:
            environment = self._environments[state[0]]
            number = self._environments.of(environment._replace(faults=environment.faults - 1))
            self._faulty[state[0]] = number
        return (number, *state[1:])

    def _letter(self, number: int, event: int) -> int:
        lettered = self._lettered.get((number, event))
        if lettered is None:
            environment = self._environments[number]
            lettered = self._environments.of(environment._replace(lettered=environment.lettered | event))
            self._lettered[number, event] = lettered
        return lettered

    def _under_way(self, state: State, write: int) -> State:
        network = self._networks.of(tuple(sorted((*self._networks.values[state[2]], write))))
        return (state[0], state[1], network, *state[3:])

    # ── What tests ask ────────────────────────────────────────────────────────────────────────────────────────────────

    def at_rest(self, state: State) -> tuple[object, ...] | None:
        """Return the environment, the record and what is under way; None while a process runs."""
        if len(state) > 3:
            return None
        writes = [self._writes[number] for number in self._networks[state[2]]]
        under_way = [(write.kind, self._records[write.seen], self._records[write.record]) for write in writes]
        return self._environments[state[0]], self._records[state[1]], *sorted(under_way, key=repr)

    def conditions(self) -> Iterator[tuple[Record | None, str, Record | None, Record, Record | None]]:
        """Yield every write that met a record: what was there, the kind, what was seen, what is new, what was left."""
        for (before, number), (after, _) in self._applied.items():
            kind, seen, record, _ = self._writes[number]
            yield self._records[before], kind, self._records[seen], self._present(record), self._records[after]

    def tellings(self) -> Iterator[tuple[Process, int, object, Process]]:
        """Yield everything that a process was told: it, its time, what, and the process that it became."""
        for (number, now_ms, answer), told in self._told.items():
            said = self._records[answer] if isinstance(answer, int) else answer
            yield self._nodes[number].process, now_ms, said, self._nodes[told].process

    # ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def describe(self, state: State, label: Label) -> str:
        """Return one line that tells what ``label`` does in ``state``."""
        what, place, detail = label
        now = f"{self._now_ms(self._environments[state[0]]) / 1000:7.1f} s  "
        if what == "is delivered":
            return f"{now}{self.scenario.messages[detail].id} is delivered to {self.scenario.kinds[place].name}"
        if what == "takes place late":
            return f"{now}{self._told_write(detail)} takes place late"
        if place < 0:
            return now + what
        process = self._nodes[self._workers[state[3 + place]].node].process
        who = f"{now}{process.owner} ({process.message.id}, {process.kind.name}): "
        if process.request.kind == END:  # one stands for all that ended alike
            return f"{now}{process.message.id}: its process {what}"
        if what == "handler":
            return who + ("heartbeat" if detail < 0 else f"handler {self.scenario.handler[detail]}")
        if what in ("takes place", "takes place, answer delayed", "is sent again", "is given up", "meets a conflict"):
            refused = what.startswith("takes place") and not self._landing(state[1], detail).written
            by = f", refused by {_told_record(self._records[state[1]])}" if refused else ""
            return f"{who}{self._told_write(detail)} {what}{by}"
        if what in ("learns late", "reads"):
            return f"{who}{what}: {_told_record(self._records[detail])}"
        return who + what

    def _told_write(self, number: int) -> str:
        write = self._writes[number]
        seen = f" over {_told_record(self._records[write.seen])}" if write.kind == SWAP else ""
        return f"{write.kind} {_told_record(self._records[write.record])}{seen}"


def _told_record(record: Record | None) -> str:
    if record is None:
        return "nothing"
    lease = f", lease to {record.lease_ms / 1000} s" if record.lease_ms is not None else ""
    mark = ", dead-lettered" if record.dead_lettered else ""
    return f"[{record.status} of {record.owner}, attempt {record.attempt}{lease}{mark}]"


def _delivery(environment: Environment, delivery: int, tried: int) -> Environment:
    deliveries = environment.deliveries
    return environment._replace(deliveries=(*deliveries[:delivery], tried, *deliveries[delivery + 1 :]))


def _with(state: State, place: int, worker: int) -> State:
    return (*state[: 3 + place], worker, *state[4 + place :])


def _without(state: State, place: int) -> State:
    return (*state[: 3 + place], *state[4 + place :])
