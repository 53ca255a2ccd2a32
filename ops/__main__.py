"""The operator's command line: `./carride`, or `python -m ops`."""

import signal

from ops.cli.app import main

for number in (signal.SIGINT, signal.SIGTERM):  # a command in the background would begin with SIGINT ignored
    signal.signal(number, signal.default_int_handler)
main()
