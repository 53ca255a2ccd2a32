"""A state machine that drives consumers over a real store through every kind of bad luck, one store step at a time.

Each worker is a thread that runs a consumer's Lambda handler and stops before every step on the store and inside the
handler's work; the rules let one of them go on, by one step. What must hold is kept beside it by a model that knows
nothing of the protocol: which claims were handed out, and what was seen committed.
"""

import contextlib
import enum
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from idempotency import Consumer, Operation, PermanentError, Policy, observation
from idempotency.effects import Effect
from idempotency.errors import RetryableError, StoreUnavailableError
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from idempotency.stores import Store
from idempotency.testing import DeadLetterBox, Invocation, ManualClock
from tests.stores.backends import Backend, Opener, let_pass

LEASE_S: Final = 30
SKEW_S: Final = 1
MAX_ATTEMPTS: Final = 3
WINDOW_S: Final = 30 * 86_400
BEYOND_WINDOW_S: Final = WINDOW_S + 86_400
WORKERS: Final = 3
_PATIENCE_S: Final = 60.0


class Fault(enum.Enum):
    """What becomes of one step on the store."""

    NONE = "it takes place"
    SENT_TWICE = "its answer is lost, and it is sent again"
    ANSWER_LOST = "it takes place, and its caller never hears of it"
    REQUEST_LOST = "it never takes place"
    IN_FLIGHT = "its caller gives it up, and it takes place later"


LUCKY: Final = (Fault.NONE, Fault.SENT_TWICE)
FAULTS: Final = st.sampled_from([*[Fault.NONE] * 11, *Fault])
NUMBERS: Final = st.integers(0, WORKERS - 1)


class Turn(enum.Enum):
    """What a worker does inside the handler's work."""

    SUCCEED = "return"
    FAIL = "raise"
    GIVE_UP = "raise a permanent error"
    HEARTBEAT = "renew the lease, and go on"


ENDS: Final = {
    Turn.SUCCEED: (COMPLETED,),
    Turn.FAIL: (FAILED, QUARANTINED),
    Turn.GIVE_UP: (QUARANTINED,),
}
"""What becomes of a key whose owner ends so in time."""


class Killed(BaseException):
    """The process stops, wherever it is."""


class Worker:
    """One delivery after another, each in a thread of its own that moves only when it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.where = "idle"
        self.key = ""
        self.delivery: str | None = None
        """The delivery that it works on."""
        self.claim: Claim | None = None
        self.outcome: str | None = None
        """How the last delivery ended, if it was acknowledged."""
        self._error: BaseException | None = None
        self._command: Fault | Turn | None = None
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)

    def start(self, work: Callable[[], str]) -> None:
        """Begin, and stop before the first step."""
        self.outcome = None

        def run() -> None:
            try:
                self.outcome = work()
            except (Killed, RideError, UselessError, RetryableError):
                pass  # the delivery comes again
            except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
                self._error = error
            self.where = "idle"
            self.claim = None
            self._stopped.release()

        threading.Thread(target=run, name=self.name, daemon=True).start()
        self._wait()

    def stop(self, where: str) -> Any:
        """Wait for the next command; called in the worker's own thread."""
        self.where = where
        self._stopped.release()
        self._go.acquire()
        if self._command is None:
            raise Killed
        return self._command

    def go_on(self, command: Fault | Turn | None) -> None:
        """Let the worker do one thing (None: die), and wait until it stops again."""
        self._command = command
        self._go.release()
        self._wait()

    def _wait(self) -> None:
        assert self._stopped.acquire(timeout=_PATIENCE_S), f"{self.name} hangs at {self.where}"
        if self._error is not None:
            raise self._error


class Claim:
    """What the model knows of a claim that a worker was given."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.lease_left_s = LEASE_S

    @property
    def is_live(self) -> bool:
        """Whether nobody else may hold the key."""
        return self.lease_left_s + SKEW_S > 0


class RideError(Exception):
    """A handler's own failure."""


class UselessError(PermanentError):
    """A handler's failure that no retry can help."""


class SteppedStore:
    """A store that asks its worker for permission, and learns what is to become of each step."""

    def __init__(self, store: Store, worker: Worker, in_flight: list[Callable[[], object]]) -> None:
        self.transactional = store.transactional
        self.effect_writer = store.effect_writer
        self._store = store
        self._worker = worker
        self._in_flight = in_flight

    def insert(self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None) -> Record:
        """Insert, when it is this worker's turn."""
        return self._step(lambda: self._store.insert(record, effects, until_ms=until_ms))

    def swap(
        self, seen: Record, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Swap, when it is this worker's turn."""
        return self._step(lambda: self._store.swap(seen, record, effects, until_ms=until_ms))

    def advance(self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None) -> Record | None:
        """Advance, when it is this worker's turn."""
        return self._step(lambda: self._store.advance(record, effects, until_ms=until_ms))

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Read, when it is this worker's turn."""
        return self._step(lambda: self._store.read(key, until_ms=until_ms))

    def _step[T](self, step: Callable[[], T]) -> T:
        fault = self._worker.stop("store")
        if fault is Fault.REQUEST_LOST:
            raise StoreUnavailableError("the request was lost")
        if fault is Fault.IN_FLIGHT:
            self._in_flight.append(step)
            raise StoreUnavailableError("given up")
        answer = step()
        if fault is Fault.ANSWER_LOST:
            raise StoreUnavailableError("the answer was lost")
        return step() if fault is Fault.SENT_TWICE else answer


class Known(NamedTuple):
    """What the model has seen of one key since it was last forgotten or released."""

    delivered: bool = False
    status: str | None = None
    attempt: int = 0
    result: str | None = None
    charges_before: int = 0


_runs: Final = itertools.count(1)


class ProtocolMachine(RuleBasedStateMachine):
    """Deliveries, commits, failures, heartbeats, takeovers, crashes, lost answers and time, in any order."""

    opener: Opener

    def __init__(self) -> None:
        super().__init__()
        self._open = contextlib.ExitStack()
        self.clock = ManualClock()
        self.backend: Backend = self._open.enter_context(self.opener(self.clock))
        self.box = DeadLetterBox()
        self.in_flight: list[Callable[[], object]] = []
        self.workers = [Worker(f"worker-{number}") for number in range(WORKERS)]
        self.operator = self._consumer(self.backend.store, atomic=False)
        self.keys: list[str] = []
        self.known: dict[str, Known] = {}
        self.owed: dict[str, list[str]] = {}
        """The deliveries that were not acknowledged: their transport delivers them again."""
        self.attempts: dict[tuple[str, int], str] = {}
        self.atomic: set[int] = set()
        self.touched = False
        """Whether the store may have changed since it was checked."""

    def _consumer(self, store: Store, *, atomic: bool) -> Consumer:
        policy = Policy(
            lease=LEASE_S, clock_skew=SKEW_S, max_attempts=MAX_ATTEMPTS, window=WINDOW_S, warm_cache=0, atomic=atomic
        )
        return Consumer(
            "history",
            store,
            key="detail.id",
            policy=policy,
            dead_letters=self.box,
            region="eu-west-1",
            clock=self.clock,
            sleep=self.clock.sleep,
            jitter=lambda: 0.5,
        )

    @initialize(keys=st.sampled_from([1, 1, 1, 2]), atomic=st.sets(st.integers(0, WORKERS - 1), max_size=WORKERS - 1))
    def choose(self, keys: int, atomic: set[int]) -> None:
        """One key or two; and where the store has transactions, claiming and atomic consumers may share a key."""
        self.keys = ["order_01", "order_02"][:keys]
        self.known = dict.fromkeys(self.keys, Known())
        self.owed = {key: [] for key in self.keys}
        if self.backend.store.transactional:
            self.atomic = atomic

    # ── What happens ──────────────────────────────────────────────────────────────────────────────────────────────────
    # Each rule moves one worker by one step: does what it says where the worker can, and else what brings it nearer.
    # A rule that was often impossible would end most sequences before anything could happen.

    @rule(number=NUMBERS, fault=FAULTS, data=st.data())
    def move(self, number: int, fault: Fault, data: st.DataObject) -> None:
        """A worker takes its next step: an idle one is given a delivery, one that was refused tries what is next."""
        worker = self.workers[number]
        if worker.where == "work":
            self._let(worker, Turn.SUCCEED)
        elif worker.where == "idle":
            key = data.draw(st.sampled_from(self.keys), label="key") if len(self.keys) > 1 else self.keys[0]
            again = bool(self.owed[key]) and data.draw(st.booleans(), label="again")
            new = self._record(key) is None
            self._deliver(worker, key, atomic=number in self.atomic, again=again)
            self._step(worker, fault)
            assert worker.where == "work" or not new or fault not in LUCKY, "a new key's first delivery was not run"
            return
        self._step(worker, fault)

    @rule(number=NUMBERS, fault=FAULTS, data=st.data())
    def heartbeat(self, number: int, fault: Fault, data: st.DataObject) -> None:
        """A handler renews its lease."""
        worker = self.workers[number]
        if worker.where != "work":
            self.move(number, Fault.NONE, data)
        else:
            self._let(worker, Turn.HEARTBEAT)
            self._step(worker, fault)

    @rule(number=NUMBERS, fault=FAULTS, turn=st.sampled_from(list(ENDS)), data=st.data())
    def finish(self, number: int, fault: Fault, turn: Turn, data: st.DataObject) -> None:
        """A handler comes to its end, which is committed or recorded as a failure."""
        worker = self.workers[number]
        claim = worker.claim
        if worker.where != "work":
            self.move(number, Fault.NONE, data)
            return
        self._let(worker, turn)
        self._step(worker, fault)
        if claim is not None and claim.is_live and fault in LUCKY:
            record = self._record(worker.key)
            assert record is not None
            assert record.status in ENDS[turn]

    @rule(number=NUMBERS, data=st.data())
    def crash(self, number: int, data: st.DataObject) -> None:
        """A worker's process dies, wherever it is."""
        worker = self.workers[number]
        if worker.where == "idle":
            self.move(number, Fault.NONE, data)
        else:
            self._let(worker, None)

    def _deliver(self, worker: Worker, key: str, *, atomic: bool, again: bool) -> None:
        consumer = self._consumer(SteppedStore(self.backend.store, worker, self.in_flight), atomic=atomic)

        @consumer.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> object:
            if not atomic:
                self._given(worker, key, operation)
            if self.backend.store.transactional:
                operation.write(self.backend.charge(key))
            while True:
                turn = worker.stop("work")
                if turn is Turn.SUCCEED:
                    return {"run": next(_runs)}
                if turn is Turn.FAIL:
                    raise RideError
                if turn is Turn.GIVE_UP:
                    raise UselessError
                with contextlib.suppress(StoreUnavailableError):
                    if operation.heartbeat() and worker.claim is not None:
                        worker.claim.lease_left_s = LEASE_S

        # So long that the lease is short, and follows the clock instead of the deadline.
        worker.key = key
        worker.delivery = self.owed[key].pop(0) if again else f"delivery-{next(_runs):08}"
        invocation = Invocation(self.clock, request_id=worker.delivery, timeout_s=3600)
        event = {"id": key, "region": "eu-west-1", "detail": {"id": key, "data": {"orderID": key}}}
        self.known[key] = self.known[key]._replace(delivered=True)
        worker.start(lambda: handler(event, invocation)["outcome"])

    def _given(self, worker: Worker, key: str, operation: Operation) -> None:
        owner = self.attempts.setdefault((key, operation.attempt), operation.owner)
        assert owner == operation.owner, f"attempt {operation.attempt} of {key} was given to two claims"
        worker.claim = Claim(operation)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """A step that its caller has given up takes place after all."""
        self.touched = True
        self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1), label="which"))()

    @rule(seconds=st.sampled_from([LEASE_S + 10, 20]))
    def time_passes(self, seconds: int) -> None:
        """More than a lease goes by, or most of one."""
        self._let_pass(seconds)

    @precondition(lambda self: all(worker.where == "idle" for worker in self.workers) and not self.in_flight)
    @precondition(lambda self: any(known.status == COMPLETED for known in self.known.values()))
    @rule()
    def window_ends(self) -> None:
        """Nothing happens for so long that everything but the quarantined keys is forgotten."""
        self._let_pass(BEYOND_WINDOW_S)
        for key, known in self.known.items():
            if known.status != QUARANTINED:
                self._forget(key)

    @precondition(lambda self: any(known.status == QUARANTINED for known in self.known.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """An operator gives a quarantined key back."""
        key = data.draw(st.sampled_from([key for key, known in self.known.items() if known.status == QUARANTINED]))
        self.touched = True
        assert self.operator.release(key)
        self._forget(key)

    def _step(self, worker: Worker, fault: Fault) -> None:
        if worker.where == "store":
            self._let(worker, fault)

    def _let(self, worker: Worker, command: Fault | Turn | None) -> None:
        self.touched = True
        worker.go_on(command)
        if worker.where == "idle" and worker.delivery is not None:
            if worker.outcome is None:
                self.owed[worker.key].append(worker.delivery)
            elif worker.outcome in (observation.DEAD_LETTERED, observation.QUARANTINED):
                assert any(letter.key == f"history#{worker.key}" for letter in self.box.letters)
            worker.delivery = None

    def _let_pass(self, seconds: int) -> None:
        self.touched = True
        let_pass(self.backend, self.clock, [f"history#{key}" for key in self.keys], seconds)
        for worker in self.workers:
            if worker.claim is not None:
                worker.claim.lease_left_s -= seconds

    def _forget(self, key: str) -> None:
        self.known[key] = Known(charges_before=self.backend.charges(key))
        self.attempts = {(name, number): owner for (name, number), owner in self.attempts.items() if name != key}

    def _record(self, key: str) -> Record | None:
        return self.operator.record(key)

    # ── What must hold ────────────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def every_key_is_sound(self) -> None:
        """No event lost; one commit a key, with its effect, whose result stays; attempts that only grow."""
        if self.touched:
            self.touched = False
            for key, known in self.known.items():
                self._check(key, known)

    def _check(self, key: str, known: Known) -> None:
        record = self._record(key)
        ended = record is not None and record.status in (COMPLETED, QUARANTINED)
        awaited = self.owed[key] or any(worker.delivery and worker.key == key for worker in self.workers)
        assert ended or awaited or not known.delivered, f"{key} is not done, and nobody delivers it again"
        charges = self.backend.charges(key) - known.charges_before
        if record is None or self._is_over(record):
            assert known.status != COMPLETED, f"{key} was committed and is forgotten"
            assert charges == 0
            return
        assert record.status in (IN_PROGRESS, COMPLETED, FAILED, QUARANTINED)
        if known.status in (COMPLETED, QUARANTINED):
            assert record.status == known.status, f"{key} was {known.status} and is {record.status}"
            assert record.result == known.result, f"the result of {key} has changed"
        assert record.attempt >= known.attempt
        assert record.attempt <= MAX_ATTEMPTS or record.status == COMPLETED, "there was one attempt too many"
        if self.backend.store.transactional:
            assert charges == (record.status == COMPLETED), f"{key} is {record.status} with {charges} effects"
        for worker in self.workers:
            claim = worker.claim
            if worker.key == key and worker.where == "work" and claim is not None and claim.is_live:
                holder = (record.owner, record.status)
                assert holder == (claim.operation.owner, IN_PROGRESS), f"a live claim on {key} was taken"
        self.known[key] = known._replace(status=record.status, attempt=record.attempt, result=record.result)

    def _is_over(self, record: Record) -> bool:
        return record.expiry is not None and (record.expiry + SKEW_S) * 1000 < self.clock()

    def teardown(self) -> None:
        """Whatever has happened, every key can still be brought to an end."""
        try:
            for worker in self.workers:
                if worker.where != "idle":
                    self._let(worker, None)
            self.in_flight.clear()
            for key in self.keys:
                self._bring_to_an_end(key)
        finally:
            for worker in self.workers:
                while worker.where != "idle":
                    worker.go_on(None)
            self._open.close()

    def _bring_to_an_end(self, key: str) -> None:
        worker = self.workers[0]
        for _ in range(MAX_ATTEMPTS + 1):
            record = self._record(key)
            if record is not None and record.status in (COMPLETED, QUARANTINED) and not self._is_over(record):
                return
            self._let_pass(LEASE_S + 10)
            self._deliver(worker, key, atomic=False, again=bool(self.owed[key]))
            while worker.where != "idle":
                self._let(worker, Turn.SUCCEED if worker.where == "work" else Fault.NONE)
        record = self._record(key)
        assert record is not None
        assert record.status in (COMPLETED, QUARANTINED), f"{key} is stuck as {record}"


def check_protocol(opener: Opener, examples: int) -> None:
    """Run the machine on new stores, with the same examples every time."""
    machine = type("Machine", (ProtocolMachine,), {"opener": staticmethod(opener)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
