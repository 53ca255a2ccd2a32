"""`python -m tests.idempotency.differential`: print what Powertools and this layer do in the same adversities."""

import argparse
import json
import shutil
import sys
import textwrap
from itertools import zip_longest

from aws_lambda_powertools.shared.version import VERSION

from tests.idempotency.differential.adversities import ADVERSITIES
from tests.idempotency.differential.sides import Here, Powertools

COLUMNS = ("ADVERSITY", f"POWERTOOLS {VERSION}", "HERE")


def main() -> int:
    """Print the table; the exit status says whether this layer did what its tests assert."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.idempotency.differential",
        description="Puts AWS Lambda Powertools' idempotency utility and this layer through the same adversities, each "
        "with its defaults, on a DynamoDB in this process, and prints what each was seen to do.",
        epilog="example: python -m tests.idempotency.differential --only stale",
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="only adversities whose name contains TEXT")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, for machines")
    arguments = parser.parse_args()

    chosen = [adversity for adversity in ADVERSITIES if arguments.only in adversity.name]
    if not chosen:
        parser.error(f"no adversity is called {arguments.only!r}")
    rows = [(adversity.name, adversity.observe(Powertools), adversity.observe(Here)) for adversity in chosen]
    wrong = {adversity.name for adversity, row in zip(chosen, rows, strict=True) if row[2] != adversity.here}
    if arguments.json:
        keys = "adversity", "powertools", "here"
        print(json.dumps([dict(zip(keys, row, strict=True)) | {"as_asserted": row[0] not in wrong} for row in rows]))
    else:
        width = min(max(shutil.get_terminal_size((150, 24)).columns, 90), 150) // 3 - 2
        print("\n".join(_lines(COLUMNS, width)), "─" * (3 * width + 4), sep="\n")
        for name, theirs, here in rows:
            note = "  ◀ the tests assert something else" if name in wrong else ""
            print("\n".join(_lines((name, theirs, here + note), width)), end="\n\n")
    return 1 if wrong else 0


def _lines(texts: tuple[str, ...], width: int) -> list[str]:
    """Lay texts out in columns."""
    cells = zip_longest(*(textwrap.wrap(text, width) for text in texts), fillvalue="")
    return ["  ".join(cell.ljust(width) for cell in line).rstrip() for line in cells]


if __name__ == "__main__":
    sys.exit(main())
