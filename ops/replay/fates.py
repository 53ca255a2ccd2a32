"""What a prediction of a replay says, and its result, for terminal and desk. No I/O."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from ops.text import counted

type Fates = Mapping[str, Mapping[str, Mapping[Any, int]]]
"""Numbers of deliveries by consumer, type of event and `ops.replay.planning.Fate`."""

_LOOKED_FOR: Final = ("new", "quarantined", "dead-lettered", "in progress", "too old")
"""The fates that one looks for in a prediction."""
_BEFORE: Final = "dead-lettered before"
_EXPECTED: Final = (_BEFORE, "recognised")
_AFTER_NEW: Final = ("recognised", *_LOOKED_FOR[1:], _BEFORE)
"""The fates that a sentence names after what would run anew."""
_DELIVERED: Final = (*_LOOKED_FOR, *_EXPECTED)
"""The fates of what a consumer receives."""
_HEADS: Final[Mapping[str, str]] = {"new": "would run anew"}


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
    parts = [f"{total['new']:,} would run anew"]
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
            if _has_any(counts, (*_LOOKED_FOR, _BEFORE)):
                found.looked_for.append(row)
            elif any(numbers):  # else the consumer does not take it
                found.quiet.append(row)
    return found


def _total(fates: Fates) -> Counter[str]:
    total = Counter[str]()
    for types in fates.values():
        for counts in types.values():
            total.update(counts)
    return total


def _has_any(counts: Mapping[str, int], fates: Iterable[str]) -> bool:
    return any(counts.get(fate) for fate in fates)


class Compared(NamedTuple):
    """What was predicted of a consumer's deliveries, and what it has logged, of one fate."""

    consumer: str
    fate: str
    predicted: int | None
    """None without a prediction."""
    logged: int


class Comparison(NamedTuple):
    """What became of the deliveries of a replay, beside its prediction."""

    made: datetime | None
    """When the prediction was made; None without one."""
    rows: list[Compared]
    why: list[str]
    """Why the numbers may differ; empty if they are equal."""
    differs: str = ""
    """How the window of the prediction differs from that of the replay; empty if it does not."""
    nearest: str = ""
    """Which prediction comes nearest, without one that can be compared."""

    @property
    def says(self) -> str:
        """Whether the replay went as predicted, and what became of all its deliveries."""
        total = Counter[str]()
        for row in self.rows:
            total[row.fate] += row.logged
        listed = ", ".join(f"{number:,} {_DONE.get(fate, fate)}" for fate, number in total.items())
        became = f"Consumers have logged {listed or 'no delivery'}."
        if self.made is None:
            which = f"; the nearest was {self.nearest}" if self.nearest else ""
            return f"{became} No prediction of this window was made{which}."
        window = f", for a window {self.differs}" if self.differs else ""
        if any(row.predicted != row.logged for row in self.rows):
            return f"{became} That differs from its prediction{window}."
        return f"{became} That is what was predicted{window}."


def comparison_in(told: Mapping[str, Any]) -> Comparison:
    """Return a comparison from its JSON. That of an older version lacks the last two parts."""
    return Comparison(
        made=datetime.fromisoformat(told["made"]) if told["made"] else None,
        rows=[Compared(**row) for row in told["rows"]],
        why=told["why"],
        differs=told.get("differs", ""),
        nearest=told.get("nearest", ""),
    )


def compared(
    made: datetime | None,
    predicted: Fates,
    logged: Mapping[str, Mapping[Any, int]],
    consumers: Collection[str],
    *,
    differs: str = "",
    nearest: str = "",
) -> Comparison:
    """Return a row for each fate that was predicted or logged of some consumers' deliveries.

    ``logged`` are deliveries by consumer and fate. Without ``made`` there was no prediction.
    """
    rows = []
    for consumer in consumers:
        expected = _total({consumer: predicted.get(consumer, {})})
        seen = Counter({str(fate): count for fate, count in logged.get(consumer, {}).items()})
        for fate in _DELIVERED:
            number = expected[fate] if made else None
            if number or seen[fate]:
                rows.append(Compared(consumer, fate, number, seen[fate]))
    why = _why_different(rows) if made else []
    if why and differs:
        why.append("the windows differ: an event near an edge may be in one of them only")
    return Comparison(made, rows, why, differs, nearest)


_DONE: Final[Mapping[str, str]] = {"new": "run anew", "in progress": "failed or held so far"}
"""What the fates of a prediction are called once they have happened."""


def _why_different(rows: Collection[Compared]) -> list[str]:
    """Return what may explain that predicted and logged numbers differ."""
    more = set[str]()
    expected = 0
    logged = 0
    for row in rows:
        expected += row.predicted or 0
        logged += row.logged
        if row.logged > (row.predicted or 0):
            more.add(row.fate)
    found = []
    if logged < expected:
        missing = counted(expected - logged, "delivery")
        found.append(
            f"{missing} fewer than predicted: they are still outstanding (Lambda tries again for "
            "up to six hours), or their lines are missing in the log"
        )
    if logged > expected:
        extra = counted(logged - expected, "delivery")
        found.append(
            f"{extra} more than predicted: deliveries of events that were published during the "
            "replay are counted too, and queues may deliver twice"
        )
    found += [_MORE[fate] for fate in _DELIVERED if fate in more and fate in _MORE]
    return found


_MORE: Final[Mapping[str, str]] = {
    "new": "more ran anew: their events were published after the prediction, or their keys were "
    "released since",
    "dead-lettered before": "more were dead-lettered before: their letters came after the "
    "prediction",
    "recognised": "more were recognised: their events took effect after the prediction, or were "
    "delivered twice",
    "in progress": "some have failed so far, or another attempt holds their key: they are tried "
    "again",
    "quarantined": "more were refused: their keys were quarantined after the prediction",
    "too old": "more were too old: their events expired after the prediction",
    "dead-lettered": "more went to a dead-letter queue: `./carride letters` shows them",
}
"""Why more deliveries than predicted had a fate."""
