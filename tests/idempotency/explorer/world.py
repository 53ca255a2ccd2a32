"""The states of one key and the steps that lead from each to the next.

A process waits until its request takes place, or gives it up. A request that was given up stays under way: it takes
place later or never. This also covers lost answers, and crashes before or after a request.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from idempotency import stores
from idempotency.record import IN_PROGRESS, QUARANTINED, Record
from tests.idempotency.explorer import promises
from tests.idempotency.explorer.process import WRITES, Machine, Message, Process, Processes, Reply, Request, Word, token

# A delivery, as its transport sees it: how often it was tried, or one of these.
UNSENT: Final = -3
DEAD: Final = -2
"""Its tries are used up: Lambda's OnFailure destination or the queue's own dead-letter queue has it."""
ACKNOWLEDGED: Final = -1


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
    """The place in ``times_ms`` before which so much time passes that no process and no request outlasts it."""
    faults: int = 1
    """How many crashes, losses, late answers, late writes and processes taken for dead, in all."""
    copies: bool = False
    """Whether a transport may take a process for dead that still runs, and deliver again at once."""
    beats: int = 0
    """How many heartbeats are sent."""
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


class Label(NamedTuple):
    """What a step does, and to what."""

    what: str
    place: int = -1
    """Of the worker concerned."""
    detail: object = None


type Step = tuple[Label, Callable[[], State]]


class Broken(Exception):  # noqa: N818 - a promise is broken, not the explorer
    """A step broke a promise of the protocol."""


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
        """How many steps took a key from a process that held it, where clocks differ by more than is allowed."""
        self._reduced = reduced
        self._same: dict[Process, Process] = {}
        self._futures: dict[object, Process] = {}
        self._max_attempts = scenario.machines[0].policy.max_attempts

    def initial(self) -> State:
        scenario = self.scenario
        return State(0, scenario.faults, scenario.beats, (UNSENT,) * len(scenario.messages))

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def steps(self, state: State) -> Iterator[Step]:
        """Yield every step from ``state``: a label, and a function that returns the next state or raises `Broken`."""
        for place, worker in enumerate(state.workers):
            # Steps that affect no other process are equivalent in any order, so one process takes them first.
            if worker.begins:
                begun = worker._replace(begins=False)
                yield from self._worker_steps(_with(state, place, begun), place)
                yield Label("stalls", place), partial(_with, state, place, begun._replace(resting=True))
                return
            # No layer can stop a process that pauses before a call.
            if worker.process.request.kind in ("call", "probe"):
                yield from self._call_steps(state, place)
                return
            ends = worker.process.request.kind == "end" and worker.process.message.fingerprint in state.committed
            if self._reduced and not worker.resting and (ends or worker.process.request.kind == "work"):
                yield from self._worker_steps(state, place)
                return
        for place in range(len(state.workers)):
            yield from self._worker_steps(state, place)
        if len(state.workers) < self.scenario.at_once:
            yield from self._deliveries(state)
        for write in dict.fromkeys(state.under_way):
            if self._lands(state.record, write):  # a refused write makes no difference
                yield Label("takes place late", detail=write), partial(self._late, state, write)
        yield from self._time(state)

    def _worker_steps(self, state: State, place: int) -> Iterator[Step]:
        worker = state.workers[place]
        kind = worker.process.request.kind
        if kind == "work" and not worker.resting:
            yield from self._handler_steps(state, place, worker)
            return
        faulty = state._replace(faults=state.faults - 1)
        if state.faults:
            yield Label("crashes", place), partial(self._crashed, faulty, place)
            if self.scenario.copies and not worker.abandoned and kind != "end":
                yield Label("is taken for dead", place), partial(self._abandoned, faulty, place)
        if worker.resting:
            return
        if worker.late != "nothing":
            yield Label("comes back late", place, worker.late), partial(self._proceed, state, place, worker.late)
        elif kind in WRITES:
            yield from self._write_steps(state, faulty, place, worker)
        elif kind == "end":
            yield Label("acknowledges", place), partial(self._acknowledged, state, place)
        elif kind == "send":
            yield from self._send_steps(state, faulty, place, worker.process.message.fingerprint)

    def _handler_steps(self, state: State, place: int, worker: Worker) -> Iterator[Step]:
        for does in self.scenario.handler:
            yield Label("in the handler", place, does), partial(self._proceed, state, place, does)
        if state.beats and worker.process.claim is not None and self._renews(state, worker):
            beating = state._replace(beats=state.beats - 1)
            yield Label("in the handler", place, "heartbeat"), partial(self._proceed, beating, place, "heartbeat")
        yield Label("handler works on", place), partial(_with, state, place, worker._replace(resting=True))

    def _send_steps(self, state: State, faulty: State, place: int, event: str) -> Iterator[Step]:
        yield Label("dead letter is sent", place), partial(self._proceed, _sent(state, event), place, "sent")
        if state.faults:
            lost = partial(self._proceed, _sent(faulty, event), place, "not sent")
            yield Label("dead letter is sent, answer lost", place), lost
            yield Label("dead letter is refused", place), partial(self._proceed, faulty, place, "not sent")

    def _call_steps(self, state: State, place: int) -> Iterator[Step]:
        faulty = state._replace(faults=state.faults - 1)
        if state.faults:
            yield Label("crashes", place), partial(self._gone, faulty, place)
            yield Label("gets no answer", place), partial(self._proceed, faulty, place, "gave up")
        if state.workers[place].process.request.kind == "probe":
            yield Label("probes", place), partial(self._proceed, state, place, "made" if state.charged else None)
            return
        yield Label("makes its call", place), lambda: self._proceed(_charged(state), place, "made")
        if state.faults:
            yield Label("makes its call and crashes", place), lambda: self._gone(_charged(faulty), place)
            yield Label("makes its call, answer lost", place), lambda: self._proceed(_charged(faulty), place, "gave up")

    def _write_steps(self, state: State, faulty: State, place: int, worker: Worker) -> Iterator[Step]:
        write = worker.process.request
        yield Label("takes place", place, write), lambda: self._proceed(*self._landed(state, write, place))
        if state.faults:
            under_way = _under_way(faulty, write)
            yield Label("takes place, answer delayed", place, write), partial(self._delayed, faulty, write, place)
            yield Label("is sent again", place, write), lambda: under_way
            yield Label("is given up", place, write), partial(self._proceed, under_way, place, "gave up")

    def _deliveries(self, state: State) -> Iterator[Step]:
        running = {worker.delivery for worker in state.workers if not worker.abandoned}
        for delivery, tried in enumerate(state.deliveries):
            if tried == UNSENT or (0 <= tried < self.scenario.tries and delivery not in running):
                for machine in self.scenario.machines:
                    yield (
                        Label("is delivered", detail=(delivery, machine.name)),
                        partial(self._delivered, state, delivery, machine),
                    )

    def _time(self, state: State) -> Iterator[Step]:
        found, next_time = state.record, state.time + 1
        if found is not None and found.expiry is not None and found.expiry * 1000 < self._now_ms(state):
            yield Label("DynamoDB deletes the record"), partial(self._deleted, state, found)
        if next_time < len(self.scenario.times_ms) and not (state.workers and next_time == self.scenario.leap):
            yield Label("time passes"), partial(self._time_passed, state)

    # ── What processes do ─────────────────────────────────────────────────────────────────────────────────────────────

    def _delivered(self, state: State, delivery: int, machine: Machine) -> State:
        message = self.scenario.messages[delivery]
        now_ms = self._now_ms(state) + machine.clock_ms
        process = self.processes.start(machine, message, _fresh_owner(state), now_ms)
        worker = Worker(process, delivery, begins=self._reduced)
        tried = _delivery(state, delivery, max(state.deliveries[delivery], 0) + 1)
        return tried._replace(workers=(*state.workers, worker))

    def _proceed(self, state: State, place: int, reply: Reply) -> State:
        worker = state.workers[place]
        now_ms = self._now_ms(state) + worker.process.machine.clock_ms
        process = self._judged(self.processes.proceed(worker.process, now_ms, reply))
        if process.request.kind == "end" and (process.answer is None or worker.abandoned):
            return self._gone(state, place)
        return _with(state, place, worker._replace(process=process, late="nothing"))

    def _judged(self, process: Process) -> Process:
        """Return ``process``, or another one that has the same future."""
        if process not in self._same:
            if (promise := promises.broken_by_process(process)) is not None:
                raise Broken(promise)
            self._same[process] = self._futures.setdefault(process.future, process) if self._reduced else process
        return self._same[process]

    def _renews(self, state: State, worker: Worker) -> bool:
        now_ms = self._now_ms(state) + worker.process.machine.clock_ms
        record = self.processes.proceed(worker.process, now_ms, "heartbeat").request.record
        return record is not None and (record.lease_ms or 0) > worker.process.held_ms

    def _delayed(self, state: State, write: Request, place: int) -> State:
        landed, _, answer = self._landed(state, write, place)
        return _with(landed, place, landed.workers[place]._replace(late=answer, resting=True))

    def _abandoned(self, state: State, place: int) -> State:
        worker = state.workers[place]
        return self._undelivered(_with(state, place, worker._replace(abandoned=True)), worker.delivery)

    def _acknowledged(self, state: State, place: int) -> State:
        worker = state.workers[place]
        event = worker.process.message.fingerprint
        after = _without(_delivery(state, worker.delivery, ACKNOWLEDGED), place)
        messages = self.scenario.messages
        due = any(tried >= 0 and messages[n].fingerprint == event for n, tried in enumerate(after.deliveries))
        if not due and event not in after.committed | after.dead_lettered:
            raise Broken(promises.NOTHING_LOST)
        return after

    def _crashed(self, state: State, place: int) -> State:
        worker = state.workers[place]
        if worker.process.request.kind in WRITES and worker.late == "nothing":
            state = _under_way(state, worker.process.request)
        return self._gone(state, place)

    def _gone(self, state: State, place: int) -> State:
        """Remove a process; its transport delivers again, unless it has long done so."""
        worker = state.workers[place]
        after = _without(state, place)
        return after if worker.abandoned else self._undelivered(after, worker.delivery)

    def _undelivered(self, state: State, delivery: int) -> State:
        if state.deliveries[delivery] < self.scenario.tries:
            return state
        return _sent(_delivery(state, delivery, DEAD), self.scenario.messages[delivery].fingerprint)

    # ── What the store and time do ────────────────────────────────────────────────────────────────────────────────────

    def _lands(self, found: Record | None, write: Request) -> bool:
        kind, record, seen, _ = write
        assert record is not None
        if kind == "put if absent":
            return stores.may_put_if_absent(found)
        if kind == "compare and swap":
            assert seen is not None
            return stores.may_compare_and_swap(found, seen)
        return stores.may_update_if_owner(found, record)

    def _late(self, state: State, write: Request) -> State:
        position = state.under_way.index(write)
        rest = state.under_way[:position] + state.under_way[position + 1 :]
        return self._landed(state._replace(under_way=rest), write, -1)[0]

    def _landed(self, state: State, write: Request, place: int) -> tuple[State, int, Record | None]:
        """Return ``state`` after ``write`` took place or was refused, ``place``, and what is now under the key."""
        old, new, now_ms = state.record, write.record, self._now_ms(state)
        if new is None or not self._lands(old, write):
            return state, place, old
        if old is not None and old.status == IN_PROGRESS and token(old) != token(new):
            self._require_dead(token(old), state, new)
        promise = promises.broken_by_write(old, new, effects=write.effects, max_attempts=self._max_attempts)
        if promise is not None:
            raise Broken(promise)
        after = state._replace(record=new)
        if write.effects:
            if not state.charged and self.scenario.machines[0].calls:
                raise Broken(promises.ONE_CALL)
            if now_ms <= state.window_ms:
                raise Broken(promises.ONE_EFFECT)
            committed = state.committed | {new.fingerprint or ""}
            after = after._replace(committed=committed, window_ms=(new.expiry or 0) * 1000)
        return after, place, new

    def _require_dead(self, owner: str, state: State, taker: Record | None) -> None:
        """Require that no process still holds the key by its own clock."""
        for process in (worker.process for worker in state.workers):
            same = taker is not None and taker.delivery == process.message.id
            allowed = same and process.machine.policy.same_delivery_takes_over
            if process.owner != owner or allowed or process.held_ms < self._now_ms(state) + process.machine.clock_ms:
                continue
            if self.scenario.skew_is_bounded:
                raise Broken(promises.LIVE_CLAIM)
            self.overlaps += 1

    def _deleted(self, state: State, found: Record) -> State:
        if found.status == QUARANTINED:
            raise Broken(promises.POISON_STAYS)
        if found.status == IN_PROGRESS:
            self._require_dead(token(found), state, None)
        return state._replace(record=None)

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
                after = _with(after, place, worker._replace(resting=False))
        return after

    def _now_ms(self, state: State) -> int:
        return self.scenario.times_ms[state.time]

    # ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def describe(self, state: State, label: Label) -> str:
        """Return one line that says what a step does in ``state``."""
        words = " ".join(filter(None, (self._words_of(label.detail), label.what)))
        if label.place >= 0:
            process = state.workers[label.place].process
            words = f"{process.owner} ({process.message.id}, {process.machine.name}): {words}"
        return f"{self._now_ms(state) / 1000:7.1f} s  {words}"

    def _words_of(self, detail: object) -> str:
        match detail:
            case Request(kind, record, seen):
                return f"{kind} {self._words_of(record)}" + (f" over {self._words_of(seen)}" if seen else "")
            case Record(status=status, owner=owner, attempt=attempt, lease_ms=lease_ms):
                lease = "" if lease_ms is None else f", lease to {lease_ms / 1000} s"
                return f"[{status} of {owner}, attempt {attempt}{lease}]"
            case int(delivery), machine:
                return f"{self.scenario.messages[delivery].id} on {machine}"
            case _:
                return "" if detail is None else str(detail)


def _fresh_owner(state: State) -> str:
    """Return the lowest token that this state does not contain; it stands for a random one."""
    records = [state.record, *(worker.late for worker in state.workers)]
    records += [record for write in state.under_way for record in (write.record, write.seen)]
    used = {token(record) for record in records if isinstance(record, Record)}
    used = used.union(*(worker.process.owners for worker in state.workers))
    return next(owner for number in range(1, 99) if (owner := f"#{number}") not in used)


def _under_way(state: State, write: Request) -> State:
    return state._replace(under_way=(*state.under_way, write))


def _charged(state: State) -> State:
    if state.charged:
        raise Broken(promises.ONE_CALL)
    return state._replace(charged=True)


def _sent(state: State, event: str) -> State:
    return state._replace(dead_lettered=state.dead_lettered | {event})


def _delivery(state: State, delivery: int, tried: int) -> State:
    return state._replace(deliveries=(*state.deliveries[:delivery], tried, *state.deliveries[delivery + 1 :]))


def _with(state: State, place: int, worker: Worker) -> State:
    return state._replace(workers=(*state.workers[:place], worker, *state.workers[place + 1 :]))


def _without(state: State, place: int) -> State:
    return state._replace(workers=state.workers[:place] + state.workers[place + 1 :])
