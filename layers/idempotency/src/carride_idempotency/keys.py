"""Idempotency keys: how they are found in an event, and how they become keys of records.

A missing or partly missing key is an error: with an empty key unrelated events would share a
record.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final
from uuid import UUID

from carride_idempotency.errors import ConfigurationError, KeyExpressionError, MissingKeyError

type Extract = Callable[[Any], object]

LONGEST_KEY: Final = 2_048
"""Bytes of a DynamoDB partition key. A longer key is replaced by its hash."""
_LONGEST_NAME: Final = 255
LETTER: Final = "#%letter:"
"""Follows the consumer's name in the key of a dead letter's mark: see `letter_marks`."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""JMESPath expressions that are plain paths: they need no interpreter, and no import of one."""


class TransportId:
    """Marks the transport's own message id as the key: see `TRANSPORT_ID`."""


TRANSPORT_ID: Final = TransportId()
"""Use the transport's id of the message (EventBridge's ``id``, SQS's ``messageId``, …) as the key.

It recognises a redelivery of the same message only, and no producer's retry: prefer a key from the
event itself.
"""


def extractor(what: str | Extract, name: str) -> Extract:
    """Return a function of an event; a string is compiled as a JMESPath expression.

    Raises:
        ConfigurationError: the expression does not compile, or calls a function that JMESPath does
            not have.
    """
    if callable(what):
        return what
    if not isinstance(what, str):
        raise ConfigurationError(
            f"{name}= is a JMESPath expression or a function of the event, not {what!r}"
        )
    if _DOTTED.fullmatch(what):
        return _descend(what.split("."))
    import jmespath

    try:
        compiled = jmespath.compile(what)
        _check_functions(compiled.parsed, jmespath.functions.Functions.FUNCTION_TABLE)
    except ValueError as error:
        raise ConfigurationError(
            f"{name}={what!r} is not a JMESPath expression: {error}"
        ) from error

    def search(message: Any) -> object:
        try:
            return compiled.search(message)
        except ValueError as error:  # a plain ValueError would mean that the message is broken
            raise KeyExpressionError(f"{name}={what!r} cannot be applied: {error}") from error

    return search


def _check_functions(node: Any, table: Mapping[str, Any]) -> None:
    """Refuse unknown functions and wrong numbers of arguments.

    JMESPath itself refuses them only when it runs.
    """
    children = node["children"]
    if node["type"] == "function_expression":
        name = node["value"]
        given = len(children)
        if name not in table:
            raise ValueError(f"there is no function {name}()")
        signature = table[name]["signature"]
        needed = len(signature)
        if given < needed or (given > needed and not signature[-1].get("variadic")):
            raise ValueError(f"{name}() takes {needed} arguments, not {given}")
    for child in children:
        if isinstance(child, dict):  # a slice's are numbers
            _check_functions(child, table)


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
    """Check that a name can precede the first ``#`` of a record's key. An error calls it ``what``.

    Raises:
        ConfigurationError: the name is empty, longer than 255 bytes, no UTF-8, or contains ``#`` or
            ``/``.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} is a string, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{what} cannot be written as UTF-8: {name!r}") from error
    if not 0 < size <= _LONGEST_NAME or "#" in name or "/" in name:
        rule = f"cannot be empty, have over {_LONGEST_NAME} bytes or contain '#' or '/'"
        raise ConfigurationError(f"{what} {rule}: {name!r}")


def record_key(consumer: str, value: object, operation: str | None = None) -> str:
    """Return the key of a record, which is the same only for equal idempotency keys.

    It is ``<consumer>#<key>``, or ``<consumer>/<operation>#<key>``. The idempotency key is one
    scalar (a string, a whole number, a UUID, or an enum member with such a value), or a list or
    tuple of scalars:

    - Scalars of the same text are the same key: ``7`` and ``"7"``, a UUID and its text.
    - The parts of a composite key are joined with ``#``; after the only part of one stands a ``#``.
    - In scalars, ``%`` is written ``%25``, ``#`` is written ``%23``, and a lone surrogate
      ``%uD83D``.
    - A key of more than 2,048 bytes is replaced by ``%sha256:<hash>``.

    Raises:
        MissingKeyError: the key, or a part of it, is missing or not a scalar.
    """
    prefix = consumer if operation is None else f"{consumer}/{operation}"
    if isinstance(value, list | tuple):
        if not value:
            raise MissingKeyError(f"{consumer}: the idempotency key is an empty list")
        text = "#".join([scalar(consumer, part) for part in value])
        if len(value) == 1:
            text += "#"
    else:
        text = scalar(consumer, value)
    key = f"{prefix}#{text}"
    return _shortened(key)


def _shortened(key: str) -> str:
    """Return the key of a record; one that is too long has the hash of its text."""
    is_surely_short = len(key) * 4 <= LONGEST_KEY  # a character has at most four bytes
    if is_surely_short or len(key.encode()) <= LONGEST_KEY:
        return key
    name, _, text = key.partition("#")
    digest = hashlib.sha256(text.encode())
    return f"{name}#%sha256:{digest.hexdigest()}"


def letter_key(consumer: str, region: str | None, message_id: str) -> str:
    """Return the key of the record that says that a region's queue has a message's letter.

    No idempotency key looks like it: there ``%`` is written ``%25``.
    """
    return f"{consumer}{LETTER}{region or ''}#{scalar(consumer, message_id)}"


def downstream_key(key: str, step: str | None = None) -> str:
    """Return the key for another system that belongs to a record's key, or to one of its calls."""
    whole = hashlib.blake2b(key.encode(), digest_size=16)
    if step is None:
        return whole.hexdigest()
    return hashlib.blake2b(step.encode(), key=whole.digest(), digest_size=16).hexdigest()


def scalar(consumer: str, part: object) -> str:
    """Return an idempotency key of one part, or a part of one, as it stands in a record's key.

    Raises:
        MissingKeyError: it is missing or not a scalar.
    """
    text = part if type(part) is str else _text(consumer, part)
    if not text:
        raise MissingKeyError(
            f"{consumer}: the idempotency key is missing, or a part of it is: None or an empty text"
        )
    if "%" in text or "#" in text:
        text = text.replace("%", "%25").replace("#", "%23")
    return text if text.isascii() else _SURROGATE.sub(lambda lone: f"%u{ord(lone[0]):04X}", text)


def _text(consumer: str, part: object) -> str:
    if isinstance(part, Enum):
        part = part.value
    if part is None:
        return ""
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, int) and not isinstance(part, bool):
        try:
            return int.__repr__(part)
        except ValueError as error:  # longer than Python writes
            raise MissingKeyError(
                f"{consumer}: a number of that length is not an idempotency key"
            ) from error
    if isinstance(part, UUID):
        return str(part)
    raise MissingKeyError(
        f"{consumer}: a {type(part).__name__} is not an idempotency key, nor a part of one: give a "
        "string, a whole number, a UUID, an enum member with such a value, or a list of those"
    )
