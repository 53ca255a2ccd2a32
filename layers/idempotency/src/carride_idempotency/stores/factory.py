"""Opens the store that one line of settings names."""

import re
from typing import TYPE_CHECKING, Final

from carride_idempotency.errors import ConfigurationError
from carride_idempotency.stores import Store

if TYPE_CHECKING:
    from carride_idempotency.stores.transport import Transport

_TABLE: Final = re.compile(r"dynamodb:([A-Za-z0-9_][A-Za-z0-9_.:/-]{2,2047})")
_SERVER: Final = re.compile(
    r"(?:valkey|redis)(?P<tls>s?)://"
    r"(?:(?P<user>[^:@/?#\s]*)(?::(?P<password>[^@/?#\s]*))?@)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))"
    r"(?::(?P<port>[0-9]{1,5}))?(?:/(?P<database>[0-9]{0,5}))?(?:\?(?P<options>[a-z=&]*))?"
)
_OPTIONS: Final = frozenset(
    {"cluster=true", "cluster=false", "eviction=accepted", "eviction=refused"}
)
_PORT: Final = 6379
_HIGHEST_PORT: Final = 65_535


def open_store(address: str, *, transport: "Transport | None" = None) -> Store:
    """Open the store at ``address``.

    It imports only what that store needs, and sends no request yet.

    Args:
        address: ``dynamodb:<name or ARN of the table>``, or
            ``<scheme>://[[<user>]:<password>@]<host>[:<port>]`` with the scheme valkey or redis,
            with TLS valkeys or rediss, and then ``[/<database>][?<options>]``. ``docs/stores.md``
            explains the options.
        transport: carries the requests to DynamoDB. Default: what `dynamodb_transport` makes for
            the environment.

    Raises:
        ConfigurationError: it is none of these, or valkey-py is not installed.
    """
    if not isinstance(address, str):
        raise ConfigurationError(
            f"the address of a store is a string, not {address!r}: "
            "set the environment variable that holds it"
        )
    if table := _TABLE.fullmatch(address):
        from carride_idempotency.stores.dynamodb import DynamoDBStore

        return DynamoDBStore(table[1], transport=transport)
    server = _SERVER.fullmatch(address)
    options = set(filter(None, (server["options"] or "").split("&"))) if server else set()
    port = int(server["port"] or _PORT) if server else 0
    if server is None or options - _OPTIONS or not 0 < port <= _HIGHEST_PORT:
        from carride_idempotency.errors.misuse import not_an_address

        raise not_an_address(address, sorted(_OPTIONS))
    cluster = "cluster=true" in options
    database = int(server["database"] or 0)
    if cluster and database:
        raise ConfigurationError(
            "a cluster has no databases: leave the number out of the address, or cluster=true"
        )

    from urllib.parse import unquote

    from carride_idempotency.stores.valkey import ValkeyStore

    try:
        from carride_idempotency.stores.valkey_client import connect
    except ImportError as error:
        raise ConfigurationError(
            "records in Valkey need the package valkey: add it to what is deployed"
        ) from error
    host = server["ipv6"] or server["host"]
    tls = bool(server["tls"])
    user, password = (unquote(server[part] or "") or None for part in ("user", "password"))
    client = connect(
        host, port, tls=tls, username=user, password=password, database=database, cluster=cluster
    )
    return ValkeyStore(client, checks_eviction="eviction=accepted" not in options)
