"""How commands that leave something running are ended."""

import signal


def end_in_order() -> None:
    """Have Ctrl-C and SIGTERM raise KeyboardInterrupt, so that what was started is stopped on the way out.

    A shell without job control starts what goes to the background with SIGINT ignored, and Python leaves it so.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
