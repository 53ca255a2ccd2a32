"""Whether one region's replicas have what another one's hold, by what is read."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

from ops.replicas import wait_until_caught_up
from ops.stack import OperatorError, StackRef

HOME: Final = "us-west-2"
AWAY: Final = "us-east-2"
TABLE: Final = "carride-RideTable"


class Regions:
    """A table in two regions; nothing is replicated but by the test."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Any] = {}
        for region in (HOME, AWAY):
            self.client("dynamodb", region).create_table(
                TableName=TABLE,
                KeySchema=[{"AttributeName": "orderID", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "orderID", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        self.home, self.away = (Site("carride", region, self.client) for region in (HOME, AWAY))
        for site in (self.home, self.away):
            site.__dict__["outputs"] = {"RideTableName": TABLE, "AlarmTopicArn": "arn"}

    def client(self, service: str, region: str) -> Any:
        """Return a client, made once."""
        if (service, region) not in self._made:
            self._made[service, region] = boto3.session.Session().client(service, region_name=region)  # type: ignore[call-overload]
        return self._made[service, region]

    def put(self, region: str, number: int, **attributes: Any) -> None:
        """Write an item in one region."""
        item = {"orderID": {"S": f"order_{number:03d}"}, **attributes}
        self.client("dynamodb", region).put_item(TableName=TABLE, Item=item)

    def wait(self, sleep: Callable[[float], None] = lambda seconds: None, patience: float = 5.0) -> int:
        """Wait for the home region's items to arrive; each second of sleep passes at once."""
        passed = [0.0]

        def pass_time(seconds: float) -> None:
            passed[0] += seconds
            sleep(seconds)

        return wait_until_caught_up(
            self.home, self.away, patience=patience, monotonic=lambda: passed[0], sleep=pass_time
        )


@pytest.fixture
def regions() -> Iterator[Regions]:
    """Two regions of an in-process AWS."""
    with mock_aws():
        yield Regions()


def test_equal_tables_are_compared_and_done(regions: Regions) -> None:
    """More items than one request takes; a set has no order."""
    for number in range(120):
        regions.put(HOME, number, facts={"SS": ["a", "b"]})
        regions.put(AWAY, number, facts={"SS": ["b", "a"]})
    assert regions.wait() == 120


@pytest.mark.parametrize("before", [{}, {"effects": {"N": "1"}}], ids=["missing", "older"])
def test_an_item_that_is_behind_is_waited_for(regions: Regions, before: dict[str, Any]) -> None:
    """Whether it is not there yet, or is there as it was."""
    regions.put(HOME, 1, effects={"N": "2"})
    if before:
        regions.put(AWAY, 1, **before)
    slept = []

    def arrive(seconds: float) -> None:
        slept.append(seconds)
        regions.put(AWAY, 1, effects={"N": "2"})

    assert regions.wait(arrive) == 1
    assert len(slept) == 1


def test_a_later_write_of_the_target_replaces_what_is_waited_for(regions: Regions) -> None:
    """It has come back to the source by then: both regions are the same again."""
    regions.put(HOME, 1, effects={"N": "2"})

    def replace(seconds: float) -> None:
        for region in (HOME, AWAY):
            regions.put(region, 1, effects={"N": "3"})

    assert regions.wait(replace) == 1


def test_items_of_the_target_alone_are_its_own(regions: Regions) -> None:
    """The target goes on working meanwhile."""
    regions.put(AWAY, 1)
    assert regions.wait() == 0


def test_items_that_do_not_arrive_end_the_patience(regions: Regions) -> None:
    """How many, and of which table, is said."""
    regions.put(HOME, 1)
    with pytest.raises(OperatorError, match=rf"1 items of {TABLE} have not arrived in {AWAY} after 5 s"):
        regions.wait()
