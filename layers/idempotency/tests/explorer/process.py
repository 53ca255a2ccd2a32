"""One delivery of the real runner, up to its next request, as a value.

A process is the list of replies that it got. For each further reply the delivery is run again from
its start: the store, the dead-letter queue, the clock and the handler answer from the list and stop
the runner at the first request without a reply. The runner is deterministic, so every `Process` is
computed once.

A process runs in a sandbox, as Lambda's: it begins with what earlier deliveries to the sandbox have
left in the runner's cache, and leaves it to later ones. A crash ends the sandbox.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from carride_idempotency import Put
from carride_idempotency.dead_letters import DeadLetter
from carride_idempotency.effects import Effect
from carride_idempotency.errors import (
    DeadLetterError,
    IdempotencyError,
    PermanentError,
    RetryableError,
    StoreUnavailableError,
)
from carride_idempotency.policy import Policy
from carride_idempotency.protocol.delivery import Delivery, DeliveryAnswer
from carride_idempotency.protocol.externals import NOT_DONE, Done
from carride_idempotency.protocol.operation import Operation
from carride_idempotency.protocol.run import Runner, Started
from carride_idempotency.protocol.warm_cache import WarmCache
from carride_idempotency.record import IN_PROGRESS, Record

type Kind = Literal[
    "put if absent",
    "compare and swap",
    "update if owner",
    "early work",
    "work",
    "call",
    "probe",
    "send",
    "end",
]
"""What a process asks for. At its ``end`` it has returned or raised; its transport does not know
yet."""
type Word = Literal[
    "gave up",
    "returns",
    "raises",
    "raises a permanent error",
    "is cancelled",
    "heartbeat",
    "sent",
    "not sent",
    "made",
    "nothing",
]
type Reply = Record | Word | None
"""An answer: the record that is now under the key, if any, or one of the words; ``nothing`` is none
yet."""

type Origin = Literal["bus", "replay", "redrive"]
"""What delivers a message: its transport, a replay of an archive, or an operator who took its
letter out of the dead-letter queue."""
type Cache = tuple[tuple[str, int, Record], ...]
"""What a runner remembers: ids of deliveries, when they were completed, and the records."""

WRITES: Final = frozenset({"put if absent", "compare and swap", "update if owner"})

_EFFECT: Final = Put("Rides", {"id": "order_01"})
"""Never sent: the store only sees that there is an effect."""


CANCELLED: Final = "its task was cancelled"


class HandlerError(Exception):
    """A handler's own failure."""


_RAISES: Final[dict[Any, Callable[[], Exception]]] = {
    "raises": HandlerError,
    "raises a permanent error": PermanentError,
    "is cancelled": partial(RetryableError, CANCELLED),  # as `aio.calls` ends a run
}


@dataclass(frozen=True)
class Machine:
    """Where deliveries run: its clock is ``clock_ms`` ahead.

    It kills invocations after ``timeout_ms``, if at all.
    """

    name: str
    policy: Policy
    clock_ms: int = 0
    timeout_ms: int | None = None
    calls: str = ""
    """Whether the handler makes an external call ``with a probe``, or ``without a probe``."""
    may_fail_early: bool = False
    """Whether the handler may raise before its external call, too."""


class Message(NamedTuple):
    id: str
    fingerprint: str = "1:a"
    origin: Origin = "bus"


class Sandbox(NamedTuple):
    """A sandbox in which nothing runs."""

    machine: str
    cache: Cache


class Request(NamedTuple):
    kind: Kind
    record: Record | None = None
    seen: Record | None = None
    effects: bool = False

    def __str__(self) -> str:
        given = filter(None, (self.record, self.seen))
        words = (
            f"[{each.status} of {each.owner}, attempt {each.attempt}, lease {each.lease_ms} ms]"
            for each in given
        )
        return f"{self.kind} {' over '.join(words)}"


@dataclass(eq=False)
class Process:
    """A delivery that waits for the answer to a request, or has ended."""

    machine: Machine
    message: Message
    owner: str
    began_ms: int
    replies: tuple[tuple[int, Reply], ...]
    """Each reply, and what the machine's clock showed when it came."""
    found: Cache
    """What its sandbox remembered when it began."""
    request: Request
    runs: int
    """How often the handler was begun."""
    claim: Record | None
    """The claim under which the handler runs; None in atomic mode."""
    answer: DeliveryAnswer | None
    """None while it runs, and where it raised."""
    cache: Cache
    """What its sandbox remembers now."""

    def __post_init__(self) -> None:
        timeout_ms = self.machine.timeout_ms
        self.deadline_ms = None if timeout_ms is None else self.began_ms + timeout_ms
        found = [reply for _, reply in self.replies if isinstance(reply, Record)]
        own = [record.lease_ms or 0 for record in found if record[1:3] == (IN_PROGRESS, self.owner)]
        self.held_ms = max(own, default=-1)
        """Until when it knows itself to hold the key, by its own clock."""
        kind, record, seen, _ = self.request
        marked = found[-1] if kind == "send" and found else None
        self.owners = {
            self.owner,
            *(token(known) for known in (record, seen, marked) if known is not None),
        }
        """The owner tokens that it may still use or compare."""
        rest = (
            self.machine.name,
            self.owner,
            self.deadline_ms,
            self.held_ms,
            self.request,
            self.claim,
            marked,
        )
        ahead = self.answer is None if kind == "end" else rest
        self.future = self.message, self.cache, ahead
        """What its further steps depend on; processes with equal futures are interchangeable."""


def token(record: Record) -> str:
    """Return the token of the delivery that wrote a record; a quarantine may append to it."""
    return (record.owner or "").partition("/")[0]


def timeless(record: Record) -> Record:
    """Return ``record`` without the times on which no decision depends."""
    return record._replace(created_ms=0, updated_ms=0)


class _Stopped(BaseException):
    """Leaves the runner at its argument, a request that has no answer yet."""


class _WarmCache(WarmCache):
    """The cache of one sandbox, as a value."""

    def load(self, cache: Cache) -> None:
        for delivery_id, since_ms, record in cache:
            self.keep(record, delivery_id, since_ms)

    def value(self) -> Cache:
        known = self._records.items()
        return tuple(sorted((name, since_ms, record) for (_, name), (since_ms, record) in known))


class _Runner(Runner):
    """A runner whose heartbeats are steps of the handler."""

    _cache: _WarmCache
    claim: Record | None = None

    def begin_in(self, sandbox: _WarmCache) -> None:
        """Run the next delivery in another sandbox."""
        self._cache = sandbox
        self.claim = None

    def begin(self, delivery: Delivery) -> Started | DeliveryAnswer:
        begun = super().begin(delivery)
        if isinstance(begun, Started) and begun.claimed:
            self.claim = begun.record
        return begun

    def heartbeat(self, started: Started) -> AbstractContextManager[object]:
        return nullcontext()


class Processes:
    """Starts and continues processes. It is their store and their dead-letter queue."""

    transactional = True

    def __init__(self) -> None:
        self.outcomes: set[str] = set()
        """What was observed of any delivery."""
        self._runners: dict[str, _Runner] = {}
        self._known: dict[object, Process] = {}
        self._replies: tuple[tuple[int, Reply], ...] = ()
        self._position = self._now_ms = self._runs = 0
        self._owner = self._calls = ""
        self._may_fail_early = False

    def start(
        self, machine: Machine, message: Message, owner: str, now_ms: int, cache: Cache = ()
    ) -> Process:
        """Return a new delivery at its first request.

        ``now_ms`` is what its machine's clock shows, and ``cache`` what its sandbox remembers.
        """
        key = machine.name, message, owner, now_ms, cache
        if key not in self._known:
            self._known[key] = self._play(machine, message, owner, now_ms, (), cache)
        return self._known[key]

    def proceed(self, process: Process, now_ms: int, reply: Reply) -> Process:
        """Return a process after the answer to its request."""
        key = process, now_ms, reply
        if key not in self._known:
            self._known[key] = self._play(
                process.machine,
                process.message,
                process.owner,
                process.began_ms,
                (*process.replies, (now_ms, reply)),
                process.found,
            )
        return self._known[key]

    def _play(
        self,
        machine: Machine,
        message: Message,
        owner: str,
        began_ms: int,
        replies: tuple[tuple[int, Reply], ...],
        cache: Cache,
    ) -> Process:
        self._replies = replies
        self._position = 0
        self._now_ms = began_ms
        self._owner = owner
        self._runs = 0
        self._calls = machine.calls
        self._may_fail_early = machine.may_fail_early
        runner = self._runners.setdefault(machine.name, self._runner(machine.policy))
        policy = machine.policy
        sandbox = _WarmCache(policy.warm_cache, int(policy.warm_seconds * 1000))
        sandbox.load(cache)
        runner.begin_in(sandbox)
        deadline_ms = None if machine.timeout_ms is None else began_ms + machine.timeout_ms
        delivery = Delivery(
            "history#k1",
            message.fingerprint,
            message.id,
            deadline_ms,
            acknowledges=True,
            comes_again=True,
            remembered=True,
            replayed=message.origin == "replay",
            sent_ms=began_ms,  # so its claim expires, as most do
        )
        answer = None
        request = Request("end")
        try:
            answer = runner.run_delivery(delivery, self._work)
        except _Stopped as stopped:
            (request,) = stopped.args
        except (IdempotencyError, HandlerError):
            pass
        assert self._position == len(replies), "the process ended before its last reply"
        return Process(
            machine,
            message,
            owner,
            began_ms,
            replies,
            cache,
            request,
            self._runs,
            runner.claim,
            answer,
            sandbox.value(),
        )

    def _runner(self, policy: Policy) -> _Runner:
        return _Runner(
            "history",
            self,
            policy,
            dead_letters=self,
            observe=lambda seen: self.outcomes.add(seen.outcome),
            region="eu-west-1",
            clock=lambda: self._now_ms,
            new_owner=lambda: self._owner,
        )

    def _work(self, operation: Operation) -> str:
        """Register one effect, and return a result that names this run."""
        self._runs += 1
        operation.write(_EFFECT)
        if self._may_fail_early and self._ask(Request("early work")) == "raises":
            raise HandlerError
        if self._calls:

            def probe(_: str) -> Any:
                return Done("made") if self._ask(Request("probe")) else NOT_DONE

            probes = probe if self._calls == "with a probe" else None
            try:
                operation.external("charge", lambda _: self._ask(Request("call")), probes)
            except RetryableError as error:
                raise HandlerError from error  # which counts as an attempt
        while True:
            does = self._ask(Request("work"))
            if does == "returns":
                return operation.owner
            if does in _RAISES:
                failure = _RAISES[does]()
                raise failure
            try:
                operation.heartbeat()
            except StoreUnavailableError:
                continue  # as the heartbeat thread does

    def _ask(self, request: Request) -> Any:
        if self._position == len(self._replies):
            raise _Stopped(request)
        self._now_ms, reply = self._replies[self._position]
        self._position += 1
        if reply == "gave up":
            raise StoreUnavailableError("the store gave no answer")
        if reply == "not sent":
            raise DeadLetterError("the queue gave no answer")
        return reply

    def put_if_absent(
        self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Any:
        return self._ask(Request("put if absent", timeless(record), None, bool(effects)))

    def compare_and_swap(
        self,
        seen: Record,
        record: Record,
        effects: Sequence[Effect] = (),
        *,
        until_ms: int | None = None,
    ) -> Any:
        return self._ask(Request("compare and swap", timeless(record), seen, bool(effects)))

    def update_if_owner(
        self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Any:
        return self._ask(Request("update if owner", timeless(record), None, bool(effects)))

    def read(self, key: str, *, until_ms: int | None = None) -> Any:
        """Refuse: no delivery here expires or waits."""
        raise AssertionError("nothing reads here")

    def send(self, dead_letter: DeadLetter) -> None:
        self._ask(Request("send"))
