"""The operator's command: it finds records, shows what it would do, and does that or nothing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import EndpointConnectionError

from carride_idempotency import (
    Consumer,
    DynamoDBStore,
    MemoryStore,
    Operation,
    PermanentError,
    Policy,
    Record,
    Store,
    forget,
)
from carride_idempotency.clock import epoch_ms
from carride_idempotency.operators.choosing import Choice, cause_of
from carride_idempotency.operators.command import main, without_password
from carride_idempotency.operators.explaining import explain
from carride_idempotency.operators.records import Records
from carride_idempotency.protocol.decision import (
    ClaimRequest,
    Corrupt,
    Limits,
    Write,
    decide,
    is_corrupt,
)
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUARANTINED,
    STATUSES,
    Status,
    damaged,
)
from carride_idempotency.record import status_of as status_read
from carride_idempotency.record_items import item_of
from carride_idempotency.recovery import stored_form
from carride_idempotency.testing import FakeDynamoDB, Invocation, eventbridge_event
from tests.stores.backends import MOTO, Backend, openers, over

__all__ = ["backend", "openers"]

backend = over("memory", "fake_dynamodb", MOTO, "fake_valkey", "fake_redis")
HOUR: Final = 3_600_000
DAY_S: Final = 86_400


@pytest.fixture(autouse=True)
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of plans."""
    monkeypatch.setenv("IDEMPOTENCY_PLANS", str(tmp_path / "plans"))
    monkeypatch.delenv("IDEMPOTENCY_STORE")
    return tmp_path / "plans"


def record(key: str, status: Status, age_ms: int = 0, **fields: Any) -> Record:
    """Return a record that was written some time ago."""
    written = epoch_ms() - age_ms
    plain = Record(
        key=key,
        status=status,
        owner=f"owner of {key}",
        attempt=1,
        lease_ms=written + 60_000 if status == IN_PROGRESS else None,
        expiry=None if status == QUARANTINED else written // 1000 + 30 * DAY_S,
        fingerprint=None,
        delivery=None,
        region=None,
        created_ms=written,
        updated_ms=written,
    )
    return plain._replace(**fields)


RECORDS: Final[tuple[tuple[str, Status, int, dict[str, Any]], ...]] = (
    ("billing#a", COMPLETED, 3 * HOUR, {}),
    ("billing#b", QUARANTINED, 2 * HOUR, {"error": "ValueError: no invoice 7f3"}),
    ("billing#c", QUARANTINED, 2 * HOUR, {"error": "ValueError: no invoice 8a1"}),
    ("billing#d", QUARANTINED, 2 * HOUR, {"error": "KeyError: 'total'"}),
    ("billing/charge#e", QUARANTINED, 0, {"externals": '{"charge":null}'}),
    ("billing2#f", FAILED, HOUR, {"error": "OSError: 3"}),
    ("orders#g", IN_PROGRESS, 0, {}),
    ("orders#h", IN_PROGRESS, 5 * HOUR, {}),
)


@pytest.fixture
def store(backend: Backend) -> Store:
    """A store with records of every kind."""
    for key, status, age_ms, fields in RECORDS:
        backend.store.put_if_absent(record(key, status, age_ms, **fields))
    return backend.store


class Console:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.status = 0

    def __call__(self, line: str, store: Store | None, *more: str) -> str:
        """Run a command; return what it printed."""
        self.status = main([*line.split(), *more], store)
        printed = self.capsys.readouterr()
        return printed.out + printed.err

    def json(self, line: str, store: Store | None, *more: str) -> Any:
        return json.loads(self(f"{line} --json", store, *more))

    def keys(self, line: str, store: Store) -> list[str]:
        """Return the keys that a command lists or would change."""
        return sorted(each["key"] for each in self.json(line, store)["records"])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


def status_of(store: Store, key: str) -> Status | None:
    found = store.read(key)
    return None if found is None else found.status


# ── Finding ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("", "abcdefgh"),
        ("--consumer billing", "abcde"),
        ("--consumer billing/charge", "e"),
        ("--consumer bill", ""),
        ("--status quarantined", "bcde"),
        ("--older 90m", "abcdh"),
        ("--younger 90m", "efg"),
        ("--older 90m --younger 4h", "abcd"),
        ("--cause invoice", "bc"),
        ("--cause crashed", "h"),
        ("--consumer billing --status COMPLETED", "a"),
    ],
)
def test_records_are_found_by_consumer_status_age_and_cause(
    run: Console, store: Store, options: str, found: str
) -> None:
    """Each option narrows the list, over any store."""
    assert [key[-1] for key in run.keys(f"list {options}", store)] == sorted(found, key=_place)


def _place(letter: str) -> str:
    return next(key for key, *_ in RECORDS if key.endswith(f"#{letter}"))


def test_a_cause_is_the_same_for_keys_that_fail_alike(run: Console, store: Store) -> None:
    """Ids and numbers do not count; its id finds the keys again."""
    rows = {row["key"]: row for row in run.json("list", store)["records"]}
    assert rows["billing#b"]["cause"] == rows["billing#c"]["cause"]
    assert rows["billing#b"]["says"] == "ValueError: no invoice …"
    assert rows["billing#d"]["cause"] != rows["billing#b"]["cause"]
    assert rows["billing#a"]["cause"] == ""
    cause = rows["billing#b"]["cause"]
    assert run.keys(f"list --cause {cause}", store) == ["billing#b", "billing#c"]


def test_a_list_ends_at_its_limit_and_says_so(run: Console, store: Store) -> None:
    """Nobody takes a part for the whole."""
    assert "There may be more than 3" in run("list --limit 3", store)
    assert "There may be more" not in run("list --limit 8", store)
    assert run("list --consumer nobody", store) == "there are no such records\n"


def test_a_record_is_shown_with_what_its_next_delivery_does(run: Console, store: Store) -> None:
    """Times are in words, and what is absent is left out."""
    shown = run("show billing#a", store)
    assert "further deliveries are answered as duplicates" in shown
    assert "externals" not in shown
    assert re.search(r"^updated_ms +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", shown, re.MULTILINE)
    assert list(run.json("show billing/charge#e", store)["unknown_calls"]) == ["charge"]
    assert "there is no record of 'billing#z'" in run("show billing#z", store)
    assert run.status == 2


def test_what_an_unknown_call_has_sent_is_shown(run: Console, backend: Backend) -> None:
    """An operator looks up at the other system what `list` and `show` print."""
    sent = list[str]()
    own = list[str]()

    def charge(key: str) -> str:
        sent.append(key)
        raise OSError("no answer")

    def work(event: dict[str, Any], operation: Operation) -> None:
        own.append(operation.downstream_key)
        operation.external("charge", charge)

    with pytest.raises(OSError, match="no answer"):
        consumer_over(backend.store, work)()
    assert f"charge {sent[0]}" in run("list", backend.store)
    shown = run.json("show shop#7", backend.store)
    assert shown["unknown_calls"] == {"charge": sent[0]}
    assert shown["downstream_key"] == own[0]
    assert sent[0] in shown["says"]


def test_a_list_without_unknown_calls_has_no_column_for_them(run: Console, store: Store) -> None:
    """Most keys fail in another way."""
    assert "downstream_keys" in run("list", store)
    assert "downstream_keys" not in run("list --cause invoice", store)


@pytest.mark.parametrize("action", ["release", "forget", "settle --not-done"])
def test_the_key_of_a_function_is_called_again(run: Console, backend: Backend, action: str) -> None:
    """It has no delivery, and its dead letter cannot be redriven."""
    key = "billing/charge#7"
    for letter in (False, True):
        found = record(key, QUARANTINED, externals='{"pay":null}', dead_lettered=letter)
        before = backend.store.put_if_absent(found)
        backend.store.compare_and_swap(before, found)
        says = run.json(f"show {key}", backend.store)["says"]
        (planned,) = run.json(action, backend.store, key)["records"]
        for text in (says, planned["then"]):
            assert "delivery" not in text
            assert "redrive" not in text
            assert "dead-letter queue" not in text
        assert "the next call" in planned["then"]


def test_an_index_of_what_waits_is_read_in_place_of_the_table(run: Console) -> None:
    """A whole table may be large: the request names the index, and asks for no consistent read."""
    asked = list[Any]()
    fake = FakeDynamoDB({})

    def transport(operation: str, request: Any) -> Any:
        asked.append((operation, request))
        pages = {0: {"Items": [], "LastEvaluatedKey": {"k": 1}}, 1: {"Items": []}}
        return pages[len(asked) - 1]

    transport.longest_try_s = fake.longest_try_s  # type: ignore[attr-defined]
    run("list --index byUnsettledSince", DynamoDBStore("Records", transport=transport))  # type: ignore[arg-type]
    assert [operation for operation, _ in asked] == ["Scan", "Scan"]
    assert asked[0][1]["IndexName"] == "byUnsettledSince"
    assert asked[0][1]["ConsistentRead"] is False


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "key", "left"),
    [
        ("release", "billing#b", FAILED),
        ("release", "orders#h", FAILED),
        ("forget", "billing#a", None),
        ("forget", "billing2#f", None),
        ("settle --not-done", "billing/charge#e", FAILED),
    ],
)
def test_a_change_is_shown_first(
    run: Console, store: Store, command: str, key: str, left: str | None
) -> None:
    """Without `--yes` nothing is written. With it, what was shown is done."""
    before = status_of(store, key)
    assert "nothing was done; add --yes" in run(command, store, key)
    assert status_of(store, key) == before
    assert "1 of 1 done" in run(command, store, key, "--yes")
    assert run.status == 0
    rows = run.json("list", store)["records"]
    statuses = {row["key"]: row["status"] for row in rows}
    assert statuses.get(key) == left


@pytest.mark.parametrize(
    ("command", "key", "why"),
    [
        ("release", "billing#a", "nothing to release"),
        ("release", "orders#g", "is held"),
        ("forget", "orders#g", "is held"),
        ("settle --not-done", "orders#g", "is held"),
        ("settle --not-done", "billing#b", "no external call whose outcome is unknown"),
        ("settle --not-done --call ship", "billing/charge#e", "no external call 'ship'"),
        ("forget", "billing#z", "there is no record"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    run: Console, store: Store, command: str, key: str, why: str
) -> None:
    """The message says why, and nothing is written."""
    before = store.read(key)
    for yes in ("", "--yes"):
        assert why in run(f"{command} {yes}", store, key)
        assert run.status == 2
    after = store.read(key)
    assert (before and before.owner) == (after and after.owner)


def test_keys_are_changed_in_bulk_by_their_cause(run: Console, store: Store) -> None:
    """Other keys stay as they are, and what cannot be changed is counted."""
    assert run.keys("release --consumer billing --cause invoice", store) == [
        "billing#b",
        "billing#c",
    ]
    run("release --consumer billing --cause invoice --yes", store)
    assert [status_of(store, f"billing#{name}") for name in "bcd"] == [FAILED, FAILED, QUARANTINED]
    shown = run("release --consumer billing --older 90m", store)
    assert "release billing#d" in shown
    assert "1 left alone: is neither quarantined nor crashed" in shown


class Throttled:
    """A DynamoDB that answers some keys of a batch, and leaves the others out."""

    longest_try_s = 25.0

    def __init__(self, answered: int) -> None:
        self.asked = list[int]()
        """How many keys each batch had."""
        self._answered = answered
        self._dynamodb = FakeDynamoDB({})

    def __call__(self, operation: str, request: Any, /) -> Any:
        if operation != "BatchGetItem":
            return self._dynamodb(operation, request)
        ((table, wanted),) = request["RequestItems"].items()
        self.asked.append(len(wanted["Keys"]))
        now = wanted | {"Keys": wanted["Keys"][: self._answered]}
        later = wanted | {"Keys": wanted["Keys"][self._answered :]}
        answer = self._dynamodb(operation, {"RequestItems": {table: now}})
        return {**answer, "UnprocessedKeys": {table: later} if later["Keys"] else {}}


@pytest.mark.parametrize(
    ("answered", "asked"),
    [
        (100, [100, 30]),
        (40, [100, 60, 20, 30]),
        (10, [*range(100, 0, -10), 30, 20, 10]),
        (0, [100] * 6),
    ],
)
def test_what_a_batch_leaves_out_is_asked_for_again(
    run: Console, answered: int, asked: list[int]
) -> None:
    """It is not taken for absent, and a table that answers nothing is not asked for ever."""
    transport = Throttled(answered)
    store = DynamoDBStore("Records", transport=transport, sleep=lambda _: None)
    keys = [f"billing#{number:03}" for number in range(130)]
    for key in keys:
        store.put_if_absent(record(key, QUARANTINED))
    shown = run(f"release {' '.join(keys)}", store)
    assert transport.asked == asked
    assert run.status == (0 if answered else 2)
    assert ("110 more" in shown) is bool(answered)


DELIVERY: Final = ClaimRequest(
    key="billing#a",
    owner="a delivery",
    fingerprint=None,
    delivery=None,
    region=None,
    deadline_ms=None,
    renewed=False,
    limits=Limits(
        window_s=DAY_S,
        max_attempts=3,
        lease_ms=60_000,
        margin_ms=0,
        skew_ms=10_000,
        same_delivery_takes_over=False,
    ),
)


@pytest.mark.parametrize("left_ms", [-HOUR, HOUR])
@pytest.mark.parametrize("damage", [{}, {"createdAt": "soon"}])
@pytest.mark.parametrize("stored", [*STATUSES, "", "LOST", "completed"])
def test_what_is_said_of_an_ended_window_is_what_a_delivery_does(
    stored: str, damage: dict[str, str], left_ms: int
) -> None:
    """A command leaves out what a delivery forgets, and nothing else: a corrupt record stays."""
    now_ms = epoch_ms()
    known = record("billing#a", status_read(stored), 3 * HOUR)
    known = known._replace(expiry=(now_ms + left_ms) // 1000)
    if damage:
        known = damaged(known, damage, [])
    store = MemoryStore()
    store.put_if_absent(known)
    step = decide(known, DELIVERY, now_ms)
    runs_as_new = isinstance(step, Write) and step.record.attempt == 1
    listed = [*Records(store).chosen(Choice(), now_ms)]
    assert (listed == []) is runs_as_new
    says = explain(known, datetime.fromtimestamp(now_ms / 1000, UTC), {}).says
    assert ("its window has ended" in says) is runs_as_new
    assert (isinstance(step, Corrupt), "the record is corrupt" in says) == (is_corrupt(known),) * 2


@pytest.mark.parametrize("attribute", [{"status": {"S": "LOST"}}, {"createdAt": {"S": "soon"}}])
def test_a_corrupt_record_is_released_after_its_window(
    run: Console, attribute: dict[str, Any]
) -> None:
    """A delivery of its key is dead-lettered, and does not run as if it were the first."""
    ended = epoch_ms() // 1000 - DAY_S
    item = item_of(record("billing#a", COMPLETED, 2 * HOUR, expiry=ended)) | attribute
    fake = FakeDynamoDB({})
    store = DynamoDBStore("Records", transport=fake)
    fake("PutItem", {"TableName": "Records", "Item": item})
    assert run.keys("list", store) == ["billing#a"]
    assert "1 of 1 done" in run("release billing#a --yes", store)
    assert status_of(store, "billing#a") == FAILED


def test_everything_at_once_is_not_offered(run: Console, store: Store) -> None:
    """An operator who forgets to choose does not forget every key."""
    assert "everything at once is not offered" in run("forget --yes", store)
    assert run.status == 2
    assert len(run.json("list", store)["records"]) == len(RECORDS)


@pytest.mark.parametrize("command", ["release", "forget"])
def test_what_has_changed_since_the_preview_is_left_alone(
    run: Console, store: Store, command: str
) -> None:
    """`--yes` does exactly what was shown, or nothing."""
    run(f"{command} --cause invoice", store)
    seen = store.read("billing#c")
    assert seen is not None
    store.compare_and_swap(seen, seen._replace(owner="another", attempt=2))
    assert "nothing was done, because this has changed" in run(
        f"{command} --cause invoice --yes", store
    )
    assert status_of(store, "billing#b") == QUARANTINED
    store.put_if_absent(record("billing#new", QUARANTINED, error="ValueError: no invoice 9"))
    assert "billing#new is new" in run(f"{command} --cause invoice --yes", store)


def test_a_claim_that_comes_in_between_wins(run: Console, store: Store) -> None:
    """A record that changes between the check and the write is left alone, and named."""

    class Overtaken:
        """A store in which another delivery is always a moment earlier."""

        transactional = False

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def compare_and_swap(self, seen: Record, new: Record, *effects: Any) -> Record | None:
            store.compare_and_swap(seen, seen._replace(owner="earlier", attempt=seen.attempt + 1))
            return store.compare_and_swap(seen, new)

    overtaken: Any = Overtaken()
    assert "billing#b has changed since it was read" in run("release --yes", overtaken, "billing#b")
    assert run.status == 1
    assert status_of(store, "billing#b") == QUARANTINED


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have somebody type."""
    outer, inner = os.openpty()
    with os.fdopen(outer), os.fdopen(inner) as typed:
        monkeypatch.setattr("sys.stdin", typed)
        yield


@pytest.mark.parametrize("verb", ["release", "forget"])
def test_a_terminal_frees_no_key_that_was_not_shown(
    run: Console, store: Store, verb: str, terminal: None
) -> None:
    """The same words carry out what they have shown, and so does its name."""
    assert "no plan of this command was shown" in run(f"{verb} billing#b --yes", store)
    assert (run.status, status_of(store, "billing#b")) == (2, QUARANTINED)
    run(f"{verb} billing#b", store)
    assert "1 of 1 done" in run(f"{verb} billing#b --yes", store)
    plan = run.json(f"{verb} billing#c", store)["plan"]
    assert "1 of 1 done" in run(f"{verb} billing#c --yes --plan {plan}", store)


def test_without_a_terminal_a_script_frees_keys_at_once(run: Console, store: Store) -> None:
    """It has decided before."""
    assert "1 of 1 done" in run("release billing#b --yes", store)


def test_a_plan_is_carried_out_once_by_its_name(run: Console, store: Store) -> None:
    """Its id carries out that plan and no other."""
    plan = run.json("release billing#b", store)["plan"]
    assert "there is no plan 00000000" in run("release billing#b --yes --plan 00000000", store)
    assert "is one of" in run(f"forget billing#b --yes --plan {plan}", store)
    assert "cannot be the id" in run("release billing#b --yes --plan ../x", store)
    assert "1 of 1 done" in run(f"release billing#b --yes --plan {plan}", store)
    assert "there is no plan" in run(f"release billing#b --yes --plan {plan}", store)


@pytest.mark.parametrize("options", ["--pl deadbeef --yes", "--plan=deadbeef --ye", "--ye"])
def test_what_binds_a_change_to_its_plan_is_written_in_full(
    run: Console, store: Store, options: str
) -> None:
    """A change whose plan or consent is named by the beginning of an option is refused."""
    before = store.read("billing#b")
    with pytest.raises(SystemExit) as ended:
        run(f"release billing#b {options}", store)
    assert ended.value.code == 2
    assert store.read("billing#b") == before


# ── What a consumer does then ─────────────────────────────────────────────────────────────────────


def consumer_over(store: Store, work: Any) -> Any:
    """Return a handler of the consumer `shop` over a store."""
    consumer: Consumer[dict[str, Any]] = Consumer(
        "shop", store, key="detail.id", policy=Policy(max_attempts=1, warm_cache=0)
    )
    handler = consumer.event_handler(work)
    event = eventbridge_event({"id": "7"})
    return lambda: handler(event, Invocation(epoch_ms))["outcome"]


def test_a_completed_key_that_is_forgotten_runs_again(run: Console, backend: Backend) -> None:
    """An operator can have an effect take place once more."""
    ran = list[int]()

    def work(event: dict[str, Any], operation: Operation) -> None:
        ran.append(operation.attempt)

    deliver = consumer_over(backend.store, work)
    assert [deliver(), deliver()] == ["New", "Duplicate"]
    run("forget --yes", backend.store, "shop#7")
    assert "there are no such records" in run("list", backend.store)
    assert deliver() in {"New", "Retried"}
    assert (deliver(), ran) == ("Duplicate", [1, 1])


def test_forget_leaves_a_claim_whose_attempt_may_be_running(store: Store) -> None:
    """Otherwise two attempts could run at once."""
    assert not forget(store, "orders#g")
    assert not forget(store, "orders#nothing")
    assert forget(store, "orders#h")
    assert forget(store, "billing#a")
    assert status_of(store, "orders#g") == IN_PROGRESS


def test_a_released_key_runs_and_a_settled_call_is_not_made_again(
    run: Console, backend: Backend
) -> None:
    """The next attempt takes the result that the operator has found."""
    got = list[object]()
    called = list[str]()

    def charge(key: str) -> str:
        called.append(key)
        raise OSError("no answer")

    def work(event: dict[str, Any], operation: Operation) -> None:
        got.append(operation.external("charge", charge))

    deliver = consumer_over(backend.store, work)
    with pytest.raises(OSError, match="no answer"):
        deliver()
    assert "nobody knows whether charge was called" in run("list", backend.store)
    run("settle shop#7 --yes --done", backend.store, '{"id": 5}')
    assert deliver() in {"New", "Retried"}
    assert (got, len(called)) == ([{"id": 5}], 1)


@dataclass(frozen=True)
class Receipt:
    """What a call returns."""

    id: str
    cents: Decimal


def test_a_settled_call_returns_what_the_call_would(run: Console, backend: Backend) -> None:
    """A result in its stored form has its type; one of the wrong type can be corrected."""
    got = list[Receipt]()

    def charge(key: str) -> Receipt:
        raise OSError("no answer")

    def work(event: dict[str, Any], operation: Operation) -> None:
        receipt = operation.external("charge", charge)
        assert receipt.cents == 5
        got.append(receipt)

    deliver = consumer_over(backend.store, work)
    with pytest.raises(OSError, match="no answer"):
        deliver()
    run("settle shop#7 --yes --done", backend.store, '{"id": "r1", "cents": 5}')
    with pytest.raises(AttributeError):
        deliver()
    assert "no external call" in run("settle shop#7 --not-done", backend.store)
    right = stored_form(Receipt("r1", Decimal(5)))
    preview = run("settle shop#7 --call charge --done", backend.store, right)
    assert 'this replaces what is known of it: {"id":"r1","cents":5}' in preview
    run("settle shop#7 --call charge --yes --done", backend.store, right)
    assert deliver() in {"New", "Retried"}
    assert got == [Receipt("r1", Decimal(5))]
    assert "no external call 'charge'" in run(
        "settle shop#7 --call charge --not-done", backend.store
    )


def test_a_call_that_was_settled_by_mistake_is_made(run: Console, backend: Backend) -> None:
    """``--not-done`` takes back an answer, as long as no attempt has used it."""
    called = list[str]()

    def charge(key: str) -> str:
        called.append(key)
        if len(called) == 1:
            raise OSError("no answer")
        return "paid"

    def work(event: dict[str, Any], operation: Operation) -> None:
        operation.external("charge", charge)

    deliver = consumer_over(backend.store, work)
    with pytest.raises(OSError, match="no answer"):
        deliver()
    run("settle shop#7 --yes --done", backend.store, "1")
    run("settle shop#7 --yes --call charge --not-done", backend.store)
    assert deliver() in {"New", "Retried"}
    assert len(called) == 2


def test_a_permanent_failure_is_released(run: Console, backend: Backend) -> None:
    """After its cause is fixed, the key runs as attempt 1."""
    broken = [True]

    def work(event: dict[str, Any], operation: Operation) -> None:
        if broken.pop():
            raise PermanentError("no tariff")

    broken = [False, True]
    deliver = consumer_over(backend.store, work)
    with pytest.raises(PermanentError):
        deliver()
    assert "no tariff" in run("list --status QUARANTINED", backend.store)
    run("release --cause tariff --yes", backend.store)
    assert deliver() in {"New", "Retried"}


# ── The process ───────────────────────────────────────────────────────────────────────────────────


def in_a_process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "carride_idempotency", *words],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true", **environment},
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list"], "name the store"),
        (["list", "--store", "Records"], "not an address of a store"),
        (["list", "--store", "dynamodb:Records", "--older", "soon"], "write 90s, 10m, 6h or 2d"),
        (["list", "--store", "dynamodb:Records", "--status", "LOST"], "there is no status LOST"),
        (["settle", "--store", "dynamodb:Records", "a#b", "--done", "{"], "is not JSON"),
        (
            ["settle", "--store", "dynamodb:Records", "a#b", "--done", '{"$": ["uuid", "no"]}'],
            "is not JSON, nor what",
        ),
        (["settle", "--store", "dynamodb:Records", "a#b"], "--done --not-done is required"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a status that is not 0."""
    try:
        status: object = main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert says in capsys.readouterr().err


def test_a_mistake_ends_the_process_without_a_stack_trace() -> None:
    """Its status says that nothing was done."""
    done = in_a_process("list", "--store", "dynamodb:Records")
    assert (done.returncode, done.stdout) == (2, "")
    assert "set AWS_REGION" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_stops_early_ends_the_command() -> None:
    """`list | head` ends without a stack trace."""
    code = (
        "import sys\n"
        "from carride_idempotency import MemoryStore\n"
        "from carride_idempotency.operators.command import main\n"
        "sys.stdin.read()\n"
        "sys.exit(main(['list'], MemoryStore()))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0
    process.stderr.close()


def test_the_help_names_every_verb() -> None:
    """`python -m carride_idempotency --help` is where an operator begins."""
    printed = in_a_process("--help").stdout
    for verb in ("list", "show", "release", "forget", "settle"):
        assert re.search(rf"^    {verb} ", printed, re.MULTILINE), verb


@pytest.mark.parametrize(
    ("account", "region", "says"),
    [
        ("111122223333", "eu-west-1", "release: 1 of 1 done"),
        ("444455556666", "eu-west-1", "nothing was done, because this has changed"),
        ("111122223333", "eu-central-1", "nothing was done, because this has changed"),
        (None, "eu-west-1", "AWS does not say whose account it is"),
    ],
)
def test_a_plan_is_bound_to_the_region_and_the_account_of_its_table(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    account: str | None,
    region: str,
    says: str,
) -> None:
    """Other tables have its name; where no account is known, what was shown is not done."""
    store = MemoryStore()
    store.put_if_absent(record("billing#b", QUARANTINED, error="no"))
    words = ["release", "billing#b", "--store", "dynamodb:Records"]
    clients = CallersOf("111122223333")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert main(words, store, clients) == 0
    clients.account = account
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    is_done = main([*words, "--yes"], store, clients) == 0
    printed = capsys.readouterr()
    assert says in printed.out + printed.err
    assert is_done == (status_of(store, "billing#b") == FAILED) == says.endswith("done")


def test_a_plan_of_an_unknown_account_is_shown_again_before_it_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the refusal says to do leads to the change once STS answers."""
    store = MemoryStore()
    store.put_if_absent(record("billing#b", QUARANTINED, error="no"))
    words = ["release", "billing#b", "--store", "dynamodb:Records"]
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    clients = CallersOf(None)
    assert main(words, store, clients) == 0
    assert main([*words, "--yes"], store, clients) == 2
    assert "run the command without --yes again" in capsys.readouterr().err
    clients.account = "111122223333"
    assert main([*words, "--yes"], store, clients) == 2
    assert status_of(store, "billing#b") == QUARANTINED
    assert main(words, store, clients) == 0
    assert main([*words, "--yes"], store, clients) == 0
    assert status_of(store, "billing#b") == FAILED


class CallersOf:
    """Clients of STS whose credentials are of an account, or that get no answer."""

    def __init__(self, account: str | None) -> None:
        self.account = account

    def __call__(self, service: str) -> "CallersOf":
        assert service == "sts"
        return self

    def get_caller_identity(self) -> dict[str, str]:
        if self.account is None:
            raise EndpointConnectionError(endpoint_url="https://sts")
        return {"Account": self.account}


def test_no_password_is_written_down(run: Console, backend: Backend, plans: Path) -> None:
    """A plan has a password's fingerprint: another password is another command."""
    backend.store.put_if_absent(record("billing#b", QUARANTINED, error="no"))
    address = "valkeys://operator:secret@host:6379"
    run("release billing#b --store", backend.store, address)
    (file,) = plans.iterdir()
    assert "secret" not in file.read_text()
    assert without_password(address).startswith("valkeys://operator:…")
    assert "no plan" not in run("release billing#b --yes --store", backend.store, address)


def test_a_cold_start_does_not_import_the_operators_command() -> None:
    """Everything that a consumer can use is imported without it."""
    code = (
        "import sys, carride_idempotency as c\n"
        "[getattr(c, name) for name in c.__all__]\n"
        "print([name for name in sys.modules if '.operators' in name or name == 'argparse'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "carride_idempotency.operators" not in done.stdout


@pytest.mark.parametrize("error", ["", "x" * 10_000, "order 7 of 8f3a-11"])
def test_a_cause_has_a_short_text(error: str) -> None:
    """Whatever the error is, the list stays readable."""
    cause = cause_of(record("a#b", FAILED, error=error), epoch_ms())
    assert cause is not None
    assert len(cause.says) <= 300
    assert re.fullmatch("[0-9a-f]{6}", cause.id)
