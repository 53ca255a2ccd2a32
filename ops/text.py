"""Numbers in sentences and tables."""


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
    return f"{line}  {note}".rstrip()
