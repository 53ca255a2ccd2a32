"""What a replay would do, in a sentence and in rows. No I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ops.replay.planning import Fate
from ops.text import counted

type Fates = Mapping[str, Mapping[str, Mapping[Fate, int]]]
"""Numbers of deliveries by consumer, type of event and fate."""

_LOOKED_FOR: Final = (
    Fate.NEW,
    Fate.QUARANTINED,
    Fate.DEAD_LETTERED,
    Fate.IN_PROGRESS,
    Fate.TOO_OLD,
)
"""The fates that one looks for in a prediction."""
_EXPECTED: Final = (Fate.LETTER_IS_THERE, Fate.RECOGNISED)
_AFTER_NEW: Final = (Fate.RECOGNISED, *_LOOKED_FOR[1:], Fate.LETTER_IS_THERE)
"""The fates that a sentence names after what would run anew."""
_HEADS: Final[Mapping[Fate, str]] = {Fate.NEW: "would run anew"}


class Row(NamedTuple):
    """What would become of the events of a type at a consumer."""

    consumer: str
    type: str
    numbers: tuple[int, ...]
    """One for each column of `Rows`."""


class Rows(NamedTuple):
    """A prediction in rows. A type of which a consumer takes nothing has none."""

    heads: tuple[str, ...]
    """Of the columns: the fates that occur."""
    looked_for: list[Row]
    """Those with a delivery that one looks for, or that a sentence names besides."""
    quiet: list[Row]
    """Those in which all is recognised."""


def sentence(events: int, fates: Fates) -> str:
    """Return what would become of all deliveries."""
    total = _total(fates)
    parts = [f"{total[Fate.NEW]:,} would run anew"]
    for fate in _AFTER_NEW:
        number = total[fate]
        if number:
            parts.append(f"{number:,} {fate}")
    listed = ", ".join(parts)
    return f"Of the deliveries of {counted(events, 'archived event')}, {listed}."


def rows(fates: Fates) -> Rows:
    """Return what would become of events, by consumer and type."""
    total = _total(fates)
    columns = [fate for fate in (*_LOOKED_FOR, *_EXPECTED) if total[fate]]
    heads = tuple(_HEADS.get(fate, fate) for fate in columns)
    found = Rows(heads, [], [])
    for consumer, types in fates.items():
        for kind, counts in sorted(types.items()):
            numbers = tuple(counts.get(fate, 0) for fate in columns)
            row = Row(consumer, kind, numbers)
            if _has_any(counts, (*_LOOKED_FOR, Fate.LETTER_IS_THERE)):
                found.looked_for.append(row)
            elif any(numbers):  # else the consumer does not take it
                found.quiet.append(row)
    return found


def _total(fates: Fates) -> Counter[Fate]:
    total = Counter[Fate]()
    for types in fates.values():
        for counts in types.values():
            total.update(counts)
    return total


def _has_any(counts: Mapping[Fate, int], fates: Iterable[Fate]) -> bool:
    return any(counts.get(fate) for fate in fates)
