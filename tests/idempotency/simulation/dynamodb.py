"""DynamoDB under the simulation: requests travel its network, and the TTL deletes late."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from idempotency import DynamoDBStore
from idempotency.record import Record
from idempotency.stores.dynamodb import record_of
from idempotency.stores.transport import NoAnswerError, ServiceError
from idempotency.testing.dynamodb import FakeDynamoDB, Item
from tests.idempotency.simulation.engine import EPOCH_MS, Simulation

LONGEST_TRY_S: Final = FakeDynamoDB.longest_try_s
_TABLES: Final = {"Records": ("idempotencyKey",), "Orders": ("id",)}
_TTL_IS_LATE_S: Final = 172_800

type Refuse = Callable[[str], Exception | None]


class DynamoDB(FakeDynamoDB):
    """Two tables; the layer's `Transport`. ``send`` carries its requests."""

    def __init__(self, simulation: Simulation, send: Callable[..., Any]) -> None:
        super().__init__(_TABLES, clock=lambda: simulation.now_ms)
        self._simulation = simulation
        self._carry = send
        self.store = DynamoDBStore(
            "Records", transport=self, clock=simulation.clock, sleep=simulation.sleep, jitter=simulation.roll
        )

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        first = request["TransactItems"][0]["Put"] if operation == "TransactWriteItems" else request
        (key,) = self.key(first)
        perform = partial(self.take, operation, request)
        answer: Mapping[str, Any] = self._carry(operation, key, perform, NoAnswerError, partial(_refusal, operation))
        return answer

    def records(self) -> list[Record]:
        return [record_of(item) for item in self.all("Records")]

    def effects(self) -> dict[str, int]:
        """Return how often the effect on each order took place."""
        return {item["id"]["S"]: int(item["charges"]["N"]) for item in self.all("Orders")}

    def find(self, request: Mapping[str, Any]) -> Item | None:
        """Return the item under a request's key; the TTL deletes it up to two days late."""
        found = super().find(request)
        if found is not None and "expiryTimestamp" in found:
            late_s = (EPOCH_MS + self._simulation.now_ms) / 1000 - int(found["expiryTimestamp"]["N"])
            (key,) = self.key(request)
            if late_s > 0 and late_s > _TTL_IS_LATE_S * self._simulation.roll(f"ttl {key}"):
                self.delete(request)
                return None
        return found


def _refusal(operation: str, kind: str) -> ServiceError | None:
    if kind == "throttled":
        return ServiceError("ThrottlingException", 400, "Rate exceeded", {})
    if kind == "denied":
        return ServiceError("AccessDeniedException", 400, "is not authorized to perform", {})
    if operation != "TransactWriteItems" or kind not in ("conflict", "no reasons"):
        return None
    reasons = {"CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict"}]}
    return ServiceError("TransactionCanceledException", 400, "cancelled", reasons if kind == "conflict" else {})
