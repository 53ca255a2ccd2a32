"""What the commands share: numbers on the command line, progress, and how a command ends."""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NoReturn, TextIO

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.text import Text

from engine.process import EngineError, end_in_order
from ops.stack import OperatorError

WRONG: Final = 1
_FAILED: Final = 2
_INTERRUPTED: Final = 130
_SILENT_SECONDS: Final = 1.5
_REFRESH_SECONDS: Final = 0.1


def _number(kind: Any) -> Callable[[str], Any]:
    """Return a reader of numbers within msgspec's limits."""

    def read(text: str) -> Any:
        try:
            return msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return read


count = _number(Annotated[int, Meta(ge=0)])
positive = _number(Annotated[int, Meta(ge=1)])
port = _number(Annotated[int, Meta(ge=0, le=65_535)])
share = _number(Annotated[float, Meta(ge=0, le=1)])


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Run a command: 2 and one sentence if it cannot run, 130 after Ctrl-C or SIGTERM."""
    end_in_order()
    try:
        yield
    except (EngineError, OperatorError) as error:
        leave(_FAILED, f"error: {error}")
    except KeyboardInterrupt:
        leave(_INTERRUPTED, "\nstopped; nothing is left running")


def leave(status: int, message: str) -> NoReturn:
    """Print a message to standard error, and end the command."""
    print(message, file=sys.stderr, flush=True)
    sys.exit(status)


class Progress:
    """Shows each step while it lasts, and then its duration.

    On a terminal the line changes; elsewhere there are plain lines.
    """

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(
            file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self._is_live = (
            self.console.is_terminal
            and not self.console.no_color
            and not self.console.is_dumb_terminal
        )
        self._note = ""

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show a step for as long as the ``with`` block lasts."""
        began = time.monotonic()
        ended = threading.Event()
        self._note = ""
        shown = threading.Thread(
            target=self._show_live if self._is_live else self._show_plain, args=(what, began, ended)
        )
        shown.start()
        try:
            yield
        finally:
            ended.set()
            shown.join()
        mark = Text.assemble(("✓ ", "green"), what, " ") if self._is_live else Text("  done in ")
        self.console.print(mark, Text(f"{time.monotonic() - began:.1f} s", "dim"), sep="")

    def note(self, text: str) -> None:
        """Show how far the step has come."""
        self._note = text

    def _show_live(self, what: str, began: float, ended: threading.Event) -> None:
        with self.console.status(what) as status:
            while not ended.wait(_REFRESH_SECONDS):
                status.update(
                    Text.assemble(
                        f"{what} … ", (f"{time.monotonic() - began:.0f} s {self._note}", "dim")
                    )
                )

    def _show_plain(self, what: str, began: float, ended: threading.Event) -> None:
        self.console.print(f"{what} …")
        while not ended.wait(_SILENT_SECONDS):
            self.console.print(f"  {time.monotonic() - began:.0f} s {self._note}")
