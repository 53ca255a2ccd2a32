"""DynamoDB as a dictionary: the part of it that the stores and the handlers use, with faults at any request."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final

from idempotency.stores.transport import ServiceError

KEYS: Final = {
    "idempotency": ("idempotencyKey",),
    "outbox": ("id",),
    "cars": ("zone", "carID"),
    "rides": ("orderID",),
    "assignments": ("orderID",),
    "payments": ("orderID",),
}

type Item = dict[str, dict[str, Any]]
type Place = tuple[str, ...]


class ConditionFailedError(Exception):
    """Raised by `Tables.update_item`, as botocore raises it."""


class Tables:
    """The tables, as a botocore client and as the layer's `Transport`.

    Attributes:
        before, after: called with the operation around every request; what they raise is the request's outcome.
        on_outbox: called with each new item of the outbox, after the commit.
    """

    longest_try_s = 1.5
    exceptions = SimpleNamespace(ConditionalCheckFailedException=ConditionFailedError)

    def __init__(self, on_outbox: Callable[[Item], None]) -> None:
        self._items: dict[str, dict[Place, Item]] = {table: {} for table in KEYS}
        self._on_outbox = on_outbox
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request of a store."""
        perform = {"GetItem": self._get, "PutItem": self._put, "TransactWriteItems": self._transact}[operation]
        return self._send(operation, lambda: perform(request))

    def get_item(self, **request: Any) -> Mapping[str, Any]:
        """Read one item."""
        return self._send("GetItem", lambda: self._get(request))

    def update_item(self, **request: Any) -> Mapping[str, Any]:
        """Update one item if its condition holds."""

        def update() -> Mapping[str, Any]:
            if not _holds(request, self._find(request)):
                raise ConditionFailedError
            self._write(request)
            return {}

        return self._send("UpdateItem", update)

    def get_paginator(self, operation: str) -> "Tables":
        """Return what pages through queries."""
        assert operation == "query"
        return self

    def paginate(self, **request: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the free cars of a zone in one page."""
        zone = request["ExpressionAttributeValues"][":zone"]
        assert request["FilterExpression"] == "attribute_not_exists(rideID)"

        def query() -> Mapping[str, Any]:
            return {"Items": [car for car in self.all("cars") if car["zone"] == zone and "rideID" not in car]}

        yield self._send("Query", query)

    def all(self, table: str) -> list[Item]:
        """Return every item of a table."""
        return list(self._items[table].values())

    def put(self, table: str, item: Item) -> None:
        """Write an item without asking anything."""
        self._write({"TableName": table, "Item": item})

    def forget(self, key: str) -> None:
        """Delete a record, as an operator does who releases its key."""
        self._items["idempotency"].pop((key,), None)

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, operation: str, perform: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        self.before(operation)
        answer = perform()
        self.after(operation)
        return answer

    def _get(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"Item": item} if (item := self._find(request)) else {}

    def _put(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if not _holds(request, found := self._find(request)):
            raise ServiceError("ConditionalCheckFailedException", 400, "refused", {"Item": found} if found else {})
        self._write(request)
        return {}

    def _transact(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        actions = [(kind, action) for entry in request["TransactItems"] for kind, action in entry.items()]
        reasons: list[dict[str, Any]] = []
        for _, action in actions:
            found = self._find(action)
            refused = {"Code": "ConditionalCheckFailed"} | ({"Item": found} if found else {})
            reasons.append({"Code": "None"} if _holds(action, found) else refused)
        if any(reason["Code"] != "None" for reason in reasons):
            raise ServiceError("TransactionCanceledException", 400, "cancelled", {"CancellationReasons": reasons})
        for kind, action in actions:
            if kind != "ConditionCheck":
                self._write(action)
        return {}

    def _find(self, request: Mapping[str, Any]) -> Item | None:
        return self._items[request["TableName"]].get(_place(request))

    def _write(self, request: Mapping[str, Any]) -> None:
        place, found = _place(request), self._find(request)
        self._items[request["TableName"]][place] = request["Item"] if "Item" in request else _updated(request, found)
        if request["TableName"] == "outbox" and found is None:
            self._on_outbox(request["Item"])


def _place(request: Mapping[str, Any]) -> Place:
    item = request.get("Item") or request["Key"]
    return tuple(item[name]["S"] for name in KEYS[request["TableName"]])


def _updated(request: Mapping[str, Any], found: Item | None) -> Item:
    names, values = request.get("ExpressionAttributeNames", {}), request.get("ExpressionAttributeValues", {})
    item = dict(found or request["Key"])
    for clause, assignments in re.findall(r"(SET|ADD|REMOVE) (.*?)(?= ADD| REMOVE|$)", request["UpdateExpression"]):
        for assignment in re.split(r", (?![^(]*\))", assignments):
            target, _, value = assignment.partition(" = " if clause == "SET" else " ")
            name = names.get(target, target)
            if clause == "REMOVE":
                item.pop(name, None)
            elif clause == "ADD":
                item[name] = {"N": str(int(item.get(name, {"N": "0"})["N"]) + int(values[value]["N"]))}
            elif value.startswith("if_not_exists("):
                item.setdefault(name, values[value.rpartition(" ")[2].rstrip(")")])
            else:
                item[name] = values[value]
    return item


def _holds(request: Mapping[str, Any], found: Item | None) -> bool:
    names, values = request.get("ExpressionAttributeNames", {}), request.get("ExpressionAttributeValues", {})

    def value(name: str) -> Any:
        attribute = values.get(name) or (found or {}).get(names.get(name, name))
        if attribute is None:
            return float("nan")  # equal to nothing, and neither smaller nor larger
        ((kind, content),) = attribute.items()
        return int(content) if kind == "N" else content

    functions = {
        "value": value,
        "attribute_exists": lambda found: not isinstance(found, float),
        "attribute_not_exists": lambda found: isinstance(found, float),
        "attribute_type": lambda found, kind: isinstance(found, {"S": str, "N": int}[kind]),
    }
    return bool(eval(_compiled(request.get("ConditionExpression", "")), functions))  # noqa: S307 - the project's own text


@lru_cache
def _compiled(condition: str) -> Any:
    """Translate a condition to Python: functions of attributes, comparisons, AND, OR, NOT and parentheses."""
    known = {"AND": "and", "OR": "or", "NOT": "not", "=": "==", "<>": "!="}
    words = [
        known.get(word) or (f"value({word!r})" if re.fullmatch(r"[#:]?(?!attribute_)\w+", word) else word)
        for word in re.findall(r"[#:]?\w+|<=|>=|<>|[=<>(),]", condition)
    ]
    return compile(" ".join(words) or "True", condition, "eval")
