"""Whether one region's replicas hold what another region's do."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from moto import mock_aws

from ops.replicas import wait_until_caught_up
from ops.stack import OperatorError
from ops.tests.world import AWAY, HOME, NOW, client_of, create_table, stack

TABLE: Final = "carride-PaymentTable"
RECORDS: Final = "carride-IdempotencyTable"
OUTPUTS: Final = {
    "PaymentTableName": TABLE,
    "IdempotencyTableName": RECORDS,
    "AlarmTopicArn": "arn",
}
ONE: Final = {"effects": {"N": "1"}}
TWO: Final = {"effects": {"N": "2"}}

type Put = Callable[..., None]
type Wait = Callable[..., int]


@pytest.fixture
def clients() -> Iterator[dict[str, Any]]:
    """Two tables in two regions, without replication."""
    with mock_aws():
        clients = {region: client_of("dynamodb", region) for region in (HOME, AWAY)}
        for client in clients.values():
            create_table(client, TABLE, "orderID")
            create_table(client, RECORDS, "idempotencyKey")
        yield clients


@pytest.fixture
def put(clients: dict[str, Any]) -> Put:
    """Writes an item in regions."""

    def put(attributes: dict[str, Any], *regions: str, number: int = 1) -> None:
        for region in regions:
            clients[region].put_item(
                TableName=TABLE, Item={"orderID": {"S": f"order_{number:03d}"}, **attributes}
            )

    return put


@pytest.fixture
def wait(clients: dict[str, Any]) -> Wait:
    """Waits until the home region's items have arrived."""
    home, away = (
        stack(lambda _, region: clients[region], region, None, **OUTPUTS) for region in (HOME, AWAY)
    )
    usual: Any = {"since": NOW, "patience": 60.0, "report": lambda _: None, "clock": lambda: 0.0}
    return lambda sleep, **changes: wait_until_caught_up(home, away, sleep=sleep, **usual | changes)


def test_equal_tables_are_compared_and_done(put: Put, wait: Wait) -> None:
    """A table may have more items than one request; a set has no order.

    Only the target's items are ignored.
    """
    for number in range(120):
        put({"facts": {"SS": ["a", "b"]}}, HOME, number=number)
        put({"facts": {"SS": ["b", "a"]}}, AWAY, number=number)
    put({}, AWAY, number=200)
    assert wait(pytest.fail) == 120


def test_records_from_before_the_trouble_are_not_compared(
    clients: dict[str, Any], put: Put, wait: Wait
) -> None:
    """What has no time of its last write is compared, and so is the mark of a fence.

    Sizes are reported first.
    """
    put({"updatedAt": {"N": "1"}}, HOME, AWAY)
    for key, updated in (("old", NOW - timedelta(seconds=1)), ("new", NOW), ("mark", None)):
        written = {"updatedAt": {"N": f"{updated.timestamp() * 1000:.0f}"}} if updated else {}
        item: Any = {"idempotencyKey": {"S": key}, **written}
        for region in (HOME,) if key == "old" else (HOME, AWAY):
            clients[region].put_item(TableName=RECORDS, Item=item)
    said: list[str] = []
    assert wait(pytest.fail, report=said.append) == 3
    assert said == [
        f"reading {RECORDS}: some 3 items, 0 MB",
        f"reading {TABLE}: some 1 items, 0 MB",
    ]


@pytest.mark.parametrize("before", [None, ONE], ids=["missing", "older"])
@pytest.mark.parametrize(
    ("arriving", "regions"), [(TWO, [AWAY]), (ONE, [HOME, AWAY])], ids=["arrives", "replaced"]
)
def test_an_item_that_is_behind_is_waited_for(
    put: Put, wait: Wait, before: Any, arriving: Any, regions: list[str]
) -> None:
    """It is the same in both regions on arrival, or when a later write has come back."""
    put(TWO, HOME)
    if before:
        put(before, AWAY)
    slept: list[float] = []

    def replicate(seconds: float) -> None:
        slept.append(seconds)
        put(arriving, *regions)

    assert wait(replicate) == 1
    assert len(slept) == 1


@pytest.mark.parametrize(
    ("patience", "problem"),
    [
        (0.3, rf"1 item of {TABLE} had not arrived in {AWAY} after 0.3 s"),
        (-1.0, "not compared after -1 s, with 0 items compared so far"),
    ],
)
def test_patience_ends(put: Put, wait: Wait, patience: float, problem: str) -> None:
    """The operator bounds reading and waiting, and learns how far it has come."""
    put(ONE, HOME)
    passed: list[float] = []
    with pytest.raises(OperatorError, match=problem):
        wait(passed.append, patience=patience, clock=lambda: sum(passed))
