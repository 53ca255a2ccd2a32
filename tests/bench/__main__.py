"""`make bench`: print what the consumers cost, beside the same ones on Powertools."""

import argparse
import sys

from aws_lambda_powertools.shared.version import VERSION

from local.command import positive
from tests.bench import imports, loops
from tests.bench.measures import Row, consumers, write_units

RATIOS = 3
"""The sides that this project is compared with."""


def main() -> bool:
    """Measure, print the numbers, and return whether every target is met."""
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=…",
        description="Measures the consumers beside the same consumers on AWS Lambda Powertools' "
        "idempotency utility, in turn, in one run, so that the ratio is meaningful on any machine. "
        "Each is a process of its own with the packages that are deployed, and speaks HTTP to a "
        "DynamoDB on this machine. Powertools is used as documented, and with one client for "
        "everything that is set as the layer sets botocore's. The last side is the same functions "
        "bare: one conditional write, no protection. Times and memory are medians. "
        "Nothing leaves this machine. A missed target is an error.",
        epilog="example: make bench ARGS='--repetitions 15 --lenient'",
    )
    parser.add_argument(
        "--repetitions", type=positive, default=7, metavar="N", help="turns of each side (7)"
    )
    parser.add_argument("--lenient", action="store_true", help="succeed, whatever is missed")
    arguments = parser.parse_args()
    rows = [*consumers(arguments.repetitions), write_units()]
    print(table(rows))
    print("", *loops.lines(arguments.repetitions), imports.line(arguments.repetitions), sep="\n")
    return arguments.lenient or all(row.met for row in rows)


def table(rows: list[Row]) -> str:
    """Lay the rows out, the ratios first."""
    width = max(len(row.name) for row in rows)
    ratio_columns = "  {:>17}" * RATIOS
    form = (f"{{:{width}}}" + ratio_columns + "  {:>11}  {:>17}  {:>14}  {:>11}").format
    lines = [
        form(
            *("", "DOCUMENTED", "ONE CLIENT", "BARE"),
            *("HERE", f"POWERTOOLS {VERSION}", "ITS ONE CLIENT", "BARE"),
        )
    ]
    for row in rows:
        ratios = [
            f"{ratio:.2f} x{f' (≤ {most:.2f})' if most else '':9}" for ratio, most in row.ratios
        ]
        given = (row.here, row.powertools, row.shared, row.bare)
        amounts = [f"{amount:.1f} {row.unit:3}" for amount in given if amount is not None]
        empty = [""] * (RATIOS - len(ratios))
        lines.append(
            form(row.name, *ratios, *empty, *amounts, *empty) + ("" if row.met else "  ◀ missed")
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(not main())
