"""`make compare`: print what Powertools, a lock in Redis and this layer do in trouble."""

import argparse
import shutil
import sys
from operator import itemgetter
from typing import Any

from aws_lambda_powertools.shared.version import VERSION
from rich import box
from rich.console import Console
from rich.table import Table

from tests.differential import locks
from tests.differential.adversities import ADVERSITIES
from tests.differential.sides import Here, Powertools


def main() -> int:
    """Print the tables; the exit status says whether this layer did what its tests assert."""
    parser = argparse.ArgumentParser(
        prog="make compare ARGS=…",
        description="Puts AWS Lambda Powertools' idempotency utility, a lock in Redis and this "
        "layer through the same adversities, each with its defaults, on a DynamoDB and a Valkey in "
        "this process, and prints what each was seen to do.",
        epilog="example: make compare ARGS='--only stale'",
    )
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="only adversities whose name contains TEXT"
    )
    only = parser.parse_args().only

    compared: tuple[tuple[Any, Any, Any], ...] = (
        ((f"POWERTOOLS {VERSION}", "HERE"), ADVERSITIES, (Powertools, Here)),
        ((locks.LOCK, locks.HERE), locks.ADVERSITIES, (locks.LOCK, locks.HERE)),
    )
    chosen = [
        (columns, [each for each in rows if only in each.name], sides)
        for columns, rows, sides in compared
    ]
    if not any(rows for _, rows, _ in chosen):
        parser.error(f"no adversity is called {only!r}")
    console = Console(width=max(90, min(150, shutil.get_terminal_size((150, 24)).columns)))
    differs = False
    for columns, rows, sides in filter(itemgetter(1), chosen):
        table = Table("ADVERSITY", *columns, box=box.HORIZONTALS, show_lines=True)
        for each in rows:
            theirs, here = map(each.observe, sides)
            differs |= here != each.here
            table.add_row(
                each.name,
                theirs,
                here if here == each.here else f"{here}  ◀ the tests assert something else",
            )
        console.print(table, markup=False)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
