"""`make compare`: print what Powertools, durable functions and this layer do in the same adversities."""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable
from itertools import zip_longest

from aws_lambda_powertools.shared.version import VERSION

from tests.idempotency.bench.measures import start_up
from tests.idempotency.differential import durable
from tests.idempotency.differential.adversities import ADVERSITIES as ALL
from tests.idempotency.differential.adversities import Adversity
from tests.idempotency.differential.sides import Here, Powertools

type Table = tuple[tuple[str, ...], list[tuple[str, str, str, str]]]
"""A head, and rows: an adversity, what each side was seen to do, and what this layer should do."""

COLUMNS = ("ADVERSITY", f"POWERTOOLS {VERSION}", "HERE")


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

    tables: list[Table] = [
        (COLUMNS, [(each.name, each.observe(Powertools), each.observe(Here), each.here) for each in _named(only, ALL)]),
        (
            durable.COLUMNS,
            [
                (each.name, each.observe(ours=False), each.observe(ours=True), each.here)
                for each in _named(only, durable.ADVERSITIES)
            ],
        ),
    ]
    if not any(rows for _, rows in tables):
        parser.error(f"no adversity is called {only!r}")
    width = min(max(shutil.get_terminal_size((150, 24)).columns, 90), 150) // 3 - 2
    for columns, rows in tables:
        print("\n".join(_lines(columns, width)), "─" * (3 * width + 4), sep="\n")
        for name, theirs, here, expected in rows:
            note = "" if here == expected else "  ◀ the tests assert something else"
            print("\n".join(_lines((name, theirs, here + note), width)), end="\n\n")
    if not only:
        print("A MILLION EVENTS, in dollars of us-east-1 without duration and data")
        print("\n".join(f"{cost:8.2f}  {side}" for side, cost in durable.dollars().items()), end="\n\n")
        print(f"COLD START of this layer beside {durable.COLUMNS[1]}, without the AWS client")
        for row in start_up(5, peer="durable"):
            print(f"{row.ratio:7.2f}x  {row.name}: {row.here:.1f} beside {row.powertools:.1f} {row.unit}".rstrip())
    return int(any(here != expected for _, rows in tables for *_, here, expected in rows))


def _named[R: Adversity | durable.Adversity](text: str, rows: Iterable[R]) -> list[R]:
    return [each for each in rows if text in each.name]


def _lines(texts: tuple[str, ...], width: int) -> list[str]:
    """Lay texts out in columns."""
    cells = zip_longest(*(textwrap.wrap(text, width) for text in texts), fillvalue="")
    return ["  ".join(cell.ljust(width) for cell in line).rstrip() for line in cells]


if __name__ == "__main__":
    sys.exit(main())
