"""Numbers in sentences and tables, and values by key."""

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 event``, ``2,000 events``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def row(label: str, *values: int | str, note: str = "") -> str:
    """Return a row of a table as text."""
    cells = "".join(
        f" {value:>13,}" if isinstance(value, int) else f" {value:>13}" for value in values
    )
    return f"{label:<26}{cells}  {note}".rstrip()


def grouped[K, V](pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
