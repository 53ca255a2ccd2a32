"""The idempotency records of a stack's consumers and API."""

from typing import Final

from idempotency import DynamoDBStore
from idempotency.stores.transport import BotocoreTransport
from ops.site import Site

API: Final = "carride-api"
"""The name under which the API keeps its answers."""
_ANSWER_SECONDS: Final = 20.0


def store_of(site: Site) -> DynamoDBStore:
    """Return the store in which records can be looked up and released."""
    transport = BotocoreTransport(site.client("dynamodb"), _ANSWER_SECONDS)
    return DynamoDBStore(site.outputs["IdempotencyTableName"], transport=transport)
