"""A record with a damaged number is corrupt, and troubles no other one, in every store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import fakeredis
import pytest

from carride_idempotency import (
    DynamoDBStore,
    Operation,
    PowertoolsRecords,
    Record,
    Store,
)
from carride_idempotency.dead_letters import CORRUPT_RECORD
from carride_idempotency.operators.choosing import CORRUPT, cause_of
from carride_idempotency.operators.command import main
from carride_idempotency.operators.reading import records_in
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Status
from carride_idempotency.record_items import ATTRIBUTES, record_of
from carride_idempotency.stores.valkey import ValkeyStore
from carride_idempotency.testing import FakeDynamoDB
from tests.samples import TABLE, World, event

KEY: Final = "history#k1"
NEIGHBOUR: Final = "history#k2"
DAY_MS: Final = 86_400_000
ATTRIBUTE_OF: Final = {
    field: name
    for field, (name, kind, _) in zip(Record._fields, ATTRIBUTES, strict=False)
    if kind == "N"
}
"""The attribute in DynamoDB of each number of a record."""
TEXTS: Final = ("1.5", "-1", "9" * 38, "253402300800000")
"""Numbers that no record has."""
NO_NUMBERS: Final = ("", "NaN", "-Infinity", "soon", "1e", "9" * 5000, "1E+400", "0x10", " ", "½")


class Stored(NamedTuple):
    """A store, and a way around it."""

    store: Store
    damage: Callable[[str, object], None]
    """Sets a field of the record under `KEY`, or removes it."""
    raw: Callable[[], object]
    """Returns what is stored under `KEY`."""


def _in_table(dynamodb: FakeDynamoDB, store: DynamoDBStore) -> Stored:
    stored: dict[str, Any] = {"TableName": TABLE, "Key": {"idempotencyKey": {"S": KEY}}}

    def damage(field: str, value: Any) -> None:
        item = dict(dynamodb.get_item(**stored)["Item"])
        name = ATTRIBUTE_OF.get(field, field)
        item.pop(name, None)
        if value is not None:
            item[name] = value
        dynamodb.put_item(TableName=TABLE, Item=item)

    return Stored(store, damage, lambda: dynamodb.get_item(**stored).get("Item"))


@contextmanager
def _dynamodb(world: World) -> Iterator[Stored]:
    yield _in_table(world.dynamodb, world.store)


@contextmanager
def _beside_powertools(world: World) -> Iterator[Stored]:
    until = datetime.fromtimestamp(world.clock() / 1000, UTC) + timedelta(days=10)
    before = PowertoolsRecords("Old", {"history": "old"}, until=until)
    dynamodb = FakeDynamoDB({"Old": ("id",), TABLE: ("idempotencyKey",)}, world.clock)
    store = DynamoDBStore(
        TABLE, before=before, transport=dynamodb, clock=world.clock, sleep=world.clock.sleep
    )
    yield _in_table(dynamodb, store)


@contextmanager
def _valkey(world: World) -> Iterator[Stored]:
    with fakeredis.FakeValkey(socket_timeout=1) as client:
        name = f"idempotency:{KEY}"

        def damage(field: str, value: Any) -> None:
            if value is None:
                client.hdel(name, field)
            else:
                client.hset(name, field, value)

        store = ValkeyStore(client, clock=world.clock, sleep=world.clock.sleep)
        yield Stored(store, damage, lambda: client.hgetall(name))


WIRES: Final[tuple[Mapping[str, Any], ...]] = (
    *({"N": text} for text in TEXTS),
    *({"S": text} for text in (*NO_NUMBERS, "7")),
    *({"NULL": True}, {"BOOL": True}, {"B": b"1"}, {"L": []}, {"M": {}}, {"SS": ["1"]}),
)
type Opener = Callable[[World], AbstractContextManager[Stored]]
DAMAGE: Final[Mapping[str, tuple[Opener, list[tuple[str, Any]]]]] = {
    "dynamodb": (_dynamodb, [(field, wire) for field in ATTRIBUTE_OF for wire in WIRES]),
    "powertools": (_beside_powertools, [(field, wire) for field in ATTRIBUTE_OF for wire in WIRES]),
    "valkey": (
        _valkey,
        [
            (field, text)
            for field in (*ATTRIBUTE_OF, "shift")
            for text in (*TEXTS, *NO_NUMBERS)
            if (field, text) != ("shift", "-1")
        ],
    ),
}
"""Each store, and what may be damaged there, and how."""
NOTES: Final = ("", "{", "[]", "5", '{"charge": 5}', '{"charge": true}', "[" * 9999)
"""What no record notes about external calls."""


def record(world: World, status: Status, key: str = KEY) -> Record:
    """A record that was written a day ago: a claim has crashed."""
    now_ms = world.clock() - DAY_MS
    return Record(
        key=key,
        status=status,
        owner=f"owner of {key}",
        attempt=1,
        lease_ms=now_ms + 60_000 if status == IN_PROGRESS else None,
        expiry=None if status == QUARANTINED else now_ms // 1000 + 30 * 86_400,
        fingerprint=None,
        delivery=None,
        region=None,
        created_ms=now_ms,
        updated_ms=now_ms,
    )


def runs_of(world: World, stored: Stored, key: str = "k1") -> tuple[str, int]:
    """Deliver an event; return its outcome, and how often the handler ran."""
    runs: list[Operation] = []
    world.store = stored.store  # type: ignore[assignment] # any store will do
    handler = world.consumer().event_handler(lambda message, operation: runs.append(operation))
    answer = handler(event(key), world.invocation("request-2"))
    return answer["outcome"], len(runs)


@pytest.mark.proof
@pytest.mark.parametrize("status", [IN_PROGRESS, FAILED, COMPLETED, QUARANTINED])
@pytest.mark.parametrize("opened", DAMAGE)
def test_a_damaged_record_is_corrupt_and_no_other_one(
    world: World, opened: str, status: Status
) -> None:
    """It stays as it is, and its deliveries are dead-lettered, until an operator releases it."""
    opener, damages = DAMAGE[opened]
    notes: list[Any] = [text if opened == "valkey" else {"S": text} for text in NOTES]
    for field, value in [*damages, *(("externals", note) for note in notes)]:
        with opener(world) as stored:
            world.dynamodb.clear(TABLE)
            world.box.letters.clear()
            for key in (KEY, NEIGHBOUR):
                stored.store.put_if_absent(record(world, status, key))
            stored.damage(field, value)
            before = stored.raw()
            what = (opened, status, field, value)
            assert runs_of(world, stored) == ("DeadLettered", 0), what
            assert world.reasons == [CORRUPT_RECORD], what
            assert stored.raw() == before, what
            found = {each.key: each for each in records_in(stored.store)}
            cause = cause_of(found[KEY], world.clock())
            assert (cause and cause.says, NEIGHBOUR in found) == (CORRUPT, True), what
            assert world.consumer().release("k1"), what
            is_done = (opened, status) == ("powertools", COMPLETED)  # as their item still says
            assert runs_of(world, stored)[1] == (0 if is_done else 1), what


@pytest.mark.parametrize("opened", DAMAGE)
def test_an_operator_sees_what_is_damaged(
    world: World, capsys: pytest.CaptureFixture[str], opened: str
) -> None:
    """``list`` shows all records, and ``show`` what cannot be read of this one."""
    opener, damages = DAMAGE[opened]
    one_of_each = dict(damages)
    for field, value in one_of_each.items():
        with opener(world) as stored:
            world.dynamodb.clear(TABLE)
            for key in (KEY, NEIGHBOUR):
                stored.store.put_if_absent(record(world, FAILED, key))
            stored.damage(field, value)
            assert main(["list"], stored.store) == 0
            text = capsys.readouterr().out
            assert (KEY in text, NEIGHBOUR in text) == (True, True)
            assert main(["show", KEY], stored.store) == 0
            said = f"FAILED, with damaged {field if opened == 'valkey' else ATTRIBUTE_OF[field]}"
            assert said in capsys.readouterr().out


@pytest.mark.parametrize("status", [IN_PROGRESS, FAILED, QUARANTINED])
@pytest.mark.parametrize("opened", DAMAGE)
def test_a_release_makes_no_call_of_unknown_outcome_again(
    world: World, opened: str, status: Status
) -> None:
    """The notes of a damaged record stay if they can be read, and so does what finds it."""
    opener, damages = DAMAGE[opened]
    one_of_each = dict(damages)
    calls: list[str] = []

    def charge(message: Any, operation: Operation) -> None:
        operation.external("charge", calls.append)

    for field, value in one_of_each.items():
        with opener(world) as stored:
            world.dynamodb.clear(TABLE)
            notes = '{"charge":null}'
            stored.store.put_if_absent(record(world, status)._replace(externals=notes))
            stored.damage(field, value)
            world.store = stored.store  # type: ignore[assignment] # any store will do
            assert world.consumer().release("k1"), field
            raw: Any = stored.raw()
            assert opened == "valkey" or "unsettledSince" in raw, field
            left = stored.store.read(KEY)
            assert (left and left.externals, left and left.expiry) == (notes, None), field
            world.consumer().event_handler(charge)(event(), world.invocation())
            quarantined = stored.store.read(KEY)
            assert (quarantined and quarantined.status) == QUARANTINED, field
            assert calls == [], field


@pytest.mark.parametrize("opened", DAMAGE)
def test_a_damaged_record_that_changes_meanwhile_is_not_released(world: World, opened: str) -> None:
    """A write compares what is stored, also where that cannot be read."""
    opener, _ = DAMAGE[opened]
    for first, second in (("1.5", "2.5"), ("1.5", "3"), ("-1", None)):
        values = [
            text if text is None or opened == "valkey" else {"N": text} for text in (first, second)
        ]
        with opener(world) as stored:
            world.dynamodb.clear(TABLE)
            stored.store.put_if_absent(record(world, FAILED))
            stored.damage("attempt", values[0])
            seen = stored.store.read(KEY)
            assert seen is not None
            stored.damage("attempt", values[1])
            changed = seen._replace(status=FAILED, attempt=0, owner="operator", revision=None)
            found = stored.store.compare_and_swap(seen, changed)
            assert (found and found.owner) == f"owner of {KEY}"


@pytest.mark.parametrize("status", [IN_PROGRESS, FAILED, COMPLETED, QUARANTINED])
@pytest.mark.parametrize("opened", ["dynamodb", "powertools"])
def test_a_number_that_is_absent_is_read_as_none(world: World, opened: str, status: Status) -> None:
    """Without its attempt, a record has had none; without a time, it says none."""
    opener, _ = DAMAGE[opened]
    for field in ATTRIBUTE_OF:
        if (field, status) == ("lease_ms", IN_PROGRESS):
            continue  # a claim without a lease is corrupt
        with opener(world) as stored:
            world.dynamodb.clear(TABLE)
            stored.store.put_if_absent(record(world, status))
            stored.damage(field, None)
            outcome, runs = runs_of(world, stored)
            ends: dict[Status, str] = {
                IN_PROGRESS: "Takeover",
                FAILED: "Retried",
                COMPLETED: "Duplicate",
            }
            if (opened, status) != ("powertools", IN_PROGRESS):  # their claim has ended, too
                assert outcome == ends.get(status, "DeadLettered")
            assert runs == (status in (IN_PROGRESS, FAILED))


def test_a_whole_number_may_be_written_in_any_form() -> None:
    """Another tool may write it with an exponent or a fraction of zeros."""
    item = {"idempotencyKey": {"S": KEY}, "status": {"S": COMPLETED}}
    for text in ("1000", "1E+3", "1000.0", "1.0e3", "01000"):
        assert record_of(item | {"attempt": {"N": text}}).attempt == 1000


POWERTOOLS_NUMBERS: Final = ("expiration", "in_progress_expiration")


@pytest.mark.parametrize("theirs", ["INPROGRESS", COMPLETED])
@pytest.mark.parametrize(
    "names", [POWERTOOLS_NUMBERS[:1], POWERTOOLS_NUMBERS[1:], POWERTOOLS_NUMBERS]
)
def test_a_damaged_item_of_powertools_is_taken_over_or_adopted(
    world: World, names: Sequence[str], theirs: str
) -> None:
    """A claim of theirs whose end cannot be read is over when its other time says so."""
    for wire in (None, *WIRES):
        with _beside_powertools(world) as stored:
            assert isinstance(stored.store, DynamoDBStore)
            world.store = stored.store
            key = stored.store._before.key_of(KEY, world.clock())  # type: ignore[attr-defined] # noqa: SLF001
            item: dict[str, Any] = {
                **key,
                "status": {"S": theirs},
                "expiration": {"N": str(world.clock() // 1000 + 3600)},
                "in_progress_expiration": {"N": str(world.clock() - 60_000)},
                **dict.fromkeys(names, wire),
            }
            dynamodb: Any = stored.store._transport  # noqa: SLF001 - the world's own
            dynamodb.put_item(
                TableName="Old", Item={each: its for each, its in item.items() if its is not None}
            )
            handler = world.consumer().event_handler(lambda message, operation: None)
            try:
                outcome = handler(event(), world.invocation())["outcome"]
            except Exception as error:  # noqa: BLE001 - shown with what was damaged
                outcome = type(error).__name__
            has_expired = "expiration" in names and wire in ({"N": "1.5"}, {"N": "-1"})
            done = "New" if has_expired else "Duplicate"
            expected = {done} if theirs == COMPLETED else {"Takeover", "BusyError"}
            assert outcome in expected, (names, theirs, wire)
