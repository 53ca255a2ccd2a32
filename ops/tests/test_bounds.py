"""What a terminal shows of long strings."""

from typing import NamedTuple

import msgspec

from ops.bounds import LONGEST, shortened


class Letter(NamedTuple):
    """Something that has no JSON."""

    error: str


class Line(msgspec.Struct):
    """Something that has no JSON either."""

    error: str


def test_data_for_a_terminal_keeps_its_types() -> None:
    """Only strings become shorter, and say how long they are."""
    long = "x" * (LONGEST + 1)
    short = f"{'x' * LONGEST}… (1,001 characters)"
    data = ({"a": [long]}, Letter(long), Line(long), 7)
    assert shortened(data) == ({"a": [short]}, Letter(short), Line(short), 7)
    assert shortened(short[:LONGEST]) == short[:LONGEST]
