"""DynamoDB as dictionaries: the part of it that the layer and the functions use, without a network."""

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from threading import RLock
from types import SimpleNamespace
from typing import Any, Final

from botocore.exceptions import ClientError, ReadTimeoutError

from carride_idempotency.clock import epoch_ms
from carride_idempotency.errors import ConfigurationError
from carride_idempotency.stores.transport import NoAnswerError, ServiceError

type Attribute = dict[str, Any]
type Item = dict[str, Attribute]
type Request = Mapping[str, Any]
type Key = tuple[str, ...]

_TOKEN_LASTS_MS: Final = 600_000
_REFUSED: Final = "ConditionalCheckFailedException"
_CANCELLED: Final = "TransactionCanceledException"
_EXCEPTIONS: Final = {code: type(code, (ClientError,), {}) for code in (_REFUSED, _CANCELLED)}


class FakeDynamoDB:
    """Tables, as the layer's `Transport` and, by its methods, as a botocore client.

    Queries answer in pages of ``Limit`` items, ordered by the table's key, or that of an index that
    is named here. Every request sees all earlier writes.

    Args:
        tables: the key attributes of each table, which are strings: partition key, sort key. A
            table of records needs no entry.
        indexes: the key attributes of indexes.
        clock: epoch milliseconds. The token of a transaction is remembered for ten minutes.

    Attributes:
        inserted: called with the table and the item after each insert.
    """

    longest_try_s = 1.5
    exceptions = SimpleNamespace(**_EXCEPTIONS)

    def __init__(
        self,
        tables: Mapping[str, Sequence[str]],
        clock: Callable[[], float] = epoch_ms,
        *,
        indexes: Mapping[str, Sequence[str]] = {},
    ) -> None:
        self._keys = tables
        self._indexes = indexes
        self._clock = clock
        self._items: dict[str, dict[Key, Item]] = defaultdict(dict)
        self._tokens: dict[str, tuple[float, Request]] = {}
        self._lock = RLock()
        self.inserted: Callable[[str, Item], object] = lambda *_: None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of a client, such as ``get_item``."""
        operation = name.title().replace("_", "")
        return lambda **request: self.send(operation, request)

    def all(self, table: str) -> list[Item]:
        """Return every item of a table."""
        return list(self._items[table].values())

    def clear(self, table: str) -> None:
        """Delete every item of a table."""
        self._items[table].clear()

    def delete(self, request: Request) -> None:
        """Delete the item under a request's key, unconditionally."""
        self._items[request["TableName"]].pop(self.key(request), None)

    def send(self, operation: str, request: Request) -> Mapping[str, Any]:
        """Send a client's request. Its errors are botocore's."""
        try:
            return answered(lambda: self(operation, request))
        except ServiceError as error:
            answer: Any = {"Error": {"Code": error.code, "Message": str(error)}, **error.body}
            raise _EXCEPTIONS.get(error.code, ClientError)(answer, operation) from error

    # ── Operations ────────────────────────────────────────────────────────────────────────────────

    def __call__(self, operation: str, request: Request, /) -> Mapping[str, Any]:
        """Carry a request out, or raise a ServiceError if it is refused."""
        with self._lock:
            match operation:
                case "GetItem":
                    return {"Item": dict(item)} if (item := self.find(request)) else {}
                case "Query" | "Scan":
                    return self._search(request)
                case "TransactWriteItems":
                    return self._transact(request)
            if (reason := self._refusal(request)) is not None:
                body = {name: value for name, value in reason.items() if name == "Item"}
                raise ServiceError(_REFUSED, 400, "The conditional request failed", body)
            self._write(operation.removesuffix("Item"), request)
            return {}

    def _search(self, request: Request) -> Mapping[str, Any]:
        table, descends = request["TableName"], not request.get("ScanIndexForward", True)
        names = (
            *self._indexes.get(request.get("IndexName", ""), ()),
            *self._keys.get(table, ("idempotencyKey",)),
        )

        def place(item: Item) -> list[str]:
            return [item[name]["S"] for name in names]

        items = [item for item in self.all(table) if item.keys() >= set(names)]
        names_of, values = (
            request.get("ExpressionAttributeNames", {}),
            request.get("ExpressionAttributeValues", {}),
        )
        for name, value in re.findall(
            r"^([#\w]+) = (:\w+)", request.get("KeyConditionExpression", "")
        ):
            items = [
                item for item in items if item.get(names_of.get(name, name)) == values[value]
            ]  # few are left to judge
        items = [item for item in items if _holds(request, item, "KeyConditionExpression")]
        if start := request.get("ExclusiveStartKey"):
            items = [
                item
                for item in items
                if (place(item) < place(start) if descends else place(item) > place(start))
            ]
        items.sort(key=place, reverse=descends)
        page = items[: request.get("Limit")]
        more = (
            {"LastEvaluatedKey": {name: page[-1][name] for name in names}}
            if len(page) < len(items)
            else {}
        )
        found = [item for item in page if _holds(request, item, "FilterExpression")]
        return {"Items": found, "Count": len(found), "ScannedCount": len(page), **more}

    def _transact(self, request: Request) -> Mapping[str, Any]:
        token = request.get("ClientRequestToken", "")
        since_ms, before = self._tokens.get(token, (-math.inf, None))
        if self._clock() - since_ms < _TOKEN_LASTS_MS:
            if before != request:
                raise ServiceError(
                    "IdempotentParameterMismatchException",
                    400,
                    "another request has this token",
                    {},
                )
            return {}
        actions = [
            (kind, action) for entry in request["TransactItems"] for kind, action in entry.items()
        ]
        if len({(action["TableName"], self.key(action)) for _, action in actions}) < len(actions):
            raise ServiceError(
                "ValidationException", 400, "cannot include multiple operations on one item", {}
            )
        reasons = [self._refusal(action) for _, action in actions]
        if any(reasons):
            body = {"CancellationReasons": [reason or {"Code": "None"} for reason in reasons]}
            raise ServiceError(_CANCELLED, 400, "Transaction cancelled", body)
        for kind, action in actions:
            self._write(kind, action)
        if token:
            self._tokens[token] = (self._clock(), request)
        return {}

    def _refusal(self, request: Request) -> dict[str, Any] | None:
        """Return why a write is refused, as a cancelled transaction gives its reasons; None where it is not."""
        found = self.find(request)
        if _holds(request, found or {}, "ConditionExpression"):
            return None
        shown = found and request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
        return {"Code": "ConditionalCheckFailed"} | ({"Item": found} if shown else {})

    def find(self, request: Request) -> Item | None:
        """Return the item under a request's key."""
        return self._items[request["TableName"]].get(self.key(request))

    def _write(self, kind: str, request: Request) -> None:
        table, key = self._items[request["TableName"]], self.key(request)
        found = table.get(key)
        match kind:
            case "Put":
                table[key] = dict(request["Item"])
            case "Update":
                table[key] = _updated(request, found or {})
            case "Delete":
                self.delete(request)
        if found is None and key in table:
            self.inserted(request["TableName"], table[key])

    def key(self, request: Request) -> Key:
        """Return the key of the item that a request is about."""
        item = request.get("Item") or request["Key"]
        table = request["TableName"]
        names = self._keys.get(table, ("idempotencyKey",))
        if not item.keys() >= set(names):
            raise ConfigurationError(
                f"there is no table {table} with the key {names}: give World or FakeDynamoDB its keys"
            )
        return tuple(item[name]["S"] for name in names)


def answered[T](request: Callable[[], T]) -> T:
    """Return the answer to a request. Without one, raise what botocore's clients raise."""
    try:
        return request()
    except NoAnswerError as error:
        raise ReadTimeoutError(endpoint_url="dynamodb") from error


# ── Expressions ───────────────────────────────────────────────────────────────────────────────────


class _Operand:
    """An attribute of an item or a value of a request. Without one it equals nothing, not even itself."""

    def __init__(self, attribute: Attribute | None) -> None:
        ((self.kind, content),) = (attribute or {"": math.nan}).items()
        self.content = Decimal(content) if self.kind == "N" else content

    def _compared(self, other: "_Operand", comparison: Callable[[Any, Any], bool]) -> bool:
        return self.kind == other.kind and comparison(self.content, other.content)

    def __eq__(self, other: Any) -> bool:
        return self._compared(other, operator.eq)

    def __lt__(self, other: "_Operand") -> bool:
        return self._compared(other, operator.lt)

    def __le__(self, other: "_Operand") -> bool:
        return self._compared(other, operator.le)

    __hash__ = None  # type: ignore[assignment] # as Python does for a class with an equality of its own


_FUNCTIONS: Final = {
    "attribute_exists": lambda found: bool(found.kind),
    "attribute_not_exists": lambda found: not found.kind,
    "attribute_type": lambda found, kind: found.kind == kind.content,
}


def _updated(request: Request, found: Item) -> Item:
    """Return an item after an update: SET of values or of what ``if_not_exists`` gives, ADD of numbers, REMOVE."""
    names, values = (
        request.get("ExpressionAttributeNames", {}),
        request.get("ExpressionAttributeValues", {}),
    )
    item = {**found, **request["Key"]}
    for clause, body in re.findall(
        r"(SET|ADD|REMOVE) (.*?)(?= SET | ADD | REMOVE |$)", request["UpdateExpression"]
    ):
        for assignment in re.split(r", (?![^(]*\))", body):
            target, value = re.fullmatch(r"(\S+)(?: = | )?(.*)", assignment).groups()  # type: ignore[union-attr] # always
            name = names.get(target, target)
            if clause == "REMOVE":
                item.pop(name, None)
            elif clause == "ADD":
                item[name] = {
                    "N": str(int(found.get(name, {"N": "0"})["N"]) + int(values[value]["N"]))
                }
            elif chosen := re.fullmatch(r"if_not_exists\((\S+), (\S+)\)", value):
                item[name] = found.get(names.get(chosen[1], chosen[1]), values[chosen[2]])
            else:
                item[name] = values[value]
    return item


def _holds(request: Request, found: Item, expression: str) -> bool:
    """Judge one of a request's expressions on an item; true where the request has none."""
    names, values = (
        request.get("ExpressionAttributeNames", {}),
        request.get("ExpressionAttributeValues", {}),
    )
    scope = {"operand": lambda name: _Operand(values.get(name) or found.get(names.get(name, name)))}
    compiled = _compiled(request.get(expression, "True"))
    return bool(eval(compiled, _FUNCTIONS | scope))  # noqa: S307 - the project's own text


@lru_cache
def _compiled(expression: str) -> Any:
    """Translate an expression to Python: functions of attributes, comparisons, AND, OR, NOT and parentheses."""
    known = {"AND": "and", "OR": "or", "NOT": "not", "=": "==", "<>": "!=", "True": "True"}
    words = [
        known.get(word)
        or (f"operand({word!r})" if re.fullmatch(r"[#:]?(?!attribute_)\w+", word) else word)
        for word in re.findall(r"[#:]?\w+|<=|>=|<>|[=<>(),]", expression)
    ]
    return compile(" ".join(words), expression, "eval")
