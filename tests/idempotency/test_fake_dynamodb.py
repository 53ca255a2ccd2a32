"""The DynamoDB of the tests answers as moto's does."""

from collections.abc import Iterator
from typing import Any, Final

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from idempotency.testing.dynamodb import FakeDynamoDB

KEYS: Final = ("zone", "id")
PLACES: Final = st.builds(
    lambda zone, name: {"zone": {"S": zone}, "id": {"S": name}}, st.sampled_from("ab"), st.sampled_from("12")
)
NUMBERS: Final = [{"N": "1"}, {"N": "2"}]
ATTRIBUTES: Final = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from([{"S": "x"}, {"S": "y"}, {"BOOL": True}, *NUMBERS]),
        "rideID": st.sampled_from([{"S": "x"}, {"S": "y"}]),
        "leaseExpiry": st.sampled_from(NUMBERS),  # moto cannot compare numbers with texts
    },
)
CONDITIONS: Final = st.sampled_from(
    [
        "attribute_not_exists(id)",
        "attribute_exists(id) AND attribute_not_exists(#s)",
        "#s = :x AND rideID = :y",
        "#s = :x AND leaseExpiry <= :one",
        "NOT attribute_type(#s, :number) AND (#s <> :x OR leaseExpiry < :one)",
    ]
)
UPDATES: Final = st.sampled_from(
    [
        "SET #s = :x, rideID = if_not_exists(rideID, :y) ADD effects :one",
        "SET #s = :y, leaseExpiry = if_not_exists(leaseExpiry, :one) REMOVE rideID",
        "REMOVE #s, leaseExpiry ADD effects :one",
    ]
)
ALL: Final[dict[str, Any]] = {
    ":x": {"S": "x"},
    ":y": {"S": "y"},
    ":one": {"N": "1"},
    ":number": {"S": "N"},
    ":zone": {"S": "a"},
}


def using(*expressions: str) -> dict[str, Any]:
    """Return the names and the values that expressions use: DynamoDB refuses others."""
    text = " ".join(expressions)
    values = {name: value for name, value in ALL.items() if name in text}
    names = {name: value for name, value in {"#s": "status", "#z": "zone"}.items() if name in text}
    return {
        **({"ExpressionAttributeNames": names} if names else {}),
        **({"ExpressionAttributeValues": values} if values else {}),
    }


@st.composite
def writes(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    kind = draw(st.sampled_from(["Put", "Put", "Update", "Delete", "ConditionCheck"]))
    place, condition = draw(PLACES), draw(CONDITIONS)
    request: dict[str, Any] = {"TableName": "items"}
    request |= {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    update = draw(UPDATES) if kind == "Update" else ""
    if kind == "Put":
        request |= {"Item": place | draw(ATTRIBUTES)}
    else:
        request |= {"Key": place} | ({"UpdateExpression": update} if update else {})
    if kind == "Put" and draw(st.booleans()):
        del request["ConditionExpression"]
        condition = ""
    return kind, request | using(condition, update)


def asked(client: Any, operation: str, request: dict[str, Any]) -> Any:
    try:
        answer = getattr(client, operation)(**request)
    except ClientError as error:
        reasons = error.response.get("CancellationReasons", [])
        found = error.response.get("Item")
        return error.response["Error"]["Code"], found, [(reason["Code"], reason.get("Item")) for reason in reasons]
    return answer.get("Item"), answer.get("Items")


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    """Keep one DynamoDB of moto's for all examples."""
    with mock_aws():
        client: Any = boto3.client("dynamodb")
        client.create_table(
            TableName="items",
            KeySchema=[
                {"AttributeName": name, "KeyType": kind} for name, kind in zip(KEYS, ("HASH", "RANGE"), strict=True)
            ],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in KEYS],
            BillingMode="PAY_PER_REQUEST",
        )
        yield client


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.lists(writes(), min_size=1, max_size=3), min_size=1, max_size=10))
def test_requests_are_answered_as_moto_answers(moto: Any, steps: list[list[tuple[str, dict[str, Any]]]]) -> None:
    """Writes, transactions, reads and queries give the same answers, refusals and items."""
    fake = FakeDynamoDB({"items": KEYS})
    for item in moto.scan(TableName="items")["Items"]:
        moto.delete_item(TableName="items", Key={name: item[name] for name in KEYS})
    for actions in steps:
        operation, request = "transact_write_items", {"TransactItems": [{kind: action} for kind, action in actions]}
        if len(actions) == 1 and actions[0][0] != "ConditionCheck":
            operation, request = f"{actions[0][0].lower()}_item", actions[0][1]
        assert asked(fake, operation, request) == asked(moto, operation, request), (operation, request)
    for condition in ("attribute_not_exists(rideID)", "#s = :x", "leaseExpiry <= :one"):
        query: dict[str, Any] = {
            "TableName": "items",
            "KeyConditionExpression": "#z = :zone",
            "FilterExpression": condition,
        }
        query |= using("#z = :zone", condition)
        assert asked(fake, "query", query) == asked(moto, "query", query)
    for place in fake.all("items"):
        key = {name: place[name] for name in KEYS}
        assert asked(fake, "get_item", {"TableName": "items", "Key": key}) == (place, None)
