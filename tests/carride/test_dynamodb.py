"""Reads of DynamoDB that take several requests."""

from collections.abc import Mapping
from typing import Any

from carride.dynamodb import DynamoDB


class OneItemARequest:
    """A table that reads one item of a batch, and leaves the others to further requests."""

    longest_try_s = 1.0

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, _: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        [(table, wanted)] = request["RequestItems"].items()
        first, *rest = wanted["Keys"]
        self.asked.append(len(wanted["Keys"]))
        left = {table: {**wanted, "Keys": rest}} if rest else {}
        return {"Responses": {table: [first]}, "UnprocessedKeys": left}


def test_a_batch_is_read_to_its_end() -> None:
    """What DynamoDB leaves out of an answer is asked for again."""
    table = OneItemARequest()
    keys = [{"orderID": {"S": f"order_{number}"}} for number in range(3)]
    answers = DynamoDB(table).batch_get_item(RequestItems={"bookings": {"Keys": keys}})
    assert [item for answer in answers for item in answer["Responses"]["bookings"]] == keys
    assert table.asked == [3, 2, 1]
