"""`python -m tests.idempotency.bench`: print what this layer costs, beside Powertools in the same run."""

import argparse
import json
import platform
import sys
from typing import Final

import botocore
from aws_lambda_powertools.shared.version import VERSION

from local.command import positive
from tests.idempotency.bench.measures import ROOT, Row, batches, http_cpu, own_cpu, round_trips, start_up

REPORT: Final = ROOT / ".bench/bench.json"


def main() -> int:
    """Measure, print, and keep the numbers."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.idempotency.bench",
        description="Measures this layer and AWS Lambda Powertools' idempotency utility by turns, in one run, so that "
        "the ratio means something on any machine. Nothing leaves this machine: AWS is a stub at the level that each "
        "row names. Own CPU: a DynamoDB client that answers at once. CPU with HTTP stubbed: botocore as it is, over "
        "canned answers. Both handle the same event of this project's contract, by the same JMESPath key, and compare "
        "payloads; caches are off but for warm duplicates. Import and construction: beyond a botocore client, and "
        "Powertools brings boto3. Times are medians of CPU time; only the batch is wall time, the least of its turns, "
        "since a busy machine adds to it.",
        epilog="example: python -m tests.idempotency.bench --repetitions 60. The numbers are kept in .bench/bench.json",
    )
    parser.add_argument("--repetitions", type=positive, default=25, metavar="N", help="turns of each side (25)")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is missed")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON, for machines")
    arguments = parser.parse_args()

    rows = round_trips()
    for measure in (own_cpu, http_cpu, start_up, batches):
        rows += measure(arguments.repetitions)
    report = {
        "powertools": VERSION,
        "botocore": botocore.__version__,
        "python": platform.python_version(),
        "repetitions": arguments.repetitions,
        "rows": [{**row._asdict(), "ratio": row.ratio, "met": row.met} for row in rows],
    }
    text = json.dumps(report, indent=2)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text + "\n", encoding="utf-8")
    print(text if arguments.json else table(rows))
    return 1 if arguments.strict and not all(row.met for row in rows) else 0


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
    sys.exit(main())
