"""The real runner as a value: one delivery, run up to the next request that it makes.

A process is what it was told so far. To tell it one thing more, the delivery is run again from its start over a store,
a dead-letter queue, a clock and a handler that answer from the script of what it was told, and stop it at the first
request that the script does not answer. The runner is deterministic, so that every `Process` is computed once.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from idempotency import Put
from idempotency.dead_letters import DeadLetter, DeadLetterError
from idempotency.delivery import Answer, Delivery
from idempotency.effects import Effect
from idempotency.errors import EffectConflictError, IdempotencyError, PermanentError, StoreUnavailableError
from idempotency.observation import NEW, RETRIED, TAKEOVER, Observation
from idempotency.operation import Operation
from idempotency.policy import Policy
from idempotency.record import Record
from idempotency.runner import Runner, Started

KEY: Final = "history#k1"
REGION: Final = "eu-west-1"

# What a process may ask for.
INSERT: Final = "insert"
SWAP: Final = "swap"
ADVANCE: Final = "advance"
READ: Final = "read"
WORK: Final = "work"
SEND: Final = "send"
SLEEP: Final = "sleep"
END: Final = "end"
"""It has returned or raised: all that is left is to tell the transport."""

WRITES: Final = frozenset({INSERT, SWAP, ADVANCE})

# What it may be told, besides the record that is now under the key (or None).
START: Final = "start"
GAVE_UP: Final = "gave up"
CONFLICT: Final = "conflict"
RETURNS: Final = "returns"
RAISES: Final = "raises"
POISONED: Final = "raises a permanent error"
BEATS: Final = "beats"
SENT: Final = "sent"
NOT_SENT: Final = "not sent"
AWAKE: Final = "awake"


RAN: Final = frozenset({NEW, RETRIED, TAKEOVER})
"""The outcomes of a run that was committed."""


class HandlerError(Exception):
    """What a handler raises here."""


class PoisonError(PermanentError):
    """What a handler raises here where no retry can help."""


@dataclass(frozen=True)
class Kind:
    """One way in which deliveries are processed: a policy, on a machine with a clock of its own."""

    name: str
    policy: Policy
    clock_ms: int = 0
    """How far its clock is ahead of the store's."""
    timeout_ms: int | None = None
    """After how much time its invocations are killed; None where nothing kills them."""
    acknowledges: bool = True


class Message(NamedTuple):
    """What a delivery carries."""

    id: str
    fingerprint: str = "1:a"
    sent_ms: int | None = None
    expires_ms: int | None = None


class Request(NamedTuple):
    """What a process waits for."""

    kind: str
    record: Record | None = None
    seen: Record | None = None
    effects: bool = False
    pause_ms: int = 0


class Process(NamedTuple):
    """A delivery that waits for the answer to a request, or has ended."""

    kind: Kind
    message: Message
    owner: str
    told: tuple[tuple[int, object], ...]
    """Everything it was told, and what its clock showed at that moment."""
    request: Request
    runs: int
    """How often the handler was begun."""
    claim: Record | None = None
    """The claim under which the handler runs or has run; None in atomic mode."""
    lost: bool = False
    """Whether a heartbeat told the handler that its claim is lost."""
    observation: Observation | None = None
    answer: Answer | None = None
    error: Exception | None = None

    @property
    def deadline_ms(self) -> int | None:
        """When it is killed, by its own clock."""
        timeout_ms = self.kind.timeout_ms
        return None if timeout_ms is None else self.told[0][0] + timeout_ms


def future_of(process: Process) -> tuple[object, ...]:
    """Return what the future of ``process`` depends on: where two agree, one stands for both, whatever their past."""
    kind, request = process.kind, process.request
    if request.kind == END:
        outcome = process.observation.outcome if process.observation and process.error is None else None
        return process.message, "ran" if outcome in RAN else outcome
    if kind.policy.busy == "wait":
        return kind.name, process.message, process.owner, process.told
    records = [said for _, said in process.told if isinstance(said, Record)]
    letter = records[-1] if request.kind == SEND and records else None
    return kind.name, process.message, process.owner, process.deadline_ms, request, process.runs, process.claim, letter


class _Stopped(BaseException):
    """Leaves the runner at a request that has no answer yet; nothing in it may catch this."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.request = request


@dataclass
class _Script:
    """Answers from what the process was told."""

    told: Sequence[tuple[int, object]] = ()
    position: int = 0
    now_ms: int = 0
    owner: str = ""
    runs: int = 0
    claim: Record | None = None
    lost: bool = False
    observations: list[Observation] = field(default_factory=list)

    def ask(self, request: Request) -> object:
        """Return the next answer, or raise it."""
        if self.position == len(self.told):
            raise _Stopped(request)
        self.now_ms, answer = self.told[self.position]
        self.position += 1
        if answer == GAVE_UP:
            raise StoreUnavailableError("the store gave no answer")
        if answer == CONFLICT:
            raise EffectConflictError(0)
        if answer == NOT_SENT:
            raise DeadLetterError("the queue gave no answer")
        return answer


class _ScriptedStore:
    transactional = True

    def __init__(self, script: _Script) -> None:
        self._script = script

    def put_if_absent(self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None) -> Record:
        found: Any = self._script.ask(Request(INSERT, timeless(record), None, bool(effects)))
        return found  # type: ignore[no-any-return]

    def compare_and_swap(
        self, seen: Record, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record | None:
        found: Any = self._script.ask(Request(SWAP, timeless(record), seen, bool(effects)))
        return found  # type: ignore[no-any-return]

    def update_if_owner(
        self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record | None:
        found: Any = self._script.ask(Request(ADVANCE, timeless(record), None, bool(effects)))
        return found  # type: ignore[no-any-return]

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        found: Any = self._script.ask(Request(READ))
        return found  # type: ignore[no-any-return]


class _ScriptedLetters:
    def __init__(self, script: _Script) -> None:
        self._script = script

    def send(self, letter: DeadLetter) -> None:
        self._script.ask(Request(SEND))


def timeless(record: Record) -> Record:
    """Return ``record`` without the times that are only there to be read by people: no decision depends on them."""
    return record._replace(created_ms=0, updated_ms=0)


class _Runner(Runner):
    """Beats when the handler is told to, and not from a thread: a heartbeat is a step like any other."""

    script: _Script

    def heartbeat(self, started: Started) -> AbstractContextManager[object]:
        self.script.claim = started.record
        return nullcontext()


class Processes:
    """Starts processes, and tells them what became of their requests."""

    def __init__(self) -> None:
        self._script = _Script()
        self._runners: dict[str, _Runner] = {}

    def start(self, kind: Kind, message: Message, owner: str, now_ms: int) -> Process:
        """Return a new delivery's process at its first request; ``now_ms`` is what its own clock shows."""
        return self._play(kind, message, owner, ((now_ms, START),))

    def tell(self, process: Process, now_ms: int, answer: object) -> Process:
        """Return ``process`` at the request that it makes after ``answer``."""
        return self._play(process.kind, process.message, process.owner, (*process.told, (now_ms, answer)))

    def _play(self, kind: Kind, message: Message, owner: str, told: tuple[tuple[int, object], ...]) -> Process:
        script = self._script
        started_ms = told[0][0]
        script.told, script.position, script.now_ms, script.owner = told, 1, started_ms, owner
        script.runs, script.claim, script.lost = 0, None, False
        script.observations.clear()
        delivery = Delivery(
            key=KEY,
            fingerprint=message.fingerprint,
            id=message.id,
            deadline_ms=None if kind.timeout_ms is None else started_ms + kind.timeout_ms,
            acknowledges=kind.acknowledges,
            comes_again=kind.acknowledges,
            sent_ms=message.sent_ms,
            expires_ms=message.expires_ms,
        )
        answer: Answer | None = None
        error: Exception | None = None
        request = Request(END)
        try:
            answer = self._runner(kind).run(delivery, self._work)
        except _Stopped as stopped:
            request = stopped.request
        except (IdempotencyError, HandlerError) as raised:
            error = raised
        if script.position != len(told):
            raise AssertionError(f"the process ended before it was told {told[script.position :]}")
        return Process(
            kind,
            message,
            owner,
            told,
            request,
            script.runs,
            script.claim,
            script.lost,
            script.observations[0] if len(script.observations) == 1 else None,
            answer,
            error,
        )

    def _runner(self, kind: Kind) -> _Runner:
        runner = self._runners.get(kind.name)
        if runner is None:
            script = self._script
            runner = _Runner(
                "history",
                _ScriptedStore(script),
                kind.policy,
                dead_letters=_ScriptedLetters(script),
                observe=script.observations.append,
                region=REGION,
                clock=lambda: script.now_ms,
                sleep=lambda pause_s: _ignored(script.ask(Request(SLEEP, pause_ms=int(pause_s * 1000)))),
                jitter=lambda: 0.5,
                new_owner=lambda: script.owner,
            )
            runner.script = script
            self._runners[kind.name] = runner
        return runner

    def _work(self, operation: Operation) -> str:
        """Handle the event: one effect that is committed with the record, and a result that names this run."""
        script = self._script
        script.runs += 1
        operation.write(_EFFECT)
        while True:
            told = script.ask(Request(WORK))
            if told == RETURNS:
                return operation.owner
            if told == RAISES:
                raise HandlerError("no")
            if told == POISONED:
                raise PoisonError("never")
            try:
                script.lost = not operation.heartbeat()
            except StoreUnavailableError:
                continue  # as the thread that beats does


def _ignored(_: object) -> None:
    return None


_EFFECT: Final = Put("Rides", {"id": "order_01"})
"""Never sent: that it is there is all that the store is asked to see."""
