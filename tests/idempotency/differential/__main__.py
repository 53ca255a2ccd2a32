"""`make compare`: print what Powertools, durable functions and this layer do in trouble."""

import argparse
import shutil
import sys
from operator import itemgetter
from statistics import median
from typing import Any

from aws_lambda_powertools.shared.version import VERSION
from rich import box
from rich.console import Console
from rich.table import Table

from tests.idempotency.differential import durable, locks
from tests.idempotency.differential.adversities import ADVERSITIES
from tests.idempotency.differential.durable import DOCUMENTED, WITH
from tests.idempotency.differential.sides import Here, Powertools


def main() -> int:
    """Print the tables; the exit status says whether this layer did what its tests assert."""
    parser = argparse.ArgumentParser(
        prog="make compare ARGS=…",
        description="Puts AWS Lambda Powertools' idempotency utility, AWS's durable functions, a "
        "lock in Redis and this layer through the same adversities, each with its defaults, on a "
        "DynamoDB and a Valkey in this process and on the durable functions' own local runner, and "
        "prints what each was seen to do. At the end: costs and cold start beside durable "
        "functions.",
        epilog="example: make compare ARGS='--only stale'",
    )
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="only adversities whose name contains TEXT"
    )
    only = parser.parse_args().only

    compared: tuple[tuple[Any, Any, Any], ...] = (
        ((f"POWERTOOLS {VERSION}", "HERE"), ADVERSITIES, (Powertools, Here)),
        ((DOCUMENTED, WITH), durable.ADVERSITIES, (DOCUMENTED, WITH)),
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
    if not only:
        print("A MILLION EVENTS, in dollars of us-east-1, without duration and data")
        for side in (DOCUMENTED, WITH, durable.ALONE):
            print(f"{durable.dollars(side):8.2f}  {side}")
        starts = [
            [durable.cold_start(side) for side in (DOCUMENTED, durable.ALONE)] for _ in range(9)
        ]
        executions, consumers = (
            [median(amounts) for amounts in zip(*side, strict=True)]
            for side in zip(*starts, strict=True)
        )
        print(f"\nCOLD START of a handler and its AWS client: {durable.ALONE} beside {DOCUMENTED}")
        for amount, beside, unit in zip(
            consumers, executions, ("ms of CPU", "MiB of memory"), strict=True
        ):
            print(f"{amount / beside:8.2f}  {amount:.0f} beside {beside:.0f} {unit}")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
