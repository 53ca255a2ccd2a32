"""`make compare`: print what Powertools and this layer do in the same adversities."""

import argparse
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
        prog="make compare ARGS=…",
        description="Puts AWS Lambda Powertools' idempotency utility and this layer through the same adversities, each "
        "with its defaults, on a DynamoDB in this process, and prints what each was seen to do.",
        epilog="example: make compare ARGS='--only stale'",
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="only adversities whose name contains TEXT")
    arguments = parser.parse_args()

    chosen = [adversity for adversity in ADVERSITIES if arguments.only in adversity.name]
    if not chosen:
        parser.error(f"no adversity is called {arguments.only!r}")
    rows = [(adversity.name, adversity.observe(Powertools), adversity.observe(Here)) for adversity in chosen]
    wrong = {adversity.name for adversity, row in zip(chosen, rows, strict=True) if row[2] != adversity.here}
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
