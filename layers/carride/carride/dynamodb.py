"""Sends a function's requests to DynamoDB over the transport of its idempotency records."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from carride_idempotency.stores.transport import NoAnswerError, ServiceError, Transport

CONDITION_FAILED: Final = "ConditionalCheckFailedException"

_TRIES: Final = 3
_LONGEST_PAUSE_S: Final = 0.1
_SERVER_ERROR: Final = 500
_PASSING: Final = frozenset(
    {"ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException"}
)


class DynamoDB:
    """Sends requests in DynamoDB's wire format, each up to three times: all are safe to repeat.

    The methods raise the transport's errors: `ServiceError` for a refusal, `NoAnswerError` if no
    try was answered.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport
        self._sleep = sleep
        self._jitter = jitter

    def get_item(self, **request: Any) -> Mapping[str, Any]:
        """Read an item."""
        return self._send("GetItem", request)

    def update_item(self, **request: Any) -> Mapping[str, Any]:
        """Update an item under a condition that an update of its own does not meet again."""
        return self._send("UpdateItem", request)

    def query(self, **request: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the answers to a query, page by page."""
        while True:
            answer = self._send("Query", request)
            yield answer
            if "LastEvaluatedKey" not in answer:
                return
            request = {**request, "ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def batch_get_item(self, **request: Any) -> Iterator[Mapping[str, Any]]:
        """Yield answers until every item has been read.

        It ends, because DynamoDB refuses a request of which it can read no item.
        """
        while request["RequestItems"]:
            answer = self._send("BatchGetItem", request)
            yield answer
            request = {**request, "RequestItems": answer.get("UnprocessedKeys")}

    def _send(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(_TRIES - 1):
            try:
                return self._transport(operation, request)
            except NoAnswerError:
                pass
            except ServiceError as error:
                if error.status < _SERVER_ERROR and error.code not in _PASSING:
                    raise
            self._sleep(_LONGEST_PAUSE_S * self._jitter())
        return self._transport(operation, request)
