"""`FakeDynamoDB` answers as moto and as DynamoDB Local do.

What an update leaves, and what is refused.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from carride_idempotency import ConfigurationError
from carride_idempotency.stores.transport import ServiceError
from carride_idempotency.testing import FakeDynamoDB, expressions
from tests.samples import create_tables
from tests.stores.backends import local_client

DOCS: Final = Path(__file__).parents[2] / "docs"
KEY: Final = {"id": {"S": "1"}}
ITEM: Final[dict[str, Any]] = KEY | {
    "n": {"N": "2"},
    "words": {"S": "abc"},
    "list_": {"L": [{"S": "a"}, {"N": "1"}]},
    "map_": {"M": {"inner": {"N": "1"}, "deep": {"M": {"x": {"S": "y"}}}}},
    "tags": {"SS": ["a", "b"]},
    "yes": {"BOOL": True},
}
VALUES: Final[dict[str, Any]] = {
    ":one": {"N": "1"},
    ":two": {"N": "2"},
    ":half": {"N": "0.5"},
    ":three": {"N": "3"},
    ":text": {"S": "ab"},
    ":new": {"L": [{"S": "new"}]},
    ":none": {"L": []},
    ":tag": {"SS": ["b"]},
    ":tags": {"SS": ["b", "c"]},
    ":kind": {"S": "S"},
}
NAMES: Final = {"#n": "n", "#free": "free", "#inner": "inner"}

UPDATES: Final = (
    "SET n = :two",
    "SET n = n + :one",
    "SET n = n - :half",
    "set n = :one",
    "SET #free = if_not_exists(#free, :one)",
    "SET n = if_not_exists(n, :one)",
    "SET n = if_not_exists(n, :one) + :two",
    "SET list_ = list_append(list_, :new)",
    "SET other = list_append(if_not_exists(other, :none), :new)",
    "SET map_.#inner = :two",
    "SET map_.deep.x = :two",
    "SET list_[0] = :two",
    "SET n = :one, words = :text REMOVE yes",
    "ADD n :half",
    "ADD #n :one",
    "ADD #free :one",
    "ADD tags :tags",
    "ADD other :tags",
    "add n :one",
    "DELETE tags :tag",
    "REMOVE n",
    "REMOVE map_.#inner",
    "REMOVE list_[1]",
    "REMOVE absent",
    "SET n = :one ADD #free :two REMOVE words",
)
CONDITIONS: Final = (
    "n = :two",
    "n <> :two",
    "#n > :one AND n <= :two",
    "n < :text",
    "n = :text",
    "absent = :one",
    "absent <> :one",
    "NOT absent = :one",
    "n BETWEEN :one AND :three",
    "n between :three AND :three",
    "n IN (:one, :two)",
    "map_.#inner = :one",
    "map_.absent = :one",
    "attribute_exists(map_.deep.x)",
    "attribute_not_exists(#free) AND attribute_exists(n)",
    "attribute_type(words, :kind)",
    "begins_with(words, :text)",
    "contains(tags, :text) OR contains(words, :text)",
    "size(words) > :two",
    "NOT (n = :one OR n = :three)",
    "tags = :tags",
)
REFUSED: Final[Mapping[str, str]] = {
    "ADD free :one": "UpdateExpression",
    "SET free = :one": "UpdateExpression",
    "SET id = :text": "UpdateExpression",
    "SET n = :absent": "UpdateExpression",
    "SET #absent = :one": "UpdateExpression",
    "SET n = absent + :one": "UpdateExpression",
    "SET n = words + :one": "UpdateExpression",
    "SET n = :one, n = :two": "UpdateExpression",
    "SET n == :one": "UpdateExpression",
    "SET absent.x = :one": "UpdateExpression",
    "ADD words :one": "UpdateExpression",
    "ADD n :tags": "UpdateExpression",
    "DELETE n :tag": "UpdateExpression",
    "free = :one": "ConditionExpression",
    "n = :absent": "ConditionExpression",
    "n =": "ConditionExpression",
}


def used(text: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the placeholders that an expression uses; a client refuses an empty mapping."""
    return {name: given[name] for name in re.findall(r"[#:]\w+", text) if name in given}


def request(text: str, which: str) -> dict[str, Any]:
    update = {"UpdateExpression": "SET touched = :two"} if which == "ConditionExpression" else {}
    whole = update | {which: text}
    texts = " ".join(whole.values())
    given: dict[str, Any] = {"TableName": "Things", "Key": KEY} | whole
    if names := used(texts, NAMES):
        given["ExpressionAttributeNames"] = names
    if values := used(texts, VALUES):
        given["ExpressionAttributeValues"] = values
    return given


def answer(client: Any, text: str, which: str) -> object:
    """Return what an update leaves, or the code of its refusal."""
    client.put_item(TableName="Things", Item=ITEM)
    try:
        client.update_item(**request(text, which))
    except ClientError as error:
        return error.response["Error"]["Code"]
    left = client.get_item(TableName="Things", Key=KEY, ConsistentRead=True)["Item"]
    return {name: sorted(value["SS"]) if "SS" in value else value for name, value in left.items()}


@pytest.fixture(scope="module", params=["moto", pytest.param("local", marks=pytest.mark.peer)])
def other(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A DynamoDB that is not ours."""
    with ExitStack() as running:
        if request.param == "moto":
            running.enter_context(mock_aws())
            client = boto3.session.Session().client("dynamodb", region_name="eu-west-1")
        else:
            client = running.enter_context(local_client())
        create_tables(client, {"Things": "id"})
        yield client


CASES: Final = (
    *((text, "UpdateExpression") for text in UPDATES),
    *((text, "ConditionExpression") for text in CONDITIONS),
    *REFUSED.items(),
)


@pytest.mark.parametrize(("text", "which"), CASES)
def test_expressions_mean_what_they_mean_elsewhere(other: Any, text: str, which: str) -> None:
    """An update leaves the same item, a condition refuses the same, and invalid ones fail."""
    if (text, which, other.meta.endpoint_url.startswith("https")) in MOTO_IS_WRONG:
        pytest.skip("moto differs from DynamoDB here, DynamoDB Local does not")
    ours = answer(FakeDynamoDB({"Things": ["id"]}), text, which)
    assert ours == answer(other, text, which)


MOTO_IS_WRONG: Final = {
    ("SET #absent = :one", "UpdateExpression", True),
    ("n < :text", "ConditionExpression", True),
    ("n =", "ConditionExpression", True),
    ("n = :absent", "ConditionExpression", True),
}
"""Expressions for which moto raises a Python error or accepts an undefined name.
The last member says that it is moto's endpoint."""


@pytest.mark.parametrize("text", REFUSED)
def test_a_refused_expression_is_a_validation_error(text: str) -> None:
    """Whatever else may be wrong, the code is DynamoDB's."""
    assert answer(FakeDynamoDB({"Things": ["id"]}), text, REFUSED[text]) == "ValidationException"


def test_a_transaction_writes_nothing_if_one_of_its_updates_is_invalid() -> None:
    """Neither an invalid expression nor one that does not fit the item is accepted."""
    fake = FakeDynamoDB({"Things": ["id"]})
    fake.put_item(TableName="Things", Item=ITEM)
    before = fake.all("Things")
    put = {"Put": {"TableName": "Things", "Item": {"id": {"S": "2"}}}}
    for text, code in (
        ("ADD free :one", "ValidationException"),
        ("ADD words :one", "TransactionCanceledException"),
    ):
        update = {"Update": request(text, "UpdateExpression")}
        with pytest.raises(ServiceError, match=code):
            fake("TransactWriteItems", {"TransactItems": [put, update]})
        assert fake.all("Things") == before


def test_unused_placeholders_are_refused() -> None:
    """As DynamoDB refuses them."""
    fake = FakeDynamoDB({"Things": ["id"]})
    given = request("SET n = :one", "UpdateExpression")
    given["ExpressionAttributeValues"] = {":one": {"N": "1"}, ":more": {"N": "1"}}
    with pytest.raises(ClientError, match=r"unused in expressions: keys: \{:more\}"):
        fake.update_item(**given)


def test_without_moto_an_expression_that_needs_it_is_refused_by_name() -> None:
    """Plain expressions work all the same."""
    fake = FakeDynamoDB({"Things": ["id"]})
    with patch.object(expressions, "find_spec", lambda _: None):
        fake.update_item(**request("ADD n :one", "UpdateExpression"))
        with pytest.raises(ConfigurationError, match=r"list_append.*needs moto.*\[testing\]"):
            fake.update_item(**request("SET n = list_append(n, :new)", "UpdateExpression"))


def test_every_update_in_the_documentation_is_accepted() -> None:
    """None uses a reserved word."""
    found = 0
    for page in DOCS.rglob("*.md"):
        for text in re.findall(r'"((?:SET|ADD|REMOVE|DELETE) [^"\n]*)"', page.read_text("utf-8")):
            found += 1
            placeholders = re.findall(r"[#:]\w+", text)
            expressions.validate(
                {
                    "UpdateExpression": text,
                    "ExpressionAttributeNames": [each for each in placeholders if each[0] == "#"],
                    "ExpressionAttributeValues": [each for each in placeholders if each[0] == ":"],
                }
            )
    assert found >= 3
