"""How an event names its operation: a function of it, or a JMESPath expression over it.

A key that is missing, or of which a part is missing, is an error: an empty key would make strangers share a record.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from idempotency.errors import ConfigurationError, MissingKeyError

type Extract = Callable[[Any], object]

LONGEST_KEY: Final = 2_048
"""Bytes of a DynamoDB partition key. A longer key is replaced by its hash."""
_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""The JMESPath expressions that only descend: they need no interpreter, nor the import of one."""


class TransportId:
    """Marks the transport's own message id as the key: see `TRANSPORT_ID`."""


TRANSPORT_ID: Final = TransportId()
"""Ask for the id that the transport gave this message (EventBridge's ``id``, SQS's ``messageId``, …) as the key.

It recognises a redelivery of the same message, and nothing else: a producer's retry, a replay into another region or a
redrive by copy carries a new id. Use a key of the event's own wherever there is one.
"""


def extractor(what: str | Extract, name: str) -> Extract:
    """Return a function of an event; a string is compiled as a JMESPath expression.

    Raises:
        ConfigurationError: the expression does not compile.
    """
    if callable(what):
        return what
    if _DOTTED.fullmatch(what):
        return _descend(what.split("."))
    import jmespath  # noqa: PLC0415 - only who uses expressions pays for it; it comes with botocore

    try:
        compiled = jmespath.compile(what)
    except jmespath.exceptions.JMESPathError as error:
        raise ConfigurationError(f"{name}={what!r} is not a JMESPath expression: {error}") from error
    search: Extract = compiled.search
    return search


def _descend(names: list[str]) -> Extract:
    def search(value: Any) -> object:
        for name in names:
            try:
                value = value.get(name)
            except AttributeError:  # no mapping: JMESPath finds nothing in it
                return None
        return value

    return search


def check_name(name: str, what: str) -> None:
    """Raise ConfigurationError unless ``name`` can stand in a record key."""
    if not name or "#" in name or "/" in name:
        raise ConfigurationError(f"{what} cannot be empty, nor contain '#' or '/': {name!r}")


def record_key(consumer: str, value: object, operation: str | None = None) -> str:
    """Return ``<consumer>#<key>`` for what an extractor found: one scalar, or a list or tuple of them.

    Raises:
        MissingKeyError: there is no key, or a part of it is missing or is no string, whole number or UUID.
    """
    if operation is not None:
        consumer = f"{consumer}/{operation}"
    if isinstance(value, list | tuple):
        if not value:
            raise MissingKeyError(f"{consumer}: the event has no idempotency key")
        # Escaped, so that ("a#b", "c") and ("a", "b#c") stay two keys.
        text = "#".join(_scalar(consumer, part).replace("%", "%25").replace("#", "%23") for part in value)
    else:
        text = _scalar(consumer, value)
    key = f"{consumer}#{text}"
    if len(key) * 4 > LONGEST_KEY and len(key.encode()) > LONGEST_KEY:
        return f"{consumer}#sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return key


def _scalar(consumer: str, part: object) -> str:
    if type(part) is str and part:
        return part
    if part is None or part == "":
        raise MissingKeyError(f"{consumer}: the event's idempotency key is missing, or a part of it is")
    if isinstance(part, bool) or not isinstance(part, str | int | UUID):
        raise MissingKeyError(f"{consumer}: a {type(part).__name__} is no idempotency key")
    return str(part)
