"""The part of DynamoDB that the layer and the handlers use, as a dictionary under the real store."""

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from idempotency import DynamoDBStore
from idempotency.record import Record
from idempotency.stores.dynamodb import record_of
from idempotency.stores.transport import NoAnswerError, ServiceError
from tests.idempotency.simulation.engine import EPOCH_MS, Simulation

LONGEST_TRY_S: Final = 1.5
_TOKEN_LASTS_MS: Final = 600_000
_TTL_IS_LATE_S: Final = 172_800

type Item = dict[str, dict[str, Any]]
type Refuse = Callable[[str], Exception | None]


class DynamoDB:
    """Two tables; the layer's `Transport`. ``send`` carries its requests."""

    longest_try_s = LONGEST_TRY_S

    def __init__(self, simulation: Simulation, send: Callable[..., Any]) -> None:
        self._simulation = simulation
        self._send = send
        self._tables: dict[str, dict[str, Item]] = {"Records": {}, "Orders": {}}
        self._tokens: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self.store = DynamoDBStore(
            "Records", transport=self, clock=simulation.clock, sleep=simulation.sleep, jitter=simulation.roll
        )

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        first = request["TransactItems"][0]["Put"] if operation == "TransactWriteItems" else request
        perform = partial(self._take, operation, request)
        answer: Mapping[str, Any] = self._send(
            operation, _key_of(first), perform, NoAnswerError, partial(_refusal, operation)
        )
        return answer

    def records(self) -> list[Record]:
        """Return every record."""
        return [record_of(item) for item in self._tables["Records"].values()]

    def effects(self) -> dict[str, int]:
        """Return how often the effect on each order took place."""
        return {key: int(item["charges"]["N"]) for key, item in self._tables["Orders"].items()}

    def _take(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if operation == "GetItem":
            return {"Item": item} if (item := self._find(request)) else {}
        if operation == "PutItem":
            if not _holds(request, found := self._find(request)):
                body = {"Item": found} if found else {}
                raise ServiceError("ConditionalCheckFailedException", 400, "The conditional request failed", body)
            self._write(request)
            return {}
        since_ms, before = self._tokens.get(request["ClientRequestToken"], (-math.inf, None))
        if self._simulation.now_ms - since_ms < _TOKEN_LASTS_MS:
            if before != request:
                raise ServiceError("IdempotentParameterMismatchException", 400, "another request has this token", {})
            return {}
        actions = [next(iter(entry.values())) for entry in request["TransactItems"]]
        reasons = [
            {"Code": "None"}
            if _holds(action, found := self._find(action))
            else {"Code": "ConditionalCheckFailed"} | ({"Item": found} if found else {})
            for action in actions
        ]
        if any(reason["Code"] != "None" for reason in reasons):
            raise _cancelled({"CancellationReasons": reasons})
        for action in actions:
            self._write(action)
        self._tokens[request["ClientRequestToken"]] = (self._simulation.now_ms, request)
        return {}

    def _find(self, request: Mapping[str, Any]) -> Item | None:
        """Return the item under a request's key; the TTL deletes it up to two days late."""
        table, key = self._tables[request["TableName"]], _key_of(request)
        found = table.get(key)
        if found is not None and "expiryTimestamp" in found:
            late_s = (EPOCH_MS + self._simulation.now_ms) / 1000 - int(found["expiryTimestamp"]["N"])
            if late_s > 0 and late_s > _TTL_IS_LATE_S * self._simulation.roll(f"ttl {key}"):
                del table[key]
                return None
        return found

    def _write(self, request: Mapping[str, Any]) -> None:
        table, key = self._tables[request["TableName"]], _key_of(request)
        if "Item" in request:
            table[key] = dict(request["Item"])
        else:
            assert request["UpdateExpression"] == "ADD charges :one"
            table[key] = {"charges": {"N": str(int(table.get(key, {}).get("charges", {"N": "0"})["N"]) + 1)}}


def _key_of(request: Mapping[str, Any]) -> str:
    item = request.get("Item") or request["Key"]
    key: str = (item.get("idempotencyKey") or item["id"])["S"]
    return key


def _holds(request: Mapping[str, Any], found: Item | None) -> bool:
    """Judge a condition."""
    names = request.get("ExpressionAttributeNames", {})
    values = request.get("ExpressionAttributeValues", {})

    def value(name: str) -> Any:
        attribute = values.get(name) or (found or {}).get(names.get(name, name))
        if attribute is None:
            return math.nan  # equal to nothing, not even to itself, and neither smaller nor larger
        ((kind, content),) = attribute.items()
        return int(content) if kind == "N" else content

    functions = {
        "value": value,
        "attribute_exists": lambda found: not isinstance(found, float),
        "attribute_not_exists": lambda found: isinstance(found, float),
        "attribute_type": lambda found, kind: isinstance(found, {"S": str, "N": int}[kind]),
    }
    return bool(eval(_compiled(request.get("ConditionExpression", "")), functions))  # noqa: S307 - the layer's own text


@lru_cache
def _compiled(condition: str) -> Any:
    """Translate a condition to Python."""
    known = {"AND": "and", "OR": "or", "NOT": "not", "=": "==", "<>": "!="}
    words = [
        known.get(word) or (f"value({word!r})" if re.fullmatch(r"[#:]?(?!attribute_)\w+", word) else word)
        for word in re.findall(r"[#:]?\w+|<=|>=|<>|[=<>(),]", condition)
    ]
    return compile(" ".join(words) or "True", condition, "eval")


def _cancelled(body: Mapping[str, Any]) -> ServiceError:
    return ServiceError("TransactionCanceledException", 400, "Transaction cancelled", body)


def _refusal(operation: str, kind: str) -> ServiceError | None:
    if kind == "throttled":
        return ServiceError("ThrottlingException", 400, "Rate exceeded", {})
    if kind == "denied":
        return ServiceError("AccessDeniedException", 400, "is not authorized to perform", {})
    if operation != "TransactWriteItems" or kind not in ("conflict", "no reasons"):
        return None
    reasons = {"CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict"}]}
    return _cancelled(reasons if kind == "conflict" else {})
