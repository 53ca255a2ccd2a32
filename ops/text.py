"""Numbers in sentences and tables, and text of strangers."""

from typing import Final

_BYTES: Final = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SURROGATES: Final = range(0xD800, 0xE000)
_SHORT: Final = {code: f"\\x{code:02x}" for code in _BYTES if chr(code) not in "\n\t"}
_LONG: Final = {code: f"\\u{code:04x}" for code in (*_DIRECTIONS, *_SURROGATES)}
_ESCAPES: Final = _SHORT | _LONG
"""How characters are shown that steer a terminal, turn the direction of text, or cannot be
encoded."""


def visible(text: str) -> str:
    """Return text as it can be shown, with escapes in the place of control characters."""
    return text.translate(_ESCAPES)


def is_encodable(text: str) -> bool:
    """Return whether a text can be written in UTF-8: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 event``, ``2,000 events``."""
    ending = "" if number == 1 else "s"
    return f"{number:,} {noun}{ending}"


def row(label: str, *values: int | str, note: str = "") -> str:
    """Return a row of a table as text."""
    line = f"{label:<26}"
    for value in values:
        cell = f"{value:,}" if isinstance(value, int) else value
        line += f" {cell:>13}"
    line += f"  {note}"
    return line.rstrip()
