"""The operator's command line: `./carride`, or `python -m ops`."""

import signal

from ops.cli.app import main

# A command in the background would begin with SIGINT ignored.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)
main()
