"""The whole command line.

The modules with verbs are imported here, so that each verb is registered.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

from cyclopts.exceptions import CycloptsError

import ops.cli.acceptance
import ops.cli.regions
import ops.cli.rendering
import ops.cli.replay
import ops.cli.rides
import ops.cli.stack
import ops.doctor
import ops.keys
import ops.letters
import ops.search
import ops.tail  # noqa: F401 - these and the modules that they show register their verbs
from ops import plans
from ops.bounds import abridged
from ops.cli.line import INTERRUPTED, command_line
from ops.cli.mistakes import mistake
from ops.cli.show import console
from ops.stack import FAILURES, ClientFactory, OperatorError, reason
from ops.text import is_encodable

__all__ = ["command_line", "main"]

_FAILED: Final = 2
_NOBODY_READS: Final = 141
"""The exit status if the reader of the output has gone, as after SIGPIPE: ``carride … | head``."""


def main(arguments: Sequence[str] | None = None, clients: ClientFactory | None = None) -> None:
    """Run a command, by default that of this process, and end the process with its status."""
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        _check_encoding(typed)
        with plans.typed(typed):
            call = command_line()(typed, exit_on_error=False, print_error=False)
            status = 0 if call is None else call(clients)  # help has been printed
    except CycloptsError as error:
        status = _FAILED
        console(sys.stderr).print(f"error: {abridged(mistake(error, typed, clients))}")
    except FAILURES as error:
        status = _FAILED
        console(sys.stderr).print(f"error: {abridged(reason(error))}")
    except BrokenPipeError:
        status = _NOBODY_READS
        _discard_output()
    except KeyboardInterrupt as error:
        status = INTERRUPTED
        console(sys.stderr).print(str(error) or "interrupted; run it again to continue")
    if status:
        sys.exit(status)


def _discard_output() -> None:
    """Have Python write what is left in its buffer nowhere when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _check_encoding(words: Sequence[str]) -> None:
    for word in words:
        if not is_encodable(word):
            raise OperatorError(f"{abridged(word)} is not text in UTF-8: write it as such")
