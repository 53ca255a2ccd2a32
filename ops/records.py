"""The records of a stack's consumers, as far as the operator's commands reach them: those in the table."""

from typing import Final

from idempotency import DynamoDBStore
from idempotency.stores.transport import BotocoreTransport
from ops.site import OperatorError, Site

API: Final = "carride-api"
"""Its answers are in the table, wherever the records of the consumers are."""
_ANSWER_SECONDS: Final = 20.0


def are_in_reach(site: Site, consumer: str) -> bool:
    """Whether a consumer's records are in the table, and not in a cache, which only its VPC reaches."""
    return consumer == API or site.parameters.get("RecordStore", "dynamodb") == "dynamodb"


def store_of(site: Site, consumer: str) -> DynamoDBStore:
    """Return the store in which a consumer's records can be looked up and released.

    Raises:
        OperatorError: its records are out of reach.
    """
    if not are_in_reach(site, consumer):
        raise OperatorError(
            f"the records of {consumer} are in Valkey, which this command cannot reach: "
            "docs/runbooks/records-in-valkey.md says how to release a key from inside of the VPC"
        )
    transport = BotocoreTransport(site.client("dynamodb"), _ANSWER_SECONDS)
    return DynamoDBStore(site.outputs["IdempotencyTableName"], transport=transport)
