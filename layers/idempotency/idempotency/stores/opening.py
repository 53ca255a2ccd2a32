"""The store that a deployment has chosen, from one line of its settings."""

import re
from typing import Final

from idempotency.errors import ConfigurationError
from idempotency.stores import Store

_TABLE: Final = re.compile(r"dynamodb:(?P<table>[A-Za-z0-9_][A-Za-z0-9_.:/-]{2,2047})")
_SERVER: Final = re.compile(r"(?P<scheme>valkeys?)://(?P<host>[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def open_store(address: str) -> Store:
    """Open the store at ``address``; what it does not need is not imported.

    Over Valkey, effects are written to DynamoDB just before the record: see ``Operation.write``.

    Args:
        address: ``dynamodb:<name or ARN of the table>``, or ``valkey://<host>:<port>``, or ``valkeys://<host>:<port>``
            for a server that is spoken to over TLS, as ElastiCache Serverless is.

    Raises:
        ConfigurationError: it is none of these, or valkey-py is not installed.
    """
    if table := _TABLE.fullmatch(address):
        from idempotency.stores.dynamodb import DynamoDBStore  # noqa: PLC0415 - only what was chosen is imported

        return DynamoDBStore(table["table"])
    if server := _SERVER.fullmatch(address):
        from idempotency.stores.dynamodb_effects import DynamoDBEffects  # noqa: PLC0415 - as above
        from idempotency.stores.valkey import ValkeyStore, connect  # noqa: PLC0415 - as above

        client = connect(server["host"], int(server["port"]), tls=server["scheme"] == "valkeys")
        return ValkeyStore(client, effect_writer=DynamoDBEffects())
    raise ConfigurationError(
        f"{address!r} is no address of a store: it is dynamodb:<table>, valkey://<host>:<port> or "
        "valkeys://<host>:<port> (with TLS)"
    )
