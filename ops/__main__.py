"""The operator's command line: `./carride`, or `python -m ops`."""

import signal
import sys

# A command in the background would begin with SIGINT ignored.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)
try:
    from ops.cli.app import main
except KeyboardInterrupt:
    # Importing takes a second.
    print("interrupted; run it again to continue", file=sys.stderr)
    sys.exit(130)
main()
