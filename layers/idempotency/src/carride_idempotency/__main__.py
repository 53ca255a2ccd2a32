"""The operator's command: `python -m carride_idempotency --help`."""

import sys

from carride_idempotency.operators.command import main

if __name__ == "__main__":
    sys.exit(main())
