"""`make bench`: print what this layer costs, beside Powertools in the same run."""

import argparse

from aws_lambda_powertools.shared.version import VERSION

from local.command import positive
from tests.idempotency.bench.measures import Row, own_cpu, start_up, whole


def main() -> None:
    """Measure, and print the numbers."""
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=…",
        description="Measures this layer and AWS Lambda Powertools' idempotency utility in turn, in one run, so that "
        "the ratio is meaningful on any machine. Nothing leaves this machine. Both sides handle the same event of this "
        "project's contract, by the same JMESPath key, compare payloads and cache nothing. The first rows measure "
        "whole processes over HTTP, each side with its own way to DynamoDB: Powertools as documented, and with one "
        "tuned client. In the others a stub of botocore's client answers at once, and import and construction are "
        "counted beyond it. Times are medians of CPU time.",
        epilog="example: make bench ARGS='--repetitions 60'",
    )
    parser.add_argument("--repetitions", type=positive, default=25, metavar="N", help="turns of each side (25)")
    arguments = parser.parse_args()
    repetitions = arguments.repetitions
    print(table([*whole(max(3, repetitions // 5)), *own_cpu(repetitions), *start_up(repetitions)]))


def table(rows: list[Row]) -> str:
    """Lay the rows out, the ratio first."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}  {'RATIO':>6}  {'TARGET':>8}  {'HERE':>10}  {f'POWERTOOLS {VERSION}':>18}"]
    for row in rows:
        target = "" if row.most is None else f"≤ {row.most} x"
        here, theirs = (f"{amount:.1f} {row.unit:3}" for amount in (row.here, row.powertools))
        missed = "" if row.met else "   ◀ missed"
        lines.append(f"{row.name:{width}}  {row.ratio:4.2f} x  {target:>8}  {here:>10}  {theirs:>18}{missed}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
