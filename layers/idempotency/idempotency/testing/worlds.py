"""One world for the handlers of a test: one clock, one store, one dead-letter box, one count of effects."""

import json
import os
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from idempotency.consumer import Consumer
from idempotency.dead_letters import DeadLetter, DeadLetterError, SqsDeadLetters
from idempotency.errors import StoreUnavailableError
from idempotency.record import Record
from idempotency.stores import Store, transport
from idempotency.stores.dynamodb import DynamoDBStore, record_of
from idempotency.stores.memory import MemoryStore
from idempotency.stores.transport import NoAnswerError
from idempotency.testing.doubles import Crash, DeadLetterBox, Inline, Invocation, ManualClock
from idempotency.testing.dynamodb import FakeDynamoDB, Request, answered

CRASH_BEFORE: Final = "crash before"
CRASH_AFTER: Final = "crash after"
REQUEST_LOST: Final = "request lost"
ANSWER_LOST: Final = "answer lost"
OVERTAKEN: Final = "overtaken"

REGISTERED: Final = "registered"
DIRECT: Final = "direct"
EXTERNAL: Final = "external"

_READS: Final = ("BatchGet", "Describe", "Get", "Head", "List", "Query", "Scan")


class Counted(NamedTuple):
    """What takes effect, by how it was done."""

    kind: str
    """`REGISTERED` with the operation, `DIRECT` in DynamoDB or another service, or `EXTERNAL`: declared."""
    what: str


class Fault(NamedTuple):
    """What happens at one call of an invocation."""

    kind: str = ""
    at: int = 0
    """The number of the call, from 1."""
    meanwhile: Callable[[], object] = lambda: None
    """The other delivery of `OVERTAKEN`."""


class Run:
    """One invocation of a handler."""

    def __init__(self, name: str, fault: Fault) -> None:
        self.name = name
        self.fault = fault
        self.calls = 0
        self.dead = False


class World:
    """One clock, one store, one dead-letter box and one count of effects, for the handlers of a test.

    Args:
        tables: the key attributes of each table that the handlers use, which are strings. The table of the records
            needs no entry. None: the handlers reach the DynamoDB of botocore's clients, such as moto's.
        store: the store of the records, such as a `MemoryStore`. Default: a `DynamoDBStore`.
        clock: the time. It stands still until the test, or a handler that waits, moves it.

    Attributes:
        dynamodb: the tables, as a transport and a client of botocore's; None without ``tables``.
        dead_letters: takes what is given up.
        timeline: what has happened, one line a step.
        found: reads the record of each key that deliveries have used.
    """

    concurrency: Any = Inline()
    timed: tuple[type, ...] = ()
    """Further classes whose keyword arguments ``clock``, ``sleep`` and ``jitter`` are this world's by default."""

    def __init__(
        self,
        tables: Mapping[str, Sequence[str]] | None = {},
        *,
        store: Store | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.dynamodb: Any = None if tables is None else _Tables(self, tables)
        self.dead_letters = _Letters(self)
        self.timeline: list[str] = []
        self._began_ms = self.clock()
        self._run: Run | None = None
        self._declared = 0
        self._tokens: set[str] = set()
        self._effects: dict[Counted, list[object]] = {}
        self.found: dict[str, Callable[[], Record | None]] = {}
        self._store: Any = None if store is None else _Watched(self, store)

    @property
    def store(self) -> Store:
        """The store for the consumers of this world."""
        with self.installed():
            return self._store or DynamoDBStore("Idempotency", transport=self.dynamodb)

    @contextmanager
    def installed(self) -> Generator[None]:
        """Have the consumers, stores and dead-letter queues that are built inside be this world's.

        Inside, the calls of botocore's clients are calls of the running invocation. Those to DynamoDB reach
        ``dynamodb``, if the world has it.
        """
        timed = {"clock": self.clock, "sleep": self.clock.sleep, "jitter": lambda: 0.5, "concurrency": self.concurrency}
        with ExitStack() as stack:
            for kind in (Consumer, DynamoDBStore, MemoryStore, *self.timed):
                defaults = kind.__dict__["__init__"].__kwdefaults__
                stack.enter_context(patch.dict(defaults, {name: timed[name] for name in timed if name in defaults}))
            stack.enter_context(patch.dict(SqsDeadLetters.__init__.__kwdefaults__, client=self.dead_letters))
            if self.dynamodb is not None:
                stack.enter_context(patch.dict(os.environ, IDEMPOTENCY_TRANSPORT="botocore"))
                stack.enter_context(patch.object(transport, "botocore_transport", lambda **_: self.dynamodb))
            self._install_botocore(stack)
            yield

    def external(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        key: Callable[..., object] | None = None,
        lost: type[Exception] = TimeoutError,
    ) -> Callable[..., Any]:
        """Return ``function`` as a call to another system, which faults can meet.

        Args:
            name: the effect's name.
            function: the call.
            key: returns the downstream key of a call, from its arguments; None, if the call changes nothing. Calls with
                one key count as one effect. Default: the first argument.
            lost: what is raised when the request or its answer is lost.
        """

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            found = key(*args, **kwargs) if key else next(iter((*args, *kwargs.values())), None)

            def note(_: object) -> None:
                if found is not None:
                    self.count(Counted(EXTERNAL, name), found)

            def perform() -> Any:
                self._declared += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self._declared -= 1

            return self.call(f"{name} {found or ''}", perform, lost, note)

        return call

    # ── Invocations and their calls ───────────────────────────────────────────────────────────────────────────────────

    def invoke(
        self,
        handler: Callable[[Any, Any], Any],
        event: Any,
        *,
        delivery: str = "delivery-1",
        timeout_s: float = 30.0,
        fault: Fault = Fault(),  # noqa: B008 - immutable
    ) -> tuple[Any, BaseException | None, Run]:
        """Invoke a handler; return its answer, or what it raised, and the invocation.

        Args:
            handler: a Lambda handler.
            event: what it gets.
            delivery: Lambda's request id.
            timeout_s: the function's timeout.
            fault: what happens at one of its calls.
        """
        outer, run = self._run, Run(delivery, fault)
        self.say(f"{delivery} begins")
        self._run = run
        try:
            answer, error = handler(event, Invocation(self.clock, request_id=delivery, timeout_s=timeout_s)), None
        except (Exception, Crash) as raised:  # noqa: BLE001 - the caller judges it
            answer, error = None, raised
        finally:
            self._run = outer
        error = Crash() if run.dead else error
        self.say(f"{delivery} " + (f"answers {answer!r:.100}" if error is None else f"ends with {error!r:.200}"))
        return answer, error, run

    def call[T](
        self,
        what: str,
        perform: Callable[[], T],
        lost: Callable[[str], Exception],
        note: Callable[[T], object] = id,
    ) -> T:
        """Make a call of the running invocation. Outside of an invocation it is only performed.

        Args:
            what: the words for the timeline.
            perform: does it.
            lost: makes the error of a call without an answer.
            note: is told the answer of a call that took place.
        """
        run = self._run
        if run is None:
            return perform()
        if run.dead:
            raise Crash
        run.calls += 1
        kind = run.fault.kind if run.fault.at == run.calls else ""
        self.say(f"{run.name} call {run.calls}: {what}{kind and f'  <- {kind.upper()}'}")
        if kind == CRASH_BEFORE:
            self._die(run)
        if kind == REQUEST_LOST:
            raise lost(kind)
        if kind == OVERTAKEN:
            run.fault.meanwhile()
        with suppress(*([Exception] if kind in {ANSWER_LOST, CRASH_AFTER} else [])):
            answer = perform()
            note(answer)
        if kind == CRASH_AFTER:
            self._die(run)
        if kind == ANSWER_LOST:
            raise lost(kind)
        return answer

    def _die(self, run: Run) -> None:
        run.dead = True
        raise Crash

    def say(self, text: str) -> None:
        """Add a line to the timeline."""
        self.timeline.append(f"{(self.clock() - self._began_ms) / 1000:9.1f} s  {text}")

    # ── What took effect ──────────────────────────────────────────────────────────────────────────────────────────────

    def effects(self) -> Counter[Counted]:
        """Return how often each effect of a delivery took place."""
        return Counter({effect: len(set(found)) for effect, found in self._effects.items()})

    def records(self) -> list[Record]:
        """Return the records of the keys that deliveries have used."""
        return [record for find in self.found.values() if (record := find()) is not None]

    def count(self, effect: Counted, identity: object) -> None:
        """Count an effect; those with equal identities are one."""
        self._effects.setdefault(effect, []).append(identity)

    def request(
        self, operation: str, request: Request, perform: Callable[[str, Request], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Send a request to DynamoDB as a call."""
        if self._run is None:
            return perform(operation, request)
        actions = _actions(operation, request)
        tables = " ".join(dict.fromkeys(action["TableName"] for _, action in actions if "TableName" in action))
        note = partial(self._note_request, actions, request, perform)
        return self.call(f"{operation} {tables}", lambda: perform(operation, request), NoAnswerError, note)

    def _note_request(
        self,
        actions: Sequence[tuple[str, Request]],
        request: Request,
        perform: Callable[[str, Request], Mapping[str, Any]],
        _: object,
    ) -> None:
        """Count the writes of a request that took place."""
        records = [action for _, action in actions if "idempotencyKey" in action.get("Item", ())]
        for record in records:
            key = {"idempotencyKey": record["Item"]["idempotencyKey"]}
            find: Request = {"TableName": record["TableName"], "Key": key, "ConsistentRead": True}
            self.found[str(key)] = partial(_find, perform, find)
        token = request.get("ClientRequestToken")
        if token in self._tokens:
            return
        self._tokens |= {token} if token else set()
        for kind, action in actions:
            if action in records or kind == "ConditionCheck" or kind.startswith(_READS) or self._declared:
                continue
            effect = f"{kind} {action.get('TableName', '')}".strip()
            if records:
                self.count(Counted(REGISTERED, effect), object())
            else:
                self.count(Counted(DIRECT, effect), self._identity(kind, action))

    def _identity(self, kind: str, action: Request) -> object:
        """Return what is equal for two direct writes of which the second changes nothing."""
        adds = any(word in action.get("UpdateExpression", "") for word in ("ADD ", "+", "list_append"))
        if kind not in {"Put", "Update", "Delete"} or adds:
            return object()
        if "Key" in action or self.dynamodb is None:
            return str(action.get("Key") or action["Item"])
        return self.dynamodb.key(action)

    def _install_botocore(self, stack: ExitStack) -> None:
        from botocore.client import BaseClient
        from botocore.exceptions import ReadTimeoutError

        send = BaseClient._make_api_call  # type: ignore[attr-defined]  # noqa: SLF001 - where moto's users patch too

        def call(client: Any, operation: str, request: Request) -> Any:
            service = client.meta.service_model.service_name
            if service == "dynamodb" and self.dynamodb is not None:
                return self.dynamodb.send(operation, request)
            if service == "dynamodb":
                return answered(lambda: self.request(operation, request, partial(send, client)))

            def note(_: object) -> None:
                if not operation.startswith(_READS) and not self._declared:
                    self.count(Counted(DIRECT, f"{operation} of {service}"), object())

            lost = partial(ReadTimeoutError, endpoint_url=service)
            return self.call(
                f"{operation} of {service}", lambda: send(client, operation, request), lambda _: lost(), note
            )

        stack.enter_context(patch.object(BaseClient, "_make_api_call", call))


def _actions(operation: str, request: Request) -> list[tuple[str, Request]]:
    entries = request.get("TransactItems")
    if entries is None:
        return [(operation.removesuffix("Item"), request)]
    return [(kind, action) for entry in entries for kind, action in entry.items()]


def _find(perform: Callable[[str, Request], Mapping[str, Any]], request: Request) -> Record | None:
    item = perform("GetItem", request).get("Item")
    return record_of(item) if item else None


class _Tables(FakeDynamoDB):
    """Tables whose requests are calls."""

    def __init__(self, world: World, tables: Mapping[str, Sequence[str]]) -> None:
        super().__init__(tables, world.clock)
        self._world = world

    def __call__(self, operation: str, request: Request, /) -> Mapping[str, Any]:
        """Send one request."""
        return self._world.request(operation, request, super().__call__)


class _Letters(DeadLetterBox):
    """A dead-letter box that takes letters by calls, also as a client of SQS."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def send(self, dead_letter: DeadLetter) -> None:
        """Keep a dead letter."""
        self._world.call(f"dead letter {dead_letter.reason}", partial(super().send, dead_letter), DeadLetterError)

    def send_message(self, *, MessageBody: str, **_: object) -> None:  # noqa: N803 - botocore's name
        """Keep what `SqsDeadLetters` sends."""
        self.send(DeadLetter(**json.loads(MessageBody)))


class _Watched:
    """A store whose steps are calls."""

    def __init__(self, world: World, store: Store) -> None:
        self.transactional = store.transactional
        self._world = world
        self._store = store

    def __getattr__(self, step: str) -> Callable[..., Any]:
        """Return a step of the store."""
        return partial(self._call, step, getattr(self._store, step))

    def _call(self, step: str, perform: Callable[..., Any], *args: Any, **options: Any) -> Any:
        written = next((each for each in reversed(args) if isinstance(each, Record)), None)
        key = args[0] if written is None else written.key

        def note(found: object) -> None:
            self._world.found[key] = partial(self._store.read, key)
            if written is not None and found is written and args[-1] is not written:
                for effect in args[-1]:
                    self._world.count(Counted(REGISTERED, f"{type(effect).__name__} {effect.table}"), object())

        what = f"{step} {key}" + ("" if written is None else f" {written.status}")
        return self._world.call(what, partial(perform, *args, **options), StoreUnavailableError, note)
