"""Reads what a gateway answers.

The gateway's values go into events. Payment ids and amounts are checked, and reasons are cut to
what an event can hold. An error keeps only a short code of the gateway's other texts: they may be
about the customer, and errors end up in logs.
"""

import json
import re
from typing import Final

from msgspec import Struct

from carride.decoding import FieldError, shaped
from gateway import GatewayAnswerError

PAYMENT_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$(?!\n)"

_LONGEST_REASON: Final = 200
_is_code: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


def expect(field: str, found: object, asked: object) -> None:
    """Raise GatewayAnswerError unless an answer is about what was asked."""
    if found != asked:
        raise GatewayAnswerError(f"the gateway's answer has another {field} than it was asked for")


def json_of(content: bytes) -> object:
    """Return the JSON of an answer; None if it is not JSON."""
    try:
        answer: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return answer


def read_answer[S: Struct](answer: object, shape: type[S]) -> S:
    """Return an answer in its shape; GatewayAnswerError names a field that does not fit."""
    try:
        return shaped(answer, shape)
    except FieldError as error:
        raise GatewayAnswerError(
            f"the gateway's answer has no {error.field} that an event can hold"
        ) from None


def code_of(said: object) -> str | None:
    """Return a code of the gateway that errors may hold; None if it is not a short code."""
    return said if isinstance(said, str) and _is_code(said) else None


def reason_of(said: object) -> str | None:
    """Return what an event can hold of a text: one short line of printable characters, or None."""
    if not isinstance(said, str):
        return None
    printable = "".join(character if character.isprintable() else " " for character in said)
    return " ".join(printable.split())[:_LONGEST_REASON] or None
