"""The whole command line.

The modules with verbs are imported here, so that each verb is registered.
"""

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
import ops.erasure
import ops.promotion  # noqa: F401 - these and the modules that they show register their verbs
from ops import plans
from ops.bounds import abridged
from ops.cli.line import INTERRUPTED, command_line
from ops.cli.show import console
from ops.stack import FAILURES, ClientFactory, OperatorError, reason
from ops.text import is_encodable

__all__ = ["command_line", "main"]

_FAILED: Final = 2


def main(arguments: Sequence[str] | None = None, clients: ClientFactory | None = None) -> None:
    """Run a command, by default that of this process, and end the process with its status."""
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        _check_encoding(typed)
        with plans.typed(typed):
            status = command_line(clients)(typed, exit_on_error=False, print_error=False)
    except (*FAILURES, CycloptsError) as error:
        status = _FAILED
        console(sys.stderr).print(f"error: {abridged(reason(error))}")
    except KeyboardInterrupt as error:
        status = INTERRUPTED
        console(sys.stderr).print(str(error) or "interrupted; run it again to continue")
    if status:
        sys.exit(status)


def _check_encoding(words: Sequence[str]) -> None:
    for word in words:
        if not is_encodable(word):
            raise OperatorError(f"{abridged(word)} is not text in UTF-8: write it as such")
