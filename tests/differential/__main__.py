"""`python -m tests.differential`: print what Powertools and this layer do in the same adversities."""

import argparse
import json
import shutil
import sys
import textwrap
from typing import Final, NamedTuple

from aws_lambda_powertools.shared.version import VERSION

from tests.differential.adversities import ADVERSITIES, Adversity
from tests.differential.sides import Here, Powertools, Side
from tests.differential.world import world

_NARROWEST: Final = 90
_WIDEST: Final = 150


class Row(NamedTuple):
    """What was seen in one adversity."""

    adversity: str
    powertools: str
    here: str
    as_asserted: bool


def main() -> int:
    """Print the table; the exit status says whether this layer did what its tests assert."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential",
        description="Puts AWS Lambda Powertools' idempotency utility and this layer through the same adversities, each "
        "with its defaults, on a DynamoDB in this process, and prints what each was seen to do.",
        epilog="example: python -m tests.differential --only stale",
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="only adversities whose name contains TEXT")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, for machines")
    arguments = parser.parse_args()

    chosen = [adversity for adversity in ADVERSITIES if arguments.only in adversity.name]
    if not chosen:
        parser.error(f"no adversity is called {arguments.only!r}")
    rows = []
    for adversity in chosen:
        here = seen(adversity, Here())
        rows.append(Row(adversity.name, seen(adversity, Powertools()), here, here == adversity.here))

    if arguments.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        print(table(rows, width=shutil.get_terminal_size((_WIDEST, 24)).columns))
    return 0 if all(row.as_asserted for row in rows) else 1


def seen(adversity: Adversity, side: Side) -> str:
    """Put one side through an adversity, in a world of its own."""
    with world() as new:
        return adversity.observe(new, side)


def table(rows: list[Row], width: int) -> str:
    """Lay the rows out in columns."""
    titles = ["ADVERSITY", f"POWERTOOLS {VERSION}", "HERE"]
    column = min(max(width, _NARROWEST), _WIDEST) // len(titles) - 2
    lines = [_line(tuple(titles), column), "─" * (len(titles) * (column + 2) - 2)]
    for row in rows:
        here = row.here if row.as_asserted else f"{row.here}  ◀ the tests assert something else"
        cells = [textwrap.wrap(text, column) for text in (row.adversity, row.powertools, here)]
        height = max(map(len, cells))
        lines += [
            _line(tuple(cell[number] if number < len(cell) else "" for cell in cells), column)
            for number in range(height)
        ]
        lines.append("")
    same = sum(row.powertools == row.here for row in rows)
    lines.append(f"{len(rows)} adversities: {same} with the same outcome, {len(rows) - same} with another one")
    return "\n".join(lines)


def _line(cells: tuple[str, ...], column: int) -> str:
    return "  ".join(cell.ljust(column) for cell in cells).rstrip()


if __name__ == "__main__":
    sys.exit(main())
