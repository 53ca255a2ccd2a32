"""One world for the handlers of a test: one clock, one store, one dead-letter box, one count of effects."""

import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from botocore.client import BaseClient
from botocore.exceptions import ReadTimeoutError

from carride_idempotency.consumer import Consumer
from carride_idempotency.dead_letters import DeadLetter, DeadLetterError, SqsDeadLetters
from carride_idempotency.errors import StoreUnavailableError
from carride_idempotency.record import Record
from carride_idempotency.stores import Store, default_transport
from carride_idempotency.stores.dynamodb import DynamoDBStore
from carride_idempotency.stores.dynamodb_items import record_of
from carride_idempotency.stores.memory import MemoryStore
from carride_idempotency.stores.transport import NoAnswerError
from carride_idempotency.testing.doubles import (
    Crash,
    DeadLetterBox,
    Inline,
    Invocation,
    ManualClock,
)
from carride_idempotency.testing.dynamodb import FakeDynamoDB, Request, answered

KINDS: Final = (
    "crash before",
    "crash after",
    "request lost",
    "answer lost",
    "overtaken",
    "taken over",
)
CRASH_BEFORE, CRASH_AFTER, REQUEST_LOST, ANSWER_LOST, OVERTAKEN, TAKEN_OVER = KINDS

_READS: Final = ("BatchGet", "ConditionCheck", "Describe", "Get", "Head", "List", "Query", "Scan")

type Send = Callable[[str, Request], Mapping[str, Any]]


class Fault(NamedTuple):
    """What happens to one call of an invocation."""

    kind: str = ""
    meets: Callable[[int, str], bool] = lambda *_: False
    """Whether it happens at a call: its number, from 1, and what it is."""
    meanwhile: Callable[[], object] = lambda: None
    """What overtakes the call."""


NO_FAULT: Final = Fault()


@dataclass
class Run:
    """One invocation of a handler."""

    name: str
    fault: Fault
    calls: int = 0
    met: bool = False
    dead: bool = False
    answer: Any = None
    error: BaseException | None = None


class World:
    """One clock, one store, one dead-letter box and one count of effects, for the handlers of a test.

    Args:
        tables: the key attributes of each table that the handlers use, which are strings. The table
            of the records needs no entry. None: the handlers reach the DynamoDB of botocore's
            clients, such as moto's.
        indexes: the key attributes of indexes.
        store: the store of the records, such as a `MemoryStore`. Default: a `DynamoDBStore`.
        clock: the time. It stands still until the test, or a handler that waits, moves it.

    Attributes:
        dynamodb: the tables, as a transport and as a client of botocore's; None without ``tables``.
        dead_letters: takes what is given up.
        effects: the different identities of each effect of an invocation, by its name.
        records: reads the record of each key that an invocation has written.
        timeline: what has happened, one line a step.
    """

    concurrency: Any = Inline()
    jitter: Callable[[], float] = staticmethod(lambda: 0.5)
    timed: tuple[type, ...] = ()
    """Further classes whose keyword arguments ``clock``, ``sleep`` and ``jitter`` are this world's
    by default."""

    def __init__(
        self,
        tables: Mapping[str, Sequence[str]] | None = {},
        *,
        indexes: Mapping[str, Sequence[str]] = {},
        store: Store | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.dynamodb: Any = None if tables is None else _Tables(self, tables, indexes)
        self.dead_letters = _Letters(self)
        self.effects: dict[str, set[object]] = defaultdict(set)
        self.records: dict[str, Callable[[], Record | None]] = {}
        self.timeline: list[str] = []
        self._store: Any = store and _Watched(self, store)
        self._run: Run | None = None
        self._declared = 0
        self._began_ms = self.clock()

    @property
    def store(self) -> Store:
        """The store for the consumers of this world."""
        with self.installed():
            return self._store or DynamoDBStore("Idempotency", transport=self.dynamodb)

    @contextmanager
    def installed(self) -> Generator[None]:
        """Have consumers, stores and dead-letter queues that are built inside be this world's.

        Inside, the calls of botocore's clients are calls of the running invocation. Those to
        DynamoDB reach ``dynamodb``, if the world has it.
        """
        timed = {
            "clock": self.clock,
            "sleep": self.clock.sleep,
            "jitter": self.jitter,
            "concurrency": self.concurrency,
        }
        with ExitStack() as stack:
            for kind in (Consumer, DynamoDBStore, MemoryStore, *self.timed):
                # A fault may lie over it.
                defaults = inspect.unwrap(kind.__dict__["__init__"]).__kwdefaults__
                stack.enter_context(
                    patch.dict(defaults, {name: timed[name] for name in timed if name in defaults})
                )
            stack.enter_context(
                patch.dict(SqsDeadLetters.__init__.__kwdefaults__, client=self.dead_letters)
            )
            if self.dynamodb is not None:
                stack.enter_context(patch.object(default_transport, "os", _Environment))
                stack.enter_context(
                    patch.object(default_transport, "botocore_transport", lambda **_: self.dynamodb)
                )
            send = BaseClient._make_api_call  # type: ignore[attr-defined]  # noqa: SLF001 - where tests of boto3 patch too
            stack.enter_context(
                patch.object(
                    BaseClient, "_make_api_call", lambda *call: self._call_aws(send, *call)
                )
            )
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
            key: returns the downstream key of a call, from its arguments; None, if the call changes
                nothing. Calls with one key count as one effect. Default: the first argument.
            lost: what is raised when the request or its answer is lost.
        """

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            found = key(*args, **kwargs) if key else next(iter((*args, *kwargs.values())), None)

            def perform() -> Any:
                self._declared += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self._declared -= 1

            def note(_: object) -> None:
                if found is not None:
                    self.effects[f"external {name}"].add(found)

            return self.call(f"{name} {found or ''}", perform, lost, note)

        return call

    # ── Invocations and their calls ───────────────────────────────────────────────────────────────

    def invoke(
        self,
        handler: Callable[[Any, Any], Any],
        event: Any,
        *,
        delivery: str = "delivery-1",
        timeout_s: float = 30.0,
        fault: Fault = NO_FAULT,
    ) -> Run:
        """Invoke a Lambda handler; return how that ended. ``delivery`` is Lambda's request id."""
        outer, self._run = self._run, (run := Run(delivery, fault))
        self.say(f"{delivery} begins")
        try:
            run.answer = handler(
                event, Invocation(self.clock, request_id=delivery, timeout_s=timeout_s)
            )
        except (Exception, Crash) as error:  # noqa: BLE001 - the caller judges it
            run.error = error
        finally:
            self._run = outer
        run.error = Crash() if run.dead else run.error
        self.say(
            f"{delivery} answers {run.answer!r:.100}"
            if run.error is None
            else f"{delivery} raises {run.error!r}"
        )
        return run

    def call[T](
        self,
        what: str,
        perform: Callable[[], T],
        lost: Callable[[str], Exception],
        note: Callable[[T], object] = id,
    ) -> T:
        """Make a call of the running invocation. Outside of an invocation it is only performed.

        ``lost`` makes the error of a call without an answer; ``note`` is told the answer of one
        that took place.
        """
        run = self._run
        if run is None:
            return perform()
        if run.dead:
            raise Crash
        run.calls += 1
        kind = run.fault.kind if not run.met and run.fault.meets(run.calls, what) else ""
        run.met |= bool(kind)
        self.say(f"{run.name} call {run.calls}: {what}{kind and f'  <- {kind.upper()}'}")
        if kind in {OVERTAKEN, TAKEN_OVER}:
            run.fault.meanwhile()
        if kind not in {CRASH_BEFORE, REQUEST_LOST}:
            with suppress(*([Exception] if kind in {ANSWER_LOST, CRASH_AFTER} else [])):
                answer = perform()
                note(answer)
        if kind in {REQUEST_LOST, ANSWER_LOST}:
            raise lost(kind)
        if kind in {CRASH_BEFORE, CRASH_AFTER}:
            run.dead = True
            raise Crash
        return answer

    def say(self, text: str) -> None:
        """Add a line to the timeline."""
        self.timeline.append(f"{(self.clock() - self._began_ms) / 1000:9.1f} s  {text}")

    def request(self, operation: str, request: Request, send: Send) -> Mapping[str, Any]:
        """Send a request to DynamoDB as a call."""
        entries = request.get("TransactItems", [{operation.removesuffix("Item"): request}])
        actions = [(kind, action) for entry in entries for kind, action in entry.items()]
        items = [action.get("Item") or action.get("Key") or {} for _, action in actions]
        tables = [action.get("TableName", "") for _, action in actions]
        # A resource of boto3's has Python values here.
        keys = [key["S"] for item in items if isinstance(key := item.get("idempotencyKey"), dict)]

        def note(_: object) -> None:
            records = [
                each
                for _, each in actions
                if isinstance(each.get("Item", {}).get("idempotencyKey"), dict)
            ]
            for record in records:
                key = {"idempotencyKey": record["Item"]["idempotencyKey"]}
                find: Request = {
                    "TableName": record["TableName"],
                    "Key": key,
                    "ConsistentRead": True,
                }
                self.records[str(key)] = partial(_find, send, find)
            for place, (kind, action) in enumerate(actions):
                if records and action not in records and not kind.startswith(_READS):
                    # A transaction that is sent again has the same.
                    token = request.get("ClientRequestToken")
                    self.effects[f"registered {kind} {action['TableName']}"].add((token, place))
                elif not records and not kind.startswith(_READS) and not self._declared:
                    self.effects[f"direct {kind} {action.get('TableName', '')}"].add(
                        self._identity(kind, action)
                    )

        what = " ".join(dict.fromkeys([operation, *tables, *keys]))
        return self.call(what, lambda: send(operation, request), NoAnswerError, note)

    def _identity(self, kind: str, action: Request) -> object:
        """Return what is equal for two direct writes of which the second changes nothing."""
        adds = any(
            word in action.get("UpdateExpression", "")
            for word in ("ADD ", " + ", " - ", "list_append")
        )
        if kind not in {"Put", "Update", "Delete"} or adds:
            return object()
        return (
            str(action.get("Key") or action["Item"])
            if self.dynamodb is None
            else self.dynamodb.key(action)
        )

    def _call_aws(
        self, send: Callable[..., Any], client: Any, operation: str, request: Request
    ) -> Any:
        service = client.meta.service_model.service_name
        if service == "dynamodb":
            if self.dynamodb is not None:
                return self.dynamodb.send(operation, request)
            return answered(lambda: self.request(operation, request, partial(send, client)))

        def note(_: object) -> None:
            if not operation.startswith(_READS) and not self._declared:
                self.effects[f"direct {operation} of {service}"].add(object())

        perform = partial(send, client, operation, request)
        return self.call(
            f"{operation} of {service}",
            perform,
            lambda _: ReadTimeoutError(endpoint_url=service),
            note,
        )

    def once(self) -> Counter[str]:
        """Return how often each effect took place."""
        return Counter({name: len(found) for name, found in self.effects.items()})


class _Environment:
    """An environment in which the transport is botocore's, which the world replaces."""

    environ: Final = {"IDEMPOTENCY_TRANSPORT": "botocore"}


def _find(send: Send, request: Request) -> Record | None:
    item = send("GetItem", request).get("Item")
    return record_of(item) if item else None


class _Tables(FakeDynamoDB):
    """Tables whose requests are calls."""

    def __init__(
        self,
        world: World,
        tables: Mapping[str, Sequence[str]],
        indexes: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__(tables, world.clock, indexes=indexes)
        self._world = world

    def __call__(self, operation: str, request: Request, /) -> Mapping[str, Any]:
        return self._world.request(operation, request, super().__call__)


class _Letters(DeadLetterBox):
    """A dead-letter box that takes letters by calls, also as a client of SQS."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def send(self, dead_letter: DeadLetter) -> None:
        """Keep a dead letter."""
        self._world.call(
            f"dead letter {dead_letter.reason}", partial(super().send, dead_letter), DeadLetterError
        )

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
        return partial(self._call, step, getattr(self._store, step))

    def _call(self, step: str, perform: Callable[..., Any], *args: Any, **options: Any) -> Any:
        record = next((each for each in reversed(args) if isinstance(each, Record)), None)
        key = args[0] if record is None else record.key

        def note(found: object) -> None:
            self._world.records[key] = partial(self._store.read, key)
            if record is not None and found is record and args[-1] is not record:
                for effect in args[-1]:
                    self._world.effects[f"registered {type(effect).__name__} {effect.table}"].add(
                        object()
                    )

        what = f"{step} {key} {record.status if record else ''}"
        return self._world.call(
            what, partial(perform, *args, **options), StoreUnavailableError, note
        )
