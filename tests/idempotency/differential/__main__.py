"""`make compare`: print what Powertools, durable functions and this layer do in the same adversities."""

import argparse
import shutil
import sys
from collections.abc import Iterable
from operator import itemgetter
from statistics import median
from typing import Any

from aws_lambda_powertools.shared.version import VERSION
from rich import box
from rich.console import Console
from rich.table import Table

from tests.idempotency.differential import durable
from tests.idempotency.differential.adversities import ADVERSITIES
from tests.idempotency.differential.durable import DOCUMENTED, WITH
from tests.idempotency.differential.sides import Here, Powertools

type Row = tuple[str, str, str, str]
"""An adversity, what each side was seen to do, and what this layer should do."""


def main() -> int:
    """Print the tables; the exit status says whether this layer did what its tests assert."""
    parser = argparse.ArgumentParser(
        prog="make compare ARGS=…",
        description="Puts AWS Lambda Powertools' idempotency utility, AWS's durable functions and this layer through "
        "the same adversities, each with its defaults, on a DynamoDB in this process and on the durable functions' own "
        "local runner, and prints what each was seen to do. At the end: costs and cold start beside durable functions.",
        epilog="example: make compare ARGS='--only stale'",
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="only adversities whose name contains TEXT")
    only = parser.parse_args().only

    tables: list[tuple[tuple[str, str], list[Row]]] = [
        ((f"POWERTOOLS {VERSION}", "HERE"), _rows(only, ADVERSITIES, Powertools, Here)),
        ((DOCUMENTED, WITH), _rows(only, durable.ADVERSITIES, DOCUMENTED, WITH)),
    ]
    if not any(rows for _, rows in tables):
        parser.error(f"no adversity is called {only!r}")
    console = Console(width=max(90, min(150, shutil.get_terminal_size((150, 24)).columns)))
    for columns, rows in filter(itemgetter(1), tables):
        table = Table("ADVERSITY", *columns, box=box.HORIZONTALS, show_lines=True)
        for name, theirs, here, expected in rows:
            table.add_row(name, theirs, here if here == expected else f"{here}  ◀ the tests assert something else")
        console.print(table, markup=False)
    if not only:
        print("A MILLION EVENTS, in dollars of us-east-1, without duration and data")
        for side in (DOCUMENTED, WITH, durable.ALONE):
            print(f"{durable.dollars(side):8.2f}  {side}")
        starts = [[durable.cold_start(side) for side in (DOCUMENTED, durable.ALONE)] for _ in range(9)]
        executions, consumers = (
            [median(amounts) for amounts in zip(*side, strict=True)] for side in zip(*starts, strict=True)
        )
        print(f"\nCOLD START of a handler and its AWS client: {durable.ALONE} beside {DOCUMENTED}")
        for amount, beside, unit in zip(consumers, executions, ("ms of CPU", "MiB of memory"), strict=True):
            print(f"{amount / beside:8.2f}  {amount:.0f} beside {beside:.0f} {unit}")
    return int(any(here != expected for _, rows in tables for *_, here, expected in rows))


def _rows(text: str, adversities: Iterable[Any], theirs: object, here: object) -> list[Row]:
    """Put both sides through the adversities whose name contains a text."""
    return [
        (each.name, each.observe(theirs), each.observe(here), each.here) for each in adversities if text in each.name
    ]


if __name__ == "__main__":
    sys.exit(main())
