"""One world for the handlers of a test: its clock, store, dead-letter box and count of effects."""

import inspect
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from botocore.client import BaseClient
from botocore.exceptions import ReadTimeoutError
from botocore.session import get_session

from carride_idempotency.clock import Timing
from carride_idempotency.consumer import Consumer
from carride_idempotency.dead_letters import DeadLetter, SqsDeadLetters
from carride_idempotency.effects import Effect, Keep
from carride_idempotency.entry.handlers import is_asynchronous
from carride_idempotency.errors import ConfigurationError, DeadLetterError, StoreUnavailableError
from carride_idempotency.invocation import lambda_deadline
from carride_idempotency.protocol.concurrency import is_in_a_loop
from carride_idempotency.record import IN_PROGRESS, Record
from carride_idempotency.record_items import record_of
from carride_idempotency.stores import Store, default_transport
from carride_idempotency.stores.dynamodb import DynamoDBStore
from carride_idempotency.stores.memory import MemoryStore
from carride_idempotency.stores.transport import NoAnswerError
from carride_idempotency.testing.contents import (
    Contents,
    Place,
    as_content,
    client_answer,
    identities,
    kept_in,
    text_of,
    wire_request,
)
from carride_idempotency.testing.doubles import (
    Crash,
    DeadLetterBox,
    Inline,
    Invocation,
    ManualClock,
)
from carride_idempotency.testing.dynamodb import (
    NO_NAMES,
    RECORD_KEY,
    FakeDynamoDB,
    KeyNames,
    answered,
)
from carride_idempotency.testing.expressions import Item, Request
from carride_idempotency.testing.guards import Time, refused_sockets
from carride_idempotency.testing.loop_time import LoopTime, loops_of
from carride_idempotency.testing.turns import InvocationThreads

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
"""Sends a request to DynamoDB, given its operation."""


class Sighting(NamedTuple):
    """One effect that was seen: its name, and what is equal for two that count as one."""

    name: str
    identity: object


type _Effects = dict[str, set[object]]
"""What is equal for sightings that count as one, by their name."""
type _Owners = dict[Sighting, str | None]
type _Touched = dict[Place, set[str | None]]
type _Records = dict[str, Callable[[], Record | None]]
type _KnownTables = dict[str, tuple[Send, tuple[str, ...]]]


_NONE: Final = "none"


class Fault(NamedTuple):
    """What happens to one call of an invocation."""

    kind: str = _NONE
    """One of `KINDS`."""
    meets: Callable[[int, str], bool] = lambda *_: False
    """Whether it happens at a call: its number, from 1, and what it is."""
    meanwhile: Callable[[], object] = lambda: None
    """What overtakes the call."""


NO_FAULT: Final = Fault()
NO_KEY: Final = object()
"""The key of an external call that the other system recognises by nothing."""


def _ignore(_: object) -> None:
    """Do nothing with an answer."""


@dataclass
class Run:
    """One invocation of a handler, as `World.invoke` returns it.

    Attributes:
        answer: what the handler returned; None if it raised.
        error: what the handler raised; a `Crash` if a fault ended its process; otherwise None.
        dead: whether a fault ended its process.
        calls: how many calls it has made.
        met: whether its fault has happened.
        name: the id of its delivery.
        key: the idempotency key whose claim it holds.
    """

    name: str
    fault: Fault
    calls: int = 0
    met: bool = False
    dead: bool = False
    answer: Any = None
    error: BaseException | None = None
    key: str | None = None
    unclaimed: list["Sighting"] = field(default_factory=list)
    """Effects without a claim, until the next record is written."""
    threads: InvocationThreads = field(default_factory=InvocationThreads)

    def fault_at(self, what: str) -> str:
        """Return the kind of the fault that meets the present call. A run meets one fault."""
        if self.met or not self.fault.meets(self.calls, what):
            return _NONE
        self.met = True
        return self.fault.kind


class World:
    """One clock, store, dead-letter box and count of effects, for the handlers of a test.

    Args:
        tables: the key attributes of each table that the handlers use, which are strings. The table
            of the records needs no entry. None: the handlers reach the DynamoDB of botocore's
            clients, such as moto's.
        indexes: the key attributes of indexes.
        store: the store of the records, such as a `MemoryStore`. Default: a `DynamoDBStore`.
        clock: the time. It stands still until the test, or a handler that waits, moves it.

    Attributes:
        dynamodb: the tables, as a transport and as a client of botocore's; None without ``tables``.
            Its type is Any, so that it stands for whatever type of client a handler takes.
        dead_letters: takes what is given up.
        effects: the different identities of each effect of an invocation, by its name.
        owners: the idempotency key of each effect, if one is known.
        touched: the idempotency keys whose invocations have written an item.
        unrecognised: the names of external calls that another system recognises by nothing.
        violations: what handlers did that no test may overlook, such as an undeclared connection.
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
        tables: KeyNames | None = NO_NAMES,
        *,
        indexes: KeyNames = NO_NAMES,
        store: Store | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        for table, key in {**(tables or {}), **indexes}.items():
            if isinstance(key, str):
                raise ConfigurationError(
                    f"the key of {table} is a list of attributes: write {{{table!r}: [{key!r}]}}"
                )
        self.clock = clock or ManualClock()
        self.dynamodb: Any = None if tables is None else _Tables(self, tables, indexes)
        self.dead_letters = _Letters(self)
        self.effects: _Effects = defaultdict(set)
        self.owners: _Owners = {}
        self.touched: _Touched = defaultdict(set)
        self.unrecognised: set[str] = set()
        self.violations: list[str] = []
        self.records: _Records = {}
        self.timeline: list[str] = []
        self._store: Any = store and _Watched(self, store)
        self._run: Run | None = None
        self._declared = 0
        self._sending = 0
        self._clients: dict[str, Any] = {}
        self._time = Time(self.clock, self.clock.advance)
        self._tables: _KnownTables = {}
        self._began_ms = self.clock()
        self._invocations: list[InvocationThreads] = []

    @property
    def store(self) -> Store:
        """The store for the consumers of this world."""
        with self._as_defaults_of(DynamoDBStore):
            return self._store or DynamoDBStore("Idempotency", transport=self.dynamodb)

    @contextmanager
    def installed(self) -> Generator[None]:
        """Have consumers, stores and dead-letter queues that are built inside be this world's.

        Inside, the calls of botocore's clients are calls of the running invocation. Those to
        DynamoDB reach ``dynamodb``, if the world has it.
        """
        send = BaseClient._make_api_call  # type: ignore[attr-defined]  # noqa: SLF001 - where tests of boto3 patch too

        def make_api_call(client: Any, operation: str, request: Request) -> Any:
            return self._call_aws(send, client, operation, request)

        with ExitStack() as stack:
            time = Timing(self.clock, self.clock.sleep, self.jitter)
            stack.enter_context(patch.object(Consumer, "_time", time))
            for kind in (Consumer, DynamoDBStore, MemoryStore, SqsDeadLetters, *self.timed):
                stack.enter_context(self._as_defaults_of(kind))
            deadline = inspect.unwrap(lambda_deadline)
            stack.enter_context(patch.object(deadline, "__defaults__", (self.clock,)))
            stack.enter_context(
                patch.dict(SqsDeadLetters.__init__.__kwdefaults__, client=self.dead_letters)
            )
            if self.dynamodb is not None:
                stack.enter_context(patch.object(default_transport, "os", _Environment))
                stack.enter_context(
                    patch.object(default_transport, "botocore_transport", lambda **_: self.dynamodb)
                )
            stack.enter_context(refused_sockets(self._refuses))
            loop_time = LoopTime(self.clock, self._time.wait, self._invocation_of)
            stack.enter_context(loops_of(loop_time))
            stack.enter_context(patch.object(BaseClient, "_make_api_call", make_api_call))
            yield

    def _invocation_of(self, thread: threading.Thread) -> InvocationThreads | None:
        """Return the invocation in which a thread works, the innermost one."""
        for invocation in reversed(self._invocations):
            if invocation.works_in(thread):
                return invocation
        return None

    def _as_defaults_of(self, kind: type) -> AbstractContextManager[object]:
        """Have a class take this world's clock, and what belongs to it, where it is given none."""
        given = {
            "clock": self.clock,
            "sleep": self.clock.sleep,
            "jitter": self.jitter,
            "concurrency": self.concurrency,
        }
        constructor = inspect.unwrap(kind.__dict__["__init__"])  # a fault may lie over it
        defaults = constructor.__kwdefaults__
        return patch.dict(defaults, {name: given[name] for name in given if name in defaults})

    def external(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        key: Callable[..., object],
        lost: type[Exception] = TimeoutError,
    ) -> Callable[..., Any]:
        """Return ``function`` as a call to another system, which faults can meet.

        Args:
            name: the effect's name.
            function: the call.
            key: returns what the other system recognises a repeated call by, from the call's
                arguments; `NO_KEY` if it recognises none; None if the call changes nothing. Calls
                with one key count as one effect.
            lost: what is raised when the request or its answer is lost.

        Raises:
            ConfigurationError: ``function`` is an ``async def``, whose call does nothing yet.
        """
        if is_asynchronous(function):
            raise ConfigurationError(
                f"world.external({name!r}, ...) takes a plain function, not an async def: an "
                "async handler calls it without await, or by asyncio.to_thread"
            )

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            found = key(*args, **kwargs)

            def perform() -> Any:
                self._declared += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self._declared -= 1

            def note(_: object) -> None:
                if found is NO_KEY:
                    self.unrecognised.add(f"external {name}")
                    self._see(f"external {name}", object())
                elif found is not None:
                    self._see(f"external {name}", found)

            has_key = found is not None and found is not NO_KEY
            what = f"{name} {found}" if has_key else name
            return self.call(what, perform, lost, note)

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
        """Invoke a Lambda handler; return how that ended, and do not raise.

        Its `Run` has the handler's ``answer``, or its ``error``. ``delivery`` is Lambda's request
        id.
        """
        outer = self._run
        run = Run(delivery, fault)
        self._run = run
        self._invocations.append(run.threads)
        self.say(f"{delivery} begins")
        context = Invocation(self.clock, request_id=delivery, timeout_s=timeout_s)
        with self._time.frozen():
            try:
                run.answer = handler(event, context)
            except (Exception, Crash) as error:  # noqa: BLE001 - the caller judges it
                run.error = error
            finally:
                for thread in run.threads.end():
                    self._violate(f"the thread {thread} goes on after its invocation: join it")
                self._invocations.remove(run.threads)
                self._run = outer
        self._time.follow()
        if run.dead:
            run.error = Crash()
        if run.error is None:
            self.say(f"{delivery} answers {run.answer!r:.100}")
        else:
            self.say(f"{delivery} raises {run.error!r}")
        return run

    def call[T](
        self,
        what: str,
        perform: Callable[[], T],
        lost: Callable[[str], Exception],
        note: Callable[[T], object] = _ignore,
    ) -> T:
        """Make a call of the running invocation. Outside of an invocation it is only performed.

        ``lost`` makes the error of a call whose answer is lost. ``note`` is called with the answer
        of a call that took place, also if that is lost.
        """
        run = self._run
        if run is None:
            return perform()
        if run.threads.outlives():
            self._violate(f"a thread makes the call {what} after its invocation: join it")
            return perform()
        if run.dead:
            raise Crash
        run.calls += 1
        kind = run.fault_at(what)
        mark = "" if kind == _NONE else f"  <- {kind.upper()}"
        self.say(f"{run.name} call {run.calls}: {what}{mark}")
        if kind in {OVERTAKEN, TAKEN_OVER}:
            with run.threads.paused():
                _outside_of_loops(run.fault.meanwhile)
            self._time.follow()
        if kind in {CRASH_BEFORE, CRASH_AFTER}:
            if kind == CRASH_AFTER:
                self._perform_unheard(perform, note)
            run.dead = True
            raise Crash
        if kind in {REQUEST_LOST, ANSWER_LOST}:
            if kind == ANSWER_LOST:
                self._perform_unheard(perform, note)
            raise lost(kind)
        answer = self._perform(perform)
        note(answer)
        self._time.follow()
        return answer

    def _perform[T](self, perform: Callable[[], T]) -> T:
        """Perform a call; the connections that it opens are its own."""
        self._sending += 1
        try:
            return perform()
        finally:
            self._sending -= 1

    def _perform_unheard[T](self, perform: Callable[[], T], note: Callable[[T], object]) -> None:
        """Perform a call whose answer nobody gets."""
        with suppress(Exception):
            note(self._perform(perform))

    def _refuses(self, peer: str) -> bool:
        """Refuse a connection of the running invocation that belongs to no call."""
        if self._run is None or self._sending:
            return False
        self._violate(
            f"a connection to {peer} is not declared: declare its call with world.external(...)"
        )
        return True

    def _violate(self, what: str) -> None:
        self.violations.append(what)
        self.say(what)

    def _see(self, name: str, identity: object, key: str | None = None) -> None:
        """Note an effect of the running invocation, and the idempotency key that it belongs to."""
        sighting = Sighting(name, identity)
        self.effects[name].add(identity)
        run = self._run
        owner = key or (run.key if run else None)
        if self.owners.get(sighting) is None:
            self.owners[sighting] = owner
        if owner is None and run is not None:
            run.unclaimed.append(sighting)

    def claim_effects(self, key: str) -> None:
        """Note that a record is about to be written.

        Effects that the invocation had before, without a claim, belong to its key.
        """
        run = self._run
        if run is None:
            return
        for sighting in run.unclaimed:
            self.owners[sighting] = self.owners[sighting] or key
        run.unclaimed.clear()

    def see_registered(self, name: str, identity: object, key: str) -> None:
        """Note an effect that was committed with the record of a key."""
        self._see(name, identity, key)

    def see_record(self, key: str, status: str) -> None:
        """Note that the running invocation has written a record; one IN_PROGRESS is its claim."""
        run = self._run
        if run is None:
            return
        run.key = key if status == IN_PROGRESS else None

    def say(self, text: str) -> None:
        """Add a line to the timeline."""
        self.timeline.append(f"{(self.clock() - self._began_ms) / 1000:9.1f} s  {text}")

    def request(self, operation: str, request: Request, send: Send) -> Mapping[str, Any]:
        """Send a request to DynamoDB as a call."""
        actions = _actions(operation, request)
        for action in actions:
            if action.writes_record:
                self.claim_effects(action.record_key)
        tables = [action.request.get("TableName", "") for action in actions]
        keys = [action.record_key for action in actions if action.record_key]
        what = " ".join(dict.fromkeys([operation, *tables, *keys]))

        def note(_: object) -> None:
            token = request.get("ClientRequestToken")
            self._note_writes([each for each in actions if each.writes], token, send)

        return self.call(what, lambda: send(operation, request), NoAnswerError, note)

    def _note_writes(self, writes: Sequence["_Action"], token: object, send: Send) -> None:
        """Note what a request has written; ``token`` is the same if it is sent again."""
        records = [write for write in writes if write.writes_record]
        for record in records:
            self._note_record(record.request, send)
        for place, write in enumerate(writes):
            if write.writes_record:
                continue
            if records:
                key = records[0].record_key
                self._see(f"registered {write.kind} {write.table}", (token, place), key)
                self.touched[self._place(write.request, send)].add(key)
            elif not self._declared:
                self._note_direct(write.kind, write.request, send)

    def _note_record(self, record: Request, send: Send) -> None:
        item = record["Item"]
        key = item[RECORD_KEY]["S"]
        find: Request = {
            "TableName": record["TableName"],
            "Key": {RECORD_KEY: {"S": key}},
            "ConsistentRead": True,
        }
        self.records[key] = partial(_find, send, find)
        place = self._place(record, send)
        self.touched[place].add(key)
        kept = kept_in(item)
        if kept:
            self._see(f"registered Keep {record['TableName']}", (key, text_of(kept)), key)
        self.see_record(key, item["status"]["S"])

    def _note_direct(self, kind: str, action: Request, send: Send) -> None:
        """Note a write outside of the commit. Two are the same if they leave the same content."""
        place = self._place(action, send)
        table = action["TableName"]
        _, names = self._tables[table]
        source = action.get("Item") or action["Key"]
        find = {
            "TableName": table,
            "ConsistentRead": True,
            "Key": {name: source[name] for name in names},
        }
        left = send("GetItem", find).get("Item")
        content = text_of(left)
        self._see(f"direct {kind} {table}", (place, content))
        running = self._run
        self.touched[place].add(None if running is None else running.key)

    def _place(self, action: Request, send: Send) -> Place:
        """Return the place of the item that an action is about."""
        table = action["TableName"]
        if table not in self._tables:
            self._tables[table] = (send, self._key_names(table, send))
        _, names = self._tables[table]
        source = action.get("Item") or action["Key"]
        return table, text_of({name: source[name] for name in names})

    def _key_names(self, table: str, send: Send) -> tuple[str, ...]:
        if self.dynamodb is not None:
            return tuple(self.dynamodb.key_names(table))
        described = send("DescribeTable", {"TableName": table})["Table"]["KeySchema"]
        return tuple(each["AttributeName"] for each in described)

    def contents(self) -> Contents:
        """Return what the tables hold that invocations have written.

        A record's item has only what a handler keeps in it.
        """
        contents: dict[Place, Item] = {}
        for table, (send, names) in self._tables.items():
            for item in _all_items(send, table):
                content = as_content(item)
                if content:
                    contents[table, text_of({name: item[name] for name in names})] = content
        return contents

    def _call_aws(
        self, send: Callable[..., Any], client: Any, operation: str, request: Request
    ) -> Any:
        service = client.meta.service_model.service_name
        if service == "dynamodb":
            return self._call_dynamodb(send, client, operation, request)

        def note(_: object) -> None:
            if operation.startswith(_READS) or self._declared:
                return
            for identity in identities(service, operation, request):
                self._see(f"direct {operation} of {service}", identity)

        return self.call(
            f"{operation} of {service}",
            partial(send, client, operation, request),
            lambda _: ReadTimeoutError(endpoint_url=service),
            note,
        )

    def _call_dynamodb(
        self, send: Callable[..., Any], client: Any, operation: str, request: Request
    ) -> Any:
        """Send a request of a client or of a resource of boto3's, whose values are Python's."""
        wire = wire_request(client, operation, request)
        if self.dynamodb is not None:
            return client_answer(client, operation, self.dynamodb.send(operation, wire))

        converts = any(wire[name] != value for name, value in request.items())

        def pass_on(name: str, other: Request) -> Any:
            if other is wire:
                return send(client, operation, request)
            plain = self._plain_client(client) if converts else client
            return send(plain, name, other)

        return answered(lambda: self.request(operation, wire, pass_on))

    def _plain_client(self, client: Any) -> Any:
        """Return a client of the same endpoint that takes the wire format, unlike a resource's."""
        url = client.meta.endpoint_url
        if url not in self._clients:
            session = get_session()
            self._clients[url] = session.create_client(
                "dynamodb", region_name=client.meta.region_name, endpoint_url=url
            )
        return self._clients[url]

    def once(self) -> Counter[str]:
        """Return how often each effect took place."""
        return Counter({name: len(found) for name, found in self.effects.items()})

    def once_for_each_key(self) -> Counter[tuple[str, str | None]]:
        """Return how often each effect took place for each idempotency key."""
        return Counter((sighting.name, key) for sighting, key in self.owners.items())


def _outside_of_loops(function: Callable[[], object]) -> None:
    """Call a function in a thread without an event loop: in one with a loop, no other can run."""
    if not is_in_a_loop():
        function()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="idempotency-meanwhile") as pool:
        pool.submit(function).result()


class _Environment:
    """An environment in which the transport is botocore's, which the world replaces."""

    environ: Final = {"IDEMPOTENCY_TRANSPORT": "botocore"}


class _Action(NamedTuple):
    """One read or write of an item in a request to DynamoDB."""

    kind: str
    """Such as ``Put``."""
    request: Request
    """As a request with this action alone has it."""

    @property
    def table(self) -> str:
        """The name of its table."""
        name: str = self.request["TableName"]
        return name

    @property
    def writes(self) -> bool:
        """Whether it can change something."""
        return not self.kind.startswith(_READS)

    @property
    def writes_record(self) -> bool:
        """Whether it writes the record of a key."""
        return self.writes and _is_record(self.request.get("Item") or {})

    @property
    def record_key(self) -> str:
        """The key of the record that it is about; empty if it is about something else."""
        item = self.request.get("Item") or self.request.get("Key") or {}
        found = item.get(RECORD_KEY)
        if not isinstance(found, dict):
            return ""
        return str(found.get("S", ""))


def _actions(operation: str, request: Request) -> list[_Action]:
    """Return the actions of a request to DynamoDB."""
    actions = []
    if "TransactItems" in request:
        for entry in request["TransactItems"]:
            for kind, action in entry.items():
                actions.append(_Action(kind, action))
        return actions
    if operation == "BatchWriteItem":
        for table, entries in request["RequestItems"].items():
            for entry in entries:
                for name, action in entry.items():
                    write = {"TableName": table, **action}
                    actions.append(_Action(name.removesuffix("Request"), write))
        return actions
    return [_Action(operation.removesuffix("Item"), request)]


def _is_record(item: Item) -> bool:
    return RECORD_KEY in item and "status" in item and "createdAt" in item


def _all_items(send: Send, table: str) -> Iterable[Item]:
    request: dict[str, Any] = {"TableName": table, "ConsistentRead": True}
    while True:
        page = send("Scan", request)
        yield from page["Items"]
        if "LastEvaluatedKey" not in page:
            return
        request["ExclusiveStartKey"] = page["LastEvaluatedKey"]


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
        self.send(DeadLetter.from_body(MessageBody))


def _name_of(effect: Effect) -> str:
    kind = type(effect).__name__
    return f"registered {kind}" if isinstance(effect, Keep) else f"registered {kind} {effect.table}"


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
            if record is None or found is not record:
                return
            effects: Sequence[Effect] = () if args[-1] is record else args[-1]
            for place, effect in enumerate(effects):
                identity = (key, record.owner, place)
                self._world.see_registered(_name_of(effect), identity, key)
            self._world.see_record(key, str(record.status))

        if record is not None:
            self._world.claim_effects(key)
        what = f"{step} {key}"
        if record is not None:
            what += f" {record.status}"
        return self._world.call(
            what, partial(perform, *args, **options), StoreUnavailableError, note
        )
