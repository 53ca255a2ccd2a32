"""Numbers in sentences and tables, and text of strangers."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

NARROW: Final = 80
"""Below so many columns, records stand in the place of tables."""
MOST_NAMED: Final = 20
"""How many things of a kind a report names."""

_BYTES: Final = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SURROGATES: Final = range(0xD800, 0xE000)
_SHORT: Final = {code: f"\\x{code:02x}" for code in _BYTES if chr(code) not in "\n\t"}
_LONG: Final = {code: f"\\u{code:04x}" for code in (*_DIRECTIONS, *_SURROGATES)}
_ESCAPES: Final = _SHORT | _LONG
"""How characters are shown that steer a terminal, turn the direction of text, or cannot be
encoded."""

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_TENS: Final = 10 * _SECOND
_UNITS: Final = (
    ("d", _DAY, "h", _HOUR),
    ("h", _HOUR, "min", _MINUTE),
    ("min", _MINUTE, "s", _SECOND),
)
"""Units of long spans, each with the next smaller one."""


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
    """Return a number with its noun: ``1 event``, ``2,000 events``, ``3 deliveries``."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun that follows the rule: ``events``, ``deliveries``, ``copies``."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def at_most(lines: Sequence[str]) -> list[str]:
    """Return up to `MOST_NAMED` lines of a report, and one with how many more there are."""
    shown = [*lines[:MOST_NAMED]]
    more = len(lines) - MOST_NAMED
    if more > 0:
        shown.append(f"  … and {more:,} more, which --json lists")
    return shown


def span(milliseconds: float) -> str:
    """Return a span of time in at most two units: ``14 ms``, ``2.7 s``, ``2 min 18 s``."""
    length = max(0.0, milliseconds)
    if length < _SECOND:
        return f"{length:.0f} ms"
    if length < _TENS:
        return f"{length / _SECOND:.1f} s"
    if length < _MINUTE:
        return f"{length / _SECOND:.0f} s"
    for unit, unit_ms, smaller, smaller_ms in _UNITS:
        if length >= unit_ms:
            rest = int(length % unit_ms // smaller_ms)
            whole = f"{int(length // unit_ms)} {unit}"
            return f"{whole} {rest} {smaller}" if rest else whole
    raise AssertionError("a minute is the smallest of the units")


def rough(milliseconds: float) -> str:
    """Return a span of a second or more in one unit: ``18 s``, ``2 min``, ``3 h``, ``5 d``."""
    length = max(float(_SECOND), milliseconds)
    for unit, unit_ms, _, _ in _UNITS:
        if length >= unit_ms:
            return f"{length / unit_ms:.0f} {unit}"
    return f"{length / _SECOND:.0f} s"


def command(*words: str) -> str:
    """Return a command of the operator's, as a shell takes it."""
    return shlex.join(["./carride", *words])


class Row(NamedTuple):
    """A row of a report: a label, numbers or the names of their columns, and a remark."""

    label: str
    """Empty for a row with the names of columns."""
    values: tuple[int | str, ...]
    note: str = ""


def row(label: str, *values: int | str, note: str = "") -> Row:
    """Return a row of a report."""
    return Row(label, values, note)


def laid_out(lines: Iterable[Row | str], width: int | None = None) -> str:
    """Return the lines of a report as text.

    Below `NARROW` columns each number stands in a line of its own, beside the name of its column,
    and remarks are wrapped.
    """
    if width is None or width >= NARROW:
        return "\n".join(line if isinstance(line, str) else _in_columns(line) for line in lines)
    columns: tuple[int | str, ...] = ()
    laid = list[str]()
    for line in lines:
        if isinstance(line, str):
            laid += wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
        elif not line.label:
            columns = line.values
        else:
            laid += _below_each_other(line, columns, width)
    return "\n".join(laid)


def _in_columns(line: Row) -> str:
    text = f"{line.label:<26}"
    for value in line.values:
        text += f" {_cell(value):>13}"
    return f"{text}  {line.note}".rstrip()


def _below_each_other(line: Row, columns: Sequence[int | str], width: int) -> Iterator[str]:
    remark = wrap(line.note, width, initial_indent="    ", subsequent_indent="    ")
    if len(line.values) == 1:
        yield f"{line.label}: {_cell(line.values[0])}"
    else:
        yield line.label
        for name, value in zip(columns, line.values, strict=True):
            yield f"  {name}: {_cell(value)}"
    yield from remark


def _cell(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
