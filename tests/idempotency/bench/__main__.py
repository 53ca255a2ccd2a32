"""`python -m tests.idempotency.bench`: print what this layer costs, beside Powertools in the same run."""

import argparse
import json
import platform

import botocore
from aws_lambda_powertools.shared.version import VERSION

from local.options import positive
from tests.idempotency.bench.measures import Row, own_cpu, round_trips, start_up


def main() -> None:
    """Measure, and print the numbers."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.idempotency.bench",
        description="Measures this layer and AWS Lambda Powertools' idempotency utility in turn, in one run, so that "
        "the ratio is meaningful on any machine. Nothing leaves this machine. Round trips are counted on a DynamoDB in "
        "this process; CPU time is measured over a stub of botocore's client. Both sides handle the same event of this "
        "project's contract, by the same JMESPath key, and compare payloads; caches are off except for warm "
        "duplicates. Import and construction are counted beyond a botocore client; Powertools also brings boto3. Times "
        "are medians of CPU time.",
        epilog="example: python -m tests.idempotency.bench --repetitions 60.",
    )
    parser.add_argument("--repetitions", type=positive, default=25, metavar="N", help="turns of each side (25)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON, for machines")
    arguments = parser.parse_args()

    rows = [row for measure in (round_trips, own_cpu, start_up) for row in measure(arguments.repetitions)]
    report = {
        "powertools": VERSION,
        "botocore": botocore.__version__,
        "python": platform.python_version(),
        "repetitions": arguments.repetitions,
        "rows": [{**row._asdict(), "ratio": row.ratio, "met": row.met} for row in rows],
    }
    print(json.dumps(report, indent=2) if arguments.json else table(rows))


def table(rows: list[Row]) -> str:
    """Lay the rows out, the ratio first."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}  {'RATIO':>6}  {'TARGET':>9}  {'HERE':>12}  {f'POWERTOOLS {VERSION}':>18}"]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f} x"
        missed = "" if row.met else "   ◀ missed"
        lines.append(
            f"{row.name:{width}}  {ratio:>6}  {_target(row):>9}  {_amount(row, row.here):>12}"
            f"  {_amount(row, row.powertools):>18}{missed}"
        )
    return "\n".join(lines)


def _target(row: Row) -> str:
    if row.most is None:
        return ""
    return f"≤ {_amount(row, row.most)}" if row.absolute else f"≤ {row.most} x"


def _amount(row: Row, amount: float | None) -> str:
    if amount is None:
        return "-"
    return f"{amount:.0f} {row.unit}".rstrip() if amount == int(amount) else f"{amount:.1f} {row.unit}"


if __name__ == "__main__":
    main()
