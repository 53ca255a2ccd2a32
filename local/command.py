"""What the commands share: numbers on the command line, progress, and how a command ends."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TextIO

from local.engine.process import EngineError, end_in_order

WRONG: Final = 1
_FAILED: Final = 2
_INTERRUPTED: Final = 130
_NOTE_SECONDS: Final = 5.0


def _at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers that are not less than ``least``."""

    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

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
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, a number from 0 to 1")
    return number


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Run a command: it ends with 2 and one sentence if the local AWS fails, with 130 after Ctrl-C or SIGTERM."""
    end_in_order()
    try:
        yield
    except EngineError as error:
        leave(_FAILED, f"error: {error}")
    except KeyboardInterrupt:
        leave(_INTERRUPTED, "\nstopped; nothing is left running")


def leave(status: int, message: str) -> NoReturn:
    """Print a message to standard error, and end the command."""
    print(message, file=sys.stderr, flush=True)
    sys.exit(status)


class Progress:
    """Print each step with its duration, and a note now and then during long ones."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._noted = 0.0
        self._gap = " "

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Announce a step, and print its duration when it is done."""
        began = self._noted = time.monotonic()
        self._gap = " "
        self._print(f"{what} …")
        yield
        self._print(f"{self._gap}{time.monotonic() - began:.1f} s\n")

    def note(self, text: str) -> None:
        """Print how far the step has come, at most every five seconds."""
        if time.monotonic() - self._noted >= _NOTE_SECONDS:
            self._noted = time.monotonic()
            self._gap = "\n  done in "
            self._print(f"\n  {text}")

    def _print(self, text: str) -> None:
        print(text, end="", file=self._stream, flush=True)
