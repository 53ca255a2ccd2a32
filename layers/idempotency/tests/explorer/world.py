"""The states of one key and the steps that lead from each to the next.

A process waits until its request takes place, or gives it up. A request that was given up stays
under way: it takes place later or never. This also covers lost answers, and crashes before or after
a request.

A delivery comes to a new sandbox or to one that remembers something. An operator may remove the
record: what is asked for after that, by a replay or a redrive, must take effect again.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from carride_idempotency import stores
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from tests.explorer.process import (
    WRITES,
    Machine,
    Message,
    Process,
    Processes,
    Reply,
    Request,
    Sandbox,
    Word,
    token,
)
from tests.explorer.promises import (
    Broken,
    require,
    require_of_process,
    require_of_write,
)

# A delivery, as its transport sees it: how often it was tried, or one of these.
UNSENT: Final = -3
DEAD: Final = -2
"""Its tries are used up: Lambda's OnFailure destination or the queue's own dead-letter queue has
it."""
ACKNOWLEDGED: Final = -1

WORK: Final = frozenset({"early work", "work"})
"""What the handler does before and after its external call."""
_ONE_CALL: Final = "an external call is made once, and before its operation is completed"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The bounds of one world."""

    about: str
    machines: tuple[Machine, ...]
    messages: tuple[Message, ...] = (Message("D1"), Message("D2"))
    """What may be delivered; those with equal fingerprints are deliveries of one event."""
    tries: int = 2
    """How often the transport tries a delivery."""
    at_once: int = 2
    """How many processes may run at the same time."""
    times_ms: tuple[int, ...] = (0, 3_500, 7_500)
    """When something may happen, by the store's clock."""
    leap: int | None = None
    """The place in ``times_ms`` before which so much time passes that no process and no request
    outlasts it."""
    faults: int = 1
    """How many crashes, losses, late answers, late writes and processes taken for dead, in all."""
    copies: bool = False
    """Whether a transport may take a process for dead that still runs, and deliver again at
    once."""
    beats: int = 0
    """How many heartbeats are sent."""
    removals: int = 0
    """How often an operator removes the record."""
    handler: tuple[Word, ...] = ("returns", "raises")

    @property
    def skew_is_bounded(self) -> bool:
        """Whether the machines' clocks differ by no more than their policies allow."""
        offsets_ms = [0, *(machine.clock_ms for machine in self.machines)]
        return max(offsets_ms) - min(offsets_ms) <= self.machines[0].policy.clock_skew * 1000


class Worker(NamedTuple):
    process: Process
    delivery: int
    abandoned: bool = False
    """Its transport takes it for dead and does not listen to it any more."""
    resting: bool = False
    """Nothing happens to it before time passes, unless it crashes."""
    begins: bool = False
    """It has made its first request just now."""
    late: Reply = "nothing"
    """The answer that is on its way to it."""


class State(NamedTuple):
    """Everything that the next steps depend on."""

    time: int
    faults: int
    beats: int
    deliveries: tuple[int, ...]
    dead_lettered: frozenset[str] = frozenset()
    """The fingerprints of the events in a dead-letter queue."""
    committed: frozenset[str] = frozenset()
    """The fingerprints of the events that have taken effect."""
    window_ms: int = -1
    """Until when the last effect forbids another."""
    record: Record | None = None
    under_way: tuple[Request, ...] = ()
    """Writes that were given up, and may still take place."""
    workers: tuple[Worker, ...] = ()
    charged: bool = False
    """Whether the external call was made. The other system does not recognise keys."""
    sandboxes: tuple[Sandbox, ...] = ()
    """Those in which nothing runs and that remember something; others are like new ones."""
    removals: int = 0
    """How often an operator may still remove the record."""
    answered: frozenset[int] = frozenset()
    """The deliveries that may count on an effect that took place before the record was removed:
    they were asked for before that."""

    def having(self, place: int, *workers: Worker) -> "State":
        """Return a state with another worker in a place, or with none."""
        return self._replace(workers=(*self.workers[:place], *workers, *self.workers[place + 1 :]))

    def tried(self, delivery: int, times: int) -> "State":
        return self._replace(
            deliveries=(*self.deliveries[:delivery], times, *self.deliveries[delivery + 1 :])
        )

    def dead_lettering(self, event: str) -> "State":
        return self._replace(dead_lettered=self.dead_lettered | {event})

    def giving_up(self, write: Request) -> "State":
        return self._replace(under_way=(*self.under_way, write))

    def leaving(self, sandbox: Sandbox) -> "State":
        """Return a state in which nothing runs in a sandbox any more."""
        if not sandbox.cache:
            return self
        return self._replace(sandboxes=tuple(sorted({*self.sandboxes, sandbox})))

    def charging(self) -> "State":
        require(not self.charged, _ONE_CALL)
        return self._replace(charged=True)


type Step = tuple[str, int | Request | None, Callable[[], State]]
"""What happens; to the worker in which place, or to which request; and what makes the next
state."""


class World:
    """The steps of one scenario.

    Args:
        scenario: its bounds.
        reduced: omit equivalent orders of steps, and merge processes with equal futures.
    """

    def __init__(self, scenario: Scenario, *, reduced: bool = True) -> None:
        self.scenario = scenario
        self.processes = Processes()
        self.overlaps = 0
        """How many steps took a key from a process that held it, where clocks differ by more than
        is allowed."""
        self._reduced = reduced
        self._same: dict[Process, Process] = {}
        self._futures: dict[object, Process] = {}

    def initial(self) -> State:
        scenario = self.scenario
        unsent = (UNSENT,) * len(scenario.messages)
        return State(0, scenario.faults, scenario.beats, unsent, removals=scenario.removals)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────

    def steps(self, state: State) -> Iterator[Step]:
        for place, worker in enumerate(state.workers):
            # Steps that affect no other process are equivalent in any order, so one process takes
            # them first.
            kind = worker.process.request.kind
            if worker.begins:
                begun = worker._replace(begins=False)
                yield from self._worker_steps(state.having(place, begun), place)
                yield (
                    "stalls before",
                    place,
                    partial(state.having, place, begun._replace(resting=True)),
                )
                return
            ends = kind == "end" and worker.process.message.fingerprint in state.committed
            alone = self._reduced and not worker.resting and (ends or kind in WORK)
            # No layer can stop a process that pauses before a call.
            if alone or kind in ("call", "probe"):
                yield from self._worker_steps(state, place)
                return
        for place in range(len(state.workers)):
            yield from self._worker_steps(state, place)
        if len(state.workers) < self.scenario.at_once:
            yield from self._deliveries(state)
        for write in dict.fromkeys(state.under_way):
            if _lands(state.record, write):  # a refused write makes no difference
                yield "takes place late", write, partial(self._late, state, write)
        yield from self._removals(state)
        next_time = state.time + 1
        if next_time < len(self.scenario.times_ms) and not (
            state.workers and next_time == self.scenario.leap
        ):
            yield "time passes", None, partial(self._time_passed, state)

    def _removals(self, state: State) -> Iterator[Step]:
        """Yield the ends of the record: an operator removes it unless it is a claim, or its TTL."""
        record = state.record
        if record is None:
            return
        # An operator is slower than a request that was given up.
        if state.removals and record.status != IN_PROGRESS and not state.under_way:
            yield "an operator removes the record", None, partial(self._removed, state)
        if record.expiry is not None and record.expiry * 1000 < self._now_ms(state):
            yield "DynamoDB deletes the record", None, partial(self._deleted, state)

    def _deliveries(self, state: State) -> Iterator[Step]:
        running = {worker.delivery for worker in state.workers if not worker.abandoned}
        for delivery, tried in enumerate(state.deliveries):
            comes_again = 0 <= tried < self.scenario.tries and delivery not in running
            if not comes_again and not (tried == UNSENT and self._may_be_sent(state, delivery)):
                continue
            for machine in self.scenario.machines:
                what = f"{self.scenario.messages[delivery].id} on {machine.name} is delivered"
                yield what, None, partial(self._delivered, state, delivery, machine)
                for sandbox in state.sandboxes:
                    if sandbox.machine == machine.name:
                        yield (
                            f"{what} to a warm sandbox",
                            None,
                            partial(self._delivered, state, delivery, machine, sandbox),
                        )

    def _may_be_sent(self, state: State, delivery: int) -> bool:
        """Return whether a message may be sent that was not sent yet.

        An operator redrives a letter once its key is free.
        """
        message = self.scenario.messages[delivery]
        if message.origin != "redrive":
            return True
        is_free = state.record is None or state.record.status in (COMPLETED, FAILED)
        return is_free and message.fingerprint in state.dead_lettered

    def _worker_steps(self, state: State, place: int) -> Iterator[Step]:
        worker = state.workers[place]
        kind = worker.process.request.kind
        faulty = state._replace(faults=state.faults - 1)
        if kind in WORK and not worker.resting:
            for does in self.scenario.handler:
                yield does, place, partial(self._proceed, state, place, does)
            if state.beats and worker.process.claim is not None and self._renews(state, worker):
                beating = state._replace(beats=state.beats - 1)
                yield (
                    "sends a heartbeat",
                    place,
                    partial(self._proceed, beating, place, "heartbeat"),
                )
            yield "goes on", place, partial(state.having, place, worker._replace(resting=True))
            return
        if state.faults:
            yield "crashes", place, partial(self._crashed, faulty, place)
            if self.scenario.copies and not worker.abandoned and kind != "end":
                yield "is taken for dead", place, partial(self._abandoned, faulty, place)
        if not worker.resting:
            if worker.late != "nothing":
                yield "is answered late", place, partial(self._proceed, state, place, worker.late)
            elif kind == "end":
                yield "is acknowledged", place, partial(self._acknowledged, state, place)
                if state.faults and worker.process.cache:
                    yield "is not heard", place, partial(self._left, faulty, place)
            else:
                yield from self._request_steps(state, faulty, place, worker.process)

    def _request_steps(
        self, state: State, faulty: State, place: int, process: Process
    ) -> Iterator[Step]:
        """Yield the ways of a request, a dead letter or a call.

        It takes place, and other things if a fault is left.
        """
        request = process.request
        event = process.message.fingerprint
        faults = state.faults
        match request.kind:
            case "send":
                yield (
                    "takes place",
                    place,
                    partial(self._proceed, state.dead_lettering(event), place, "sent"),
                )
                if faults:
                    lost = faulty.dead_lettering(event)
                    yield (
                        "takes place, answer lost",
                        place,
                        partial(self._proceed, lost, place, "not sent"),
                    )
                    yield "is refused", place, partial(self._proceed, faulty, place, "not sent")
            case "probe":
                yield (
                    "takes place",
                    place,
                    partial(self._proceed, state, place, "made" if state.charged else None),
                )
                if faults:
                    yield "gets no answer", place, partial(self._proceed, faulty, place, "gave up")
            case "call":
                yield "takes place", place, lambda: self._proceed(state.charging(), place, "made")
                if faults:
                    yield "gets no answer", place, partial(self._proceed, faulty, place, "gave up")
                    yield (
                        "takes place and crashes",
                        place,
                        lambda: self._crashed(faulty.charging(), place),
                    )
                    yield (
                        "takes place, answer lost",
                        place,
                        lambda: self._proceed(faulty.charging(), place, "gave up"),
                    )
            case _:
                yield (
                    "takes place",
                    place,
                    lambda: self._proceed(*self._landed(state, request, place)),
                )
                if faults:
                    under_way = faulty.giving_up(request)
                    yield (
                        "takes place, answer delayed",
                        place,
                        partial(self._delayed, faulty, request, place),
                    )
                    yield "is sent again", place, lambda: under_way
                    yield "is given up", place, partial(self._proceed, under_way, place, "gave up")

    # ── What processes do ─────────────────────────────────────────────────────────────────────────

    def _delivered(
        self, state: State, delivery: int, machine: Machine, sandbox: Sandbox | None = None
    ) -> State:
        message = self.scenario.messages[delivery]
        now_ms = self._now_ms(state) + machine.clock_ms
        cache = () if sandbox is None else sandbox.cache
        process = self.processes.start(machine, message, _fresh_owner(state), now_ms, cache)
        # A letter is redriven while its key is free; at its first request it may be held.
        begins = self._reduced and message.origin != "redrive"
        worker = Worker(process, delivery, begins=begins)
        tried = state.tried(delivery, max(state.deliveries[delivery], 0) + 1)
        if message.origin == "redrive" and state.deliveries[delivery] == UNSENT:
            tried = tried._replace(dead_lettered=state.dead_lettered - {message.fingerprint})
        idle = tuple(each for each in state.sandboxes if each != sandbox)
        return tried._replace(workers=(*state.workers, worker), sandboxes=idle)

    def _proceed(self, state: State, place: int, reply: Reply) -> State:
        worker = state.workers[place]
        now_ms = self._now_ms(state) + worker.process.machine.clock_ms
        process = self._judged(self.processes.proceed(worker.process, now_ms, reply))
        after = state.having(place, worker._replace(process=process, late="nothing"))
        if process.request.kind == "end" and (process.answer is None or worker.abandoned):
            return self._left(after, place)
        return after

    def _judged(self, process: Process) -> Process:
        """Return ``process``, or another one that has the same future."""
        if process not in self._same:
            require_of_process(process)
            self._same[process] = (
                self._futures.setdefault(process.future, process) if self._reduced else process
            )
        return self._same[process]

    def _renews(self, state: State, worker: Worker) -> bool:
        now_ms = self._now_ms(state) + worker.process.machine.clock_ms
        record = self.processes.proceed(worker.process, now_ms, "heartbeat").request.record
        return record is not None and (record.lease_ms or 0) > worker.process.held_ms

    def _delayed(self, state: State, write: Request, place: int) -> State:
        landed, _, answer = self._landed(state, write, place)
        return landed.having(place, landed.workers[place]._replace(late=answer, resting=True))

    def _abandoned(self, state: State, place: int) -> State:
        worker = state.workers[place]
        return self._undelivered(
            state.having(place, worker._replace(abandoned=True)), worker.delivery
        )

    def _acknowledged(self, state: State, place: int) -> State:
        worker = state.workers[place]
        event = worker.process.message.fingerprint
        after = state.tried(worker.delivery, ACKNOWLEDGED).having(place)
        after = after.leaving(_sandbox_of(worker))
        messages = self.scenario.messages
        due = any(
            tried >= 0 and messages[n].fingerprint == event
            for n, tried in enumerate(after.deliveries)
        )
        is_answered = worker.delivery in after.answered
        kept = due or is_answered or event in after.committed | after.dead_lettered
        require(kept, "no event is acknowledged that is neither done, nor dead-lettered, nor due")
        return after

    def _crashed(self, state: State, place: int) -> State:
        worker = state.workers[place]
        if worker.process.request.kind in WRITES and worker.late == "nothing":
            state = state.giving_up(worker.process.request)
        return self._gone(state, place)

    def _left(self, state: State, place: int) -> State:
        """Remove a process that has raised or was not heard; its sandbox stays."""
        return self._gone(state.leaving(_sandbox_of(state.workers[place])), place)

    def _gone(self, state: State, place: int) -> State:
        """Remove a process; its transport delivers again, unless it has long done so."""
        worker = state.workers[place]
        after = state.having(place)
        return after if worker.abandoned else self._undelivered(after, worker.delivery)

    def _undelivered(self, state: State, delivery: int) -> State:
        if state.deliveries[delivery] < self.scenario.tries:
            return state
        return state.tried(delivery, DEAD).dead_lettering(
            self.scenario.messages[delivery].fingerprint
        )

    # ── What the store and time do ────────────────────────────────────────────────────────────────

    def _late(self, state: State, write: Request) -> State:
        position = state.under_way.index(write)
        rest = state.under_way[:position] + state.under_way[position + 1 :]
        return self._landed(state._replace(under_way=rest), write, -1)[0]

    def _landed(self, state: State, write: Request, place: int) -> tuple[State, int, Record | None]:
        """Return the next state after a write took place or was refused, and the key's record."""
        old = state.record
        new = write.record
        scenario = self.scenario
        if new is None or not _lands(old, write):
            return state, place, old
        if old is not None and old.status == IN_PROGRESS and token(old) != token(new):
            self._require_dead(token(old), state, new)
        max_attempts = scenario.machines[0].policy.max_attempts
        require_of_write(old, new, effects=write.effects, max_attempts=max_attempts)
        after = state._replace(record=new)
        if write.effects:
            require(state.charged or not scenario.machines[0].calls, _ONE_CALL)
            require(
                self._now_ms(state) > state.window_ms, "at most one effect is committed in a window"
            )
            committed = state.committed | {new.fingerprint or ""}
            after = after._replace(committed=committed, window_ms=(new.expiry or 0) * 1000)
        return after, place, new

    def _require_dead(self, owner: str, state: State, taker: Record | None) -> None:
        """Require that no process still holds the key by its own clock."""
        for process in (worker.process for worker in state.workers):
            same = taker is not None and taker.delivery == process.message.id
            allowed = same and process.machine.policy.same_delivery_takes_over
            if (
                process.owner != owner
                or allowed
                or process.held_ms < self._now_ms(state) + process.machine.clock_ms
            ):
                continue
            require(not self.scenario.skew_is_bounded, "a live claim is not taken over")
            self.overlaps += 1

    def _deleted(self, state: State) -> State:
        found = state.record
        assert found is not None
        require(found.status != QUARANTINED, "a quarantined key is never forgotten")
        if found.status == IN_PROGRESS:
            self._require_dead(token(found), state, None)
        return state._replace(record=None)

    def _removed(self, state: State) -> State:
        """Remove the record. What took effect before answers the deliveries of before only."""
        answered = {
            delivery
            for delivery, message in enumerate(self.scenario.messages)
            if message.fingerprint in state.committed and state.deliveries[delivery] != UNSENT
        }
        return state._replace(
            record=None,
            committed=frozenset(),
            window_ms=-1,
            removals=state.removals - 1,
            answered=state.answered | answered,
        )

    def _time_passed(self, state: State) -> State:
        now_ms = self.scenario.times_ms[state.time + 1]
        window_ms = state.window_ms if state.window_ms >= now_ms else -1
        after = state._replace(time=state.time + 1, window_ms=window_ms)
        if after.time == self.scenario.leap:
            after = after._replace(under_way=())
        for place, worker in reversed([*enumerate(state.workers)]):
            deadline_ms = worker.process.deadline_ms
            if deadline_ms is not None and now_ms + worker.process.machine.clock_ms > deadline_ms:
                after = self._crashed(after, place)
            elif worker.resting:
                after = after.having(place, worker._replace(resting=False))
        return after

    def _now_ms(self, state: State) -> int:
        return self.scenario.times_ms[state.time]

    def describe(self, state: State, what: str, subject: int | Request | None) -> str:
        """Return one line that says what a step does in ``state``."""
        words = what
        if isinstance(subject, int):
            process = state.workers[subject].process
            who = f"{process.owner} ({process.message.id}, {process.machine.name})"
            words = f"{who}: {process.request} {what}"
        elif subject:
            words = f"{subject} {what}"
        return f"{self._now_ms(state) / 1000:7.1f} s  {words}"


def _lands(found: Record | None, write: Request) -> bool:
    kind, record, seen, _ = write
    assert record is not None
    if kind == "put if absent":
        return stores.may_put_if_absent(found)
    if kind == "compare and swap":
        assert seen is not None
        return stores.may_compare_and_swap(found, seen)
    return stores.may_update_if_owner(found, record)


def _sandbox_of(worker: Worker) -> Sandbox:
    return Sandbox(worker.process.machine.name, worker.process.cache)


def _fresh_owner(state: State) -> str:
    """Return the lowest token that this state does not contain; it stands for a random one."""
    records = [state.record, *(worker.late for worker in state.workers)]
    records += [record for write in state.under_way for record in (write.record, write.seen)]
    used = {token(record) for record in records if isinstance(record, Record)}
    used = used.union(*(worker.process.owners for worker in state.workers))
    caches = [each.cache for each in state.sandboxes]
    caches += [worker.process.cache for worker in state.workers]
    used = used.union(token(record) for cache in caches for _, _, record in cache)
    return next(owner for number in range(1, 99) if (owner := f"#{number}") not in used)


class Result(NamedTuple):
    """What a search found. It is complete unless a promise was broken."""

    visited: Collection[State]
    outcomes: frozenset[str]
    """What became of deliveries, in any state."""
    overlaps: int
    """How many steps took a key from a process that held it."""
    timeline: str | None
    """The steps to a broken promise; None if there is none."""


def explore(scenario: Scenario, *, reduced: bool = True) -> Result:
    """Visit the states of ``scenario`` breadth-first, so that a counterexample is shortest."""
    world = World(scenario, reduced=reduced)
    came_from: dict[State, State | None] = {world.initial(): None}
    frontier = [world.initial()]
    timeline: list[str] = []
    try:
        while frontier:
            reached: list[State] = []
            for state in frontier:
                for what, subject, take in world.steps(state):  # noqa: B007 - read where a promise is broken
                    after = take()
                    if after not in came_from:
                        came_from[after] = state
                        reached.append(after)
            frontier = reached
    except Broken as broken:
        timeline = [world.describe(state, what, subject), f"BROKEN: {broken}"]
        while (before := came_from[state]) is not None:
            step = next(step for step in world.steps(before) if step[2]() == state)
            timeline.insert(0, world.describe(before, *step[:2]))
            state = before
    return Result(
        came_from.keys(),
        frozenset(world.processes.outcomes),
        world.overlaps,
        "\n".join(timeline) or None,
    )
