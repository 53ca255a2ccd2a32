"""A consumer moves from Powertools to this layer while events arrive, and nothing happens twice.

Powertools' own decorator and ours work on one stream of events: one after the other, in both
orders, and at once, with crashes.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final
from unittest.mock import Mock

import boto3
import greenlet
import pytest
import time_machine
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)
from moto import mock_aws

from carride_idempotency import (
    BusyError,
    ConfigurationError,
    Consumer,
    Done,
    DynamoDBStore,
    Operation,
    Policy,
    PowertoolsRecords,
    Store,
    Update,
    forget,
    open_store,
    release,
)
from carride_idempotency.clock import epoch_ms
from carride_idempotency.errors import StoreUnavailableError
from carride_idempotency.keys import letter_key, record_key
from carride_idempotency.record import COMPLETED, IN_PROGRESS, QUARANTINED, Record
from carride_idempotency.stores.transport import BotocoreTransport, ServiceError
from carride_idempotency.testing import DeadLetterBox, FakeDynamoDB, Invocation, eventbridge_event
from tests.samples import create_tables
from tests.stores.backends import local_client

OLD: Final = "PowertoolsRecords"
NEW: Final = "Records"
EFFECTS: Final = "Effects"
SORTED: Final[Mapping[str, str]] = {
    "key_attr": "pk",
    "sort_key_attr": "sk",
    "static_pk_value": "idempotency#shop",
}
"""The settings of Powertools for a table with a sort key."""
PREFIX: Final = "shop-function.tests.test_migration.Town.old.<locals>.handler"
START: Final = datetime(2026, 12, 1, 12, tzinfo=UTC)
UNTIL: Final = START + timedelta(days=10)
CRASH_IS_OVER: Final = timedelta(minutes=20)


class Crash(BaseException):
    """The process ends here."""


class Town:
    """Two versions of one consumer over the tables of both, and what has taken effect.

    Args:
        dynamodb: a client.
        atomic: whether the new version commits without a claim.
        sort_key: whether the table of Powertools has a sort key.
    """

    def __init__(self, dynamodb: Any, *, atomic: bool = False, sort_key: bool = False) -> None:
        self.dynamodb = dynamodb
        self.names: Mapping[str, Any] = SORTED if sort_key else {}
        self.step: Callable[[str, Callable[[], Any]], Any] = lambda _, request: request()
        self.failures: dict[str, int] = {}
        """How many of the next runs of a version fail."""
        self.ran = Counter[str]()
        """The runs of the old version that took effect, and those of the new one that began."""
        self.box = DeadLetterBox()
        self.time = time_machine.travel(START, tick=False)
        self.traveller: Any = None
        self.before = PowertoolsRecords(OLD, {"shop": PREFIX}, until=UNTIL, **self.names)
        self.store = self.store_before(self.before, _Stepping(self))
        self.atomic = atomic
        self.consumer = self.consumer_over(self.store)
        self.old = self.old_version()

    def store_before(self, before: PowertoolsRecords, client: Any) -> DynamoDBStore:
        transport = BotocoreTransport(client, 1.5)
        return DynamoDBStore(NEW, before=before, transport=transport)

    def consumer_over(self, store: Store, **policy: Any) -> Consumer[dict[str, Any]]:
        chosen = Policy(**{"atomic": self.atomic, "same_delivery_takes_over": False} | policy)
        return Consumer(
            "shop", store, key="detail.id", policy=chosen, dead_letters=self.box, region="here"
        )

    def old_version(self) -> Callable[[str], object]:
        """Return what delivers an event to the old version, by its key."""
        client: Any = _Stepping(self)
        layer = DynamoDBPersistenceLayer(OLD, boto3_client=client, **self.names)
        config = IdempotencyConfig(event_key_jmespath="detail.id", expires_after_seconds=86_400)

        def handler(event: dict[str, Any], context: Any) -> object:
            self._may_fail("old")
            self.ran["old"] += 1
            return {"by": "old"}

        handler.__qualname__ = PREFIX.rpartition("test_migration.")[2]
        handler.__module__ = "tests.test_migration"
        once: Any = idempotent(persistence_store=layer, config=config)(handler)
        return lambda key: once(event_of(key), Invocation(epoch_ms))

    def new(self, key: str) -> object:
        """Deliver an event to the new version."""

        def handler(event: dict[str, Any], operation: Operation) -> None:
            self.ran["new"] += 1
            self._may_fail("new")
            operation.write(
                Update(EFFECTS, {"id": event["detail"]["id"]}, "ADD n :one", values={":one": 1})
            )

        return self.consumer.event_handler(handler)(event_of(key), Invocation(epoch_ms))

    def _may_fail(self, version: str) -> None:
        if self.failures.get(version, 0) > 0:
            self.failures[version] -= 1
            raise OSError("no tariff")

    def deliver(self, version: str, key: str = "1") -> object:
        """Deliver an event to a version, which may refuse it."""
        with suppress(Exception):
            return self.old(key) if version == "old" else self.new(key)
        return None

    def counted(self) -> list[str]:
        """Return the names of the requests that follow."""
        names = list[str]()

        def step(name: str, request: Callable[[], Any]) -> Any:
            names.append(name)
            return request()

        self.step = step
        return names

    def effects(self, key: str = "1") -> int:
        """Return how often the event took effect, at both versions."""
        found = self.dynamodb.get_item(TableName=EFFECTS, Key={"id": {"S": key}})
        return int(found.get("Item", {}).get("n", {"N": "0"})["N"]) + self.ran["old"]

    def theirs(self, key: str = "1") -> Any:
        """Return the item of Powertools."""
        wire = self.before.key_of(f"shop#{key}", 0)
        return self.dynamodb.get_item(TableName=OLD, Key=wire, ConsistentRead=True).get("Item")

    def __enter__(self) -> "Town":
        self.traveller = self.time.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.time.__exit__(None, None, None)


class _Stepping:
    """A client each of whose requests is a step of the town."""

    def __init__(self, town: Town) -> None:
        self._town = town

    @property
    def exceptions(self) -> Any:
        return self._town.dynamodb.exceptions

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._town.dynamodb, name)
        return lambda **request: self._town.step(name, lambda: method(**request))


def event_of(key: str) -> dict[str, Any]:
    return eventbridge_event({"id": key}, event_id=f"id-{key}") | {
        "time": START.isoformat().replace("+00:00", "Z")
    }


def fake(*, sort_key: bool = False) -> FakeDynamoDB:
    return FakeDynamoDB({OLD: ("pk", "sk") if sort_key else ("id",), EFFECTS: ("id",)})


@pytest.fixture(autouse=True)
def function_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the Lambda function, with which Powertools' keys begin."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "shop-function")


@pytest.fixture(scope="module")
def local() -> Iterator[Callable[[], Any]]:
    """Return what starts AWS's DynamoDB Local, once, and returns a client."""
    with ExitStack() as running:
        yield cache(lambda: running.enter_context(local_client()))


@pytest.fixture(
    params=[
        "fake",
        pytest.param("moto", marks=pytest.mark.proof),
        "fake, sort key",
        pytest.param("local", marks=pytest.mark.peer),
        pytest.param("local, sort key", marks=pytest.mark.peer),
    ]
)
def town(request: pytest.FixtureRequest, local: Callable[[], Any]) -> Iterator[Town]:
    """A town over a DynamoDB in this process, and over AWS's DynamoDB Local."""
    where, _, kind = request.param.partition(", ")
    sort_key = bool(kind)
    with ExitStack() as running:
        if where == "fake":
            client: Any = fake(sort_key=sort_key)
        elif where == "moto":
            running.enter_context(mock_aws())
            client = boto3.client("dynamodb", region_name="us-east-1")
        else:
            client = local()
        if where != "fake":
            old = ("pk", "sk") if sort_key else ("id",)
            tables = {OLD: old, NEW: ("idempotencyKey",), EFFECTS: ("id",)}
            create_tables(client, tables)
            for table in tables:
                running.callback(client.delete_table, TableName=table)
        yield running.enter_context(Town(client, sort_key=sort_key))


# ── One after the other ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", list(itertools.product(("old", "new"), repeat=3)), ids="-".join)
def test_whichever_version_an_event_comes_to_it_takes_effect_once(
    town: Town, order: tuple[str, ...]
) -> None:
    """The first one runs it, and the others answer duplicates."""
    for version in order:
        town.deliver(version)
    assert town.effects() == 1
    assert town.ran[order[0]] == 1


def test_a_duplicate_gets_the_result_of_the_other_version(town: Town) -> None:
    """Each stores results where the other finds them, in a form that it reads."""
    layer = DynamoDBPersistenceLayer(OLD, boto3_client=town.dynamodb, **town.names)
    config = IdempotencyConfig(event_key_jmespath="id")

    def charge(order: dict[str, Any]) -> object:
        return {"by": "old", "cents": 1250}

    charge.__qualname__ = "charge"
    old = idempotent_function(
        charge, data_keyword_argument="order", persistence_store=layer, config=config
    )
    config.register_lambda_context(Invocation(epoch_ms))  # type: ignore[arg-type]
    prefix = f"shop-function.{charge.__module__}.charge"
    before = PowertoolsRecords(OLD, {"shop/charge": prefix}, until=UNTIL, **town.names)
    consumer = town.consumer_over(town.store_before(before, town.dynamodb))

    @consumer.function(key="id", name="charge")
    def new(id: str) -> object:  # noqa: A002 - the name of the key
        return {"by": "new", "at": START}

    assert old(order={"id": "a"}) == new(id="a") == {"by": "old", "cents": 1250}
    assert new(id="b") == {"by": "new", "at": START}
    assert old(order={"id": "b"}) == {"by": "new", "at": str(START)}
    assert new(id="a") == {"by": "old", "cents": 1250}, "it is ours by now"


def test_what_powertools_completed_is_kept_as_our_own_record(town: Town) -> None:
    """Further duplicates need no second table, also after the date."""
    town.deliver("old")
    town.deliver("new")
    found = town.store.read("shop#1")
    assert found is not None
    assert (found.status, found.owner) == (COMPLETED, "powertools")
    town.traveller.shift(UNTIL - START)
    calls = town.counted()
    assert town.new("1") == {"outcome": "Duplicate", "key": "shop#1", "attempt": 1}
    assert calls == ["put_item"]


def test_a_failure_at_one_version_is_retried_by_either(town: Town) -> None:
    """The claim of a failed attempt is given back at once."""
    for order in itertools.product(("old", "new"), repeat=2):
        town.failures = {order[0]: 1}
        key = "-".join(order)
        before = town.effects(key)
        town.deliver(order[0], key)
        assert town.effects(key) == before
        town.deliver(order[1], key)
        assert town.effects(key) == before + 1, order


def test_after_the_date_their_table_is_not_touched(town: Town) -> None:
    """The store is a plain one then, at its price."""
    town.traveller.shift(UNTIL - START)
    calls = town.counted()
    handler = town.consumer.event_handler(lambda event, operation: None)
    handler(event_of("1") | {"time": UNTIL.isoformat()}, Invocation(epoch_ms))
    assert calls == ["put_item", "put_item"]
    assert town.theirs() is None


def test_a_consumer_that_did_not_use_powertools_is_not_slowed(town: Town) -> None:
    """Only names in `prefixes` have a record there."""
    calls = town.counted()
    other = Consumer[dict[str, Any]]("other", town.store, key="detail.id")
    other.event_handler(lambda event, operation: None)(event_of("1"), Invocation(epoch_ms))
    assert calls == ["put_item", "put_item"]


# ── At work ───────────────────────────────────────────────────────────────────────────────────────


def interrupted(town: Town, version: str, at: int, *, done: bool) -> None:
    """Deliver an event whose process ends at its request of this number, before or after it."""
    numbers = itertools.count(1)

    def step(name: str, request: Callable[[], Any]) -> Any:
        if next(numbers) != at:
            return request()
        if done:
            request()
        raise Crash

    town.step = step
    with suppress(Crash):
        town.deliver(version)
    town.step = lambda _, request: request()


def test_a_run_at_powertools_is_waited_for(town: Town) -> None:
    """It may be at work, so a delivery to the new version is refused, and comes again."""
    interrupted(town, "old", at=1, done=True)
    with pytest.raises(BusyError):
        town.new("1")
    assert town.effects() == 0
    town.traveller.shift(CRASH_IS_OVER)
    assert town.new("1") == {"outcome": "Takeover", "key": "shop#1", "attempt": 2}
    assert town.effects() == 1


def test_a_run_here_is_waited_for_by_powertools(town: Town) -> None:
    """Its claim ends soon after ours."""
    interrupted(town, "new", at=1, done=True)
    town.deliver("old")
    assert (town.ran["old"], town.effects()) == (0, 0)
    town.traveller.shift(CRASH_IS_OVER)
    town.deliver("old")
    town.deliver("new")
    assert town.effects() == 1


@pytest.mark.parametrize("later", [CRASH_IS_OVER, timedelta(days=2)], ids=["lease", "window"])
def test_a_crash_at_powertools_is_a_takeover_so_external_calls_are_looked_up(
    town: Town, later: timedelta
) -> None:
    """The other system may have been called, and nobody was told: also after its window."""
    interrupted(town, "old", at=2, done=False)
    assert town.ran["old"] == 1, "its effect took place, and its record says nothing"
    town.traveller.shift(later)
    asked = list[str]()

    def look_up(key: str) -> Any:
        asked.append(key)
        return Done("charged before")

    def work(event: dict[str, Any], operation: Operation) -> None:
        made = operation.external("charge", lambda key: pytest.fail("twice"), probe=look_up)
        assert made == "charged before"

    town.consumer.event_handler(work)(event_of("1"), Invocation(epoch_ms))
    assert len(asked) == 1


def test_a_crash_at_powertools_is_never_run_again_if_the_policy_says_so(town: Town) -> None:
    """Its event is dead-lettered, and the old version does not run it either."""
    interrupted(town, "old", at=2, done=False)
    town.traveller.shift(CRASH_IS_OVER)
    careful = town.consumer_over(town.store, on_crash="quarantine")
    careful.event_handler(lambda event, operation: pytest.fail("twice"))(
        event_of("1"), Invocation(epoch_ms)
    )
    town.new("1")
    assert [letter.reason for letter in town.box.letters] == ["UNKNOWN"]
    town.traveller.shift(CRASH_IS_OVER)
    town.deliver("old")
    assert town.ran["old"] == 1
    assert release(town.store, "shop#1")
    town.deliver("old")
    assert town.ran["old"] == 2, "an operator has decided"


def test_heartbeats_keep_the_claim_at_powertools_too(town: Town) -> None:
    """A run that outlasts its first lease is not taken over by the old version."""

    def work(event: dict[str, Any], operation: Operation) -> None:
        for _ in range(4):
            town.traveller.shift(timedelta(seconds=20))
            assert operation.heartbeat()
            town.deliver("old")

    long = town.consumer_over(town.store, lease=30)
    long.event_handler(work)(event_of("1"), Invocation(epoch_ms, timeout_s=900))
    assert town.ran["old"] == 0
    assert town.theirs()["status"]["S"] == COMPLETED


def test_a_claim_that_powertools_has_taken_over_commits_nothing(town: Town) -> None:
    """Whoever comes late changes nothing."""

    def work(event: dict[str, Any], operation: Operation) -> None:
        town.traveller.shift(CRASH_IS_OVER)
        town.deliver("old")
        operation.write(Update(EFFECTS, {"id": "1"}, "ADD n :one", values={":one": 1}))

    with suppress(Exception):
        town.consumer.event_handler(work)(event_of("1"), Invocation(epoch_ms))
    assert town.effects() == 1


# ── Operators ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("completed_by", ["old", "new"])
def test_a_forgotten_key_runs_again_at_either_version(town: Town, completed_by: str) -> None:
    """What both tables say of it is forgotten."""
    town.deliver(completed_by)
    town.deliver("new")
    assert forget(town.store, "shop#1")
    town.deliver("new")
    town.deliver("old")
    assert town.effects() == 2


def test_a_quarantined_key_is_not_run_by_the_old_version(town: Town) -> None:
    """No delivery runs until an operator releases it."""
    town.failures = {"new": 3}
    for _ in range(3):
        town.deliver("new")
    found = town.store.read("shop#1")
    assert found is not None
    assert found.status == QUARANTINED
    town.deliver("old")
    assert town.effects() == 0
    assert release(town.store, "shop#1")
    town.deliver("old")
    town.deliver("new")
    assert town.effects() == 1


# ── At once, with crashes ─────────────────────────────────────────────────────────────────────────


class Actor:
    """A delivery that stops before each of its requests until the schedule lets it go on."""

    def __init__(self, town: Town, version: str) -> None:
        self.town = town
        self.version = version
        self.at: str | None = None
        self.thread: Any = greenlet.greenlet(self._run)

    def _run(self) -> None:
        with suppress(Crash):
            self.town.deliver(self.version)

    def step(self, name: str, request: Callable[[], Any]) -> Any:
        """Wait for the schedule; end the process before or after the request if it says so."""
        how = self.thread.parent.switch(name)
        if how == "crash before":
            raise Crash
        answer: Any = None
        error: Exception | None = None
        try:
            answer = request()
        except Exception as refused:  # noqa: BLE001 - the answer of DynamoDB
            error = refused
        if how == "crash after":
            raise Crash
        if error is not None:
            raise error
        return answer

    def go_on(self, how: str | None = None) -> None:
        """Run until the next request."""
        self.town.step = self.step
        self.at = self.thread.switch(how) if self.at else self.thread.switch()


def options(actors: list[Actor], crashes: int) -> list[tuple[int, str]]:
    """Return what can happen next: a request of an actor, with or without a crash."""
    possible = []
    for number, actor in enumerate(actors):
        if actor.at is None:
            continue
        possible.append((number, "go on"))
        # Powertools itself runs an event twice if its effect took place, and its process ends
        # before the record says so. No other layer can know of that effect.
        has_unrecorded_effect = actor.version == "old" and actor.at == "update_item"
        if crashes and not has_unrecorded_effect:
            possible.append((number, "crash before"))
        if crashes:
            possible.append((number, "crash after"))
    return possible


def schedules(
    versions: tuple[str, ...],
    *,
    crashes: int,
    atomic: bool,
    failing: str | None,
    begun: str | None,
) -> Iterator[tuple[list[tuple[int, str]], Town]]:
    """Run every schedule of a few deliveries of one event; yield it with what it has left."""
    paths: list[list[int]] = [[]]
    while paths:
        prefix = paths.pop()
        town = Town(fake(), atomic=atomic)
        with town:
            if begun is not None:
                interrupted(town, begun, at=1, done=True)
                town.traveller.shift(CRASH_IS_OVER)
            if failing is not None:
                town.failures = {failing: 1}
            actors = [Actor(town, version) for version in versions]
            for actor in actors:
                actor.go_on()
            taken = []
            left = crashes
            depth = 0
            while possible := options(actors, left):
                if depth < len(prefix):
                    choice = prefix[depth]
                else:
                    choice = 0
                    new = [
                        [*prefix[:depth], *([0] * (depth - len(prefix))), other]
                        for other in range(1, len(possible))
                    ]
                    paths += new
                number, how = possible[choice]
                left -= how != "go on"
                actors[number].go_on(how)
                taken.append((number, f"{actors[number].version}: {how}"))
                depth += 1
            town.step = lambda _, request: request()
            yield taken, town


LAST: Final = (("old", "new", "old"), ("new", "old", "new"))


def nothing_twice(
    versions: tuple[str, ...],
    *,
    crashes: int,
    atomic: bool,
    failing: str | None = None,
    begun: str | None = None,
) -> int:
    """Check every schedule, with later deliveries in both orders; return how many there are."""
    count = 0
    for last in LAST:
        every = schedules(versions, crashes=crashes, atomic=atomic, failing=failing, begun=begun)
        for taken, town in every:
            count += 1
            assert town.effects() <= 1, taken
            for version in last:
                town.traveller.shift(CRASH_IS_OVER)
                town.deliver(version)
            assert town.effects() == 1, (taken, last)
    return count


@pytest.mark.parametrize("atomic", [False, True], ids=["claimed", "atomic"])
@pytest.mark.parametrize("failing", [None, "old", "new"])
def test_two_versions_at_once_and_a_crash_give_one_effect(
    atomic: bool, failing: str | None
) -> None:
    """In every order of their requests, with a crash before or after any of them."""
    assert nothing_twice(("old", "new"), crashes=1, atomic=atomic, failing=failing) > 20


@pytest.mark.proof
@pytest.mark.parametrize("begun", ["old", "new"])
@pytest.mark.parametrize(
    "versions", list(itertools.product(("old", "new"), repeat=2)), ids="-".join
)
def test_two_takeovers_at_once_and_a_crash_give_one_effect(
    versions: tuple[str, ...], begun: str
) -> None:
    """An earlier attempt has crashed, at either version, and both find its claim."""
    assert nothing_twice(versions, crashes=1, atomic=False, begun=begun) > 10


@pytest.mark.proof
@pytest.mark.parametrize("atomic", [False, True], ids=["claimed", "atomic"])
@pytest.mark.parametrize(
    "versions",
    [("old", "new", "old"), pytest.param(("new", "old", "new"), marks=pytest.mark.thorough)],
    ids="-".join,
)
def test_three_deliveries_at_once_and_two_crashes_give_one_effect(
    versions: tuple[str, ...], atomic: bool
) -> None:
    """Whichever of them ends, and wherever."""
    assert nothing_twice(versions, crashes=2, atomic=atomic) > 500


# ── Names and settings ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("found", "key", "data"),
    [
        ("order-7", "order-7", None),
        ("50%#1", "50%#1", None),
        ("ünï\ud83d", "ünï\ud83d", None),
        (["a", "b#c"], ["a", "b#c"], None),
        (["a"], ["a"], None),
        (7, 7, int),
        (["a", 7], ["a", 7], lambda key: [key[0], int(key[1])]),
    ],
)
@pytest.mark.parametrize("hash_function", ["md5", "sha256"])
def test_a_key_is_found_under_the_name_that_powertools_gives_it(
    found: object, key: Any, data: Any, hash_function: str
) -> None:
    """Whatever its JMESPath expression finds, and whichever hash it is configured with."""
    layer = DynamoDBPersistenceLayer(OLD, boto3_client=fake())  # type: ignore[arg-type]
    config = IdempotencyConfig(event_key_jmespath="key", hash_function=hash_function)
    layer.configure(config, "app.handler")
    theirs = layer._get_hashed_idempotency_key({"key": found})  # noqa: SLF001 - its own name of it
    settings = {} if data is None else {"data": data}
    before = PowertoolsRecords(
        OLD,
        {"shop": "shop-function.app.handler"},
        until=UNTIL,
        hash_function=hash_function,
        **settings,
    )
    assert before.key_of(record_key("shop", key), 0) == {"id": {"S": theirs}}


def test_a_table_with_a_sort_key_and_other_names_is_read() -> None:
    """The names are those of Powertools' layer."""
    names: Any = {
        "key_attr": "pk",
        "sort_key_attr": "sk",
        "static_pk_value": "idempotency#shop",
        "expiry_attr": "ends",
        "in_progress_expiry_attr": "lease",
        "status_attr": "state",
        "data_attr": "answer",
    }
    client = FakeDynamoDB({OLD: ("pk", "sk"), EFFECTS: ("id",)})
    layer = DynamoDBPersistenceLayer(OLD, boto3_client=client, **names)  # type: ignore[arg-type]
    config = IdempotencyConfig(event_key_jmespath="detail.id")
    once: Any = idempotent(persistence_store=layer, config=config, key_prefix="mine")(
        lambda event, context: {"by": "old"}
    )
    before = PowertoolsRecords(
        OLD, {"shop": "mine"}, until=datetime.max.replace(tzinfo=UTC), **names
    )
    store = DynamoDBStore(NEW, before=before, transport=client)
    consumer = Consumer[dict[str, Any]]("shop", store, key="detail.id")
    handler = consumer.event_handler(lambda event, operation: None)
    now = {"time": datetime.now(UTC).isoformat()}
    once(event_of("a") | now, Invocation(epoch_ms))
    assert handler(event_of("a") | now, Invocation(epoch_ms))["outcome"] == "Duplicate"
    assert handler(event_of("b") | now, Invocation(epoch_ms))["outcome"] == "New"
    assert once(event_of("b") | now, Invocation(epoch_ms)) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"prefixes": "shop-function.app.handler"}, "is a mapping"),
        ({"prefixes": {}}, "is a mapping"),
        ({"until": START.replace(tzinfo=None)}, "with a time zone"),
        ({"until": "2026-12-31"}, "with a time zone"),
        ({"sort_key_attr": "sk"}, "static_pk_value"),
    ],
)
def test_a_wrong_setting_is_refused_where_it_is_given(arguments: Any, says: str) -> None:
    """The message says what to write."""
    settings: Any = {"prefixes": {"shop": "p"}, "until": UNTIL} | arguments
    with pytest.raises(ConfigurationError, match=says):
        PowertoolsRecords(OLD, **settings)


def test_only_records_of_powertools_can_be_before() -> None:
    """A table's name alone does not say how its keys begin."""
    wrong: Any = "PowertoolsTable"
    with pytest.raises(ConfigurationError, match="before= takes PowertoolsRecords"):
        DynamoDBStore(NEW, before=wrong, transport=fake())


def test_the_mark_of_a_dead_letter_is_ours_alone() -> None:
    """It is no record of an event."""
    before = PowertoolsRecords(OLD, {"shop": PREFIX}, until=UNTIL)
    assert before.key_of(letter_key("shop", "here", "event-1"), 0) is None
    assert before.key_of("shop#event-1", 0) is not None


def test_a_key_of_which_only_the_hash_is_known_is_refused(town: Town) -> None:
    """Its record at Powertools cannot be found, so it could run twice."""
    with pytest.raises(ConfigurationError, match="drain this consumer"):
        town.new("x" * 3_000)


@pytest.mark.parametrize("status", ["COMPLETED", "INPROGRESS"])
def test_an_answer_about_another_item_is_not_believed(status: str) -> None:
    """It is the answer to another request, so what became of this one is unknown."""
    item = {"id": {"S": "another"}, "status": {"S": status}, "expiration": {"N": "1800000000"}}
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Item": item}]
    refusal = ServiceError(
        "TransactionCanceledException", 400, "refused", {"CancellationReasons": reasons}
    )
    before = PowertoolsRecords(OLD, {"shop": PREFIX}, until=datetime.max.replace(tzinfo=UTC))
    store = DynamoDBStore(
        NEW, before=before, transport=Mock(longest_try_s=1.5, side_effect=refusal)
    )
    claim = Record("shop#a", IN_PROGRESS, "owner", 1, 1, 1, None, None, None, 1, 1)
    for write in (store.put_if_absent, store.update_if_owner):
        with pytest.raises(StoreUnavailableError, match="another key"):
            write(claim)


def test_a_store_without_a_migration_is_a_plain_one() -> None:
    """Neither its class nor its imports know of Powertools."""
    assert type(DynamoDBStore(NEW, transport=fake())) is DynamoDBStore
    os.environ.setdefault("AWS_REGION", "us-east-1")
    assert type(open_store("dynamodb:Records", transport=fake())) is DynamoDBStore
