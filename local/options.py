"""What the commands take on their command lines: forms of numbers, for argparse."""

import argparse
from collections.abc import Callable


def _at_least(least: int) -> Callable[[str], int]:
    """Return what reads a whole number that is not less than ``least``."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return number

    return read


count = _at_least(0)
positive = _at_least(1)


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: give a number from 0 to 1")
    return number
