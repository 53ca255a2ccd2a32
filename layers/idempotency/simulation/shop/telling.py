"""Live the shop: a consumer of the layer, under unusual handlers and every kind of source.

Each seed is one run: messages, a source with AWS's documented rules, a policy, and faults: crashes,
lost and late answers, throttling, refusals, clocks that differ. The consumer, its runner and its
store are the real ones. Time is virtual, on the engine of the whole application.

After each run an operator repairs everything, releases what is quarantined and delivers it again.
The promises: nothing is lost; nothing takes effect twice; no healthy message is given up; each dead
letter has its true reason; each key is free in the end; work is bounded.

A seed that breaks a promise is told as a timeline of the messages concerned. The same seed is the
same run, in every process. The exit status is 0 only if no promise was broken.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from shop.network import number_in
from shop.plan import SOURCES, draw
from shop.run import Report, run

_COMMAND: Final = "python -m shop"


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; return the exit status."""
    options = _parser().parse_args(arguments)
    totals: Counter[str] = Counter()
    hours = 0.0
    runs = 0
    failed = 0
    began = time.monotonic()
    seeds: Sequence[int] = range(options.first, options.first + options.seeds)
    for seed in seeds if options.seed is None else [options.seed]:
        report = run(draw(seed, options.source))
        totals.update(report.counts)
        hours = hours + report.hours
        runs = runs + 1
        failed = failed + bool(report.broken)
        if report.broken:
            print(
                text_of(report, "" if options.source is None else f" --source {options.source}"),
                flush=True,
            )
            if options.stop:
                break
        elif options.explain:
            print("\n".join(report.timeline))
    seconds = time.monotonic() - began
    print(
        f"{runs:,} runs, {failed} broke a promise; {hours:,.0f} simulated hours in {seconds:.0f} s"
    )
    print("\n".join(f"  {name:30}{totals[name]:12,}" for name in sorted(totals)))
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    sources = (f"  {name:10}{about}" for name, about in SOURCES.items())
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description=__doc__,
        epilog="\n".join(["sources:", *sources]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many runs (100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="only this run")
    parser.add_argument(
        "--source", choices=SOURCES, metavar="SOURCE", help="have every run fed by this source"
    )
    parser.add_argument("--explain", action="store_true", help="tell each run line by line")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise")
    return parser


def text_of(report: Report, options: str) -> str:
    """Describe a run that broke a promise: which, and what happened to the messages concerned."""
    plan = report.story
    concerned = {number for number, _ in report.broken}
    return "\n".join(
        (
            f"\nBROKEN  seed {plan.seed}, source {plan.source}, work {plan.work}",
            *(f"  message {number}: {what}" for number, what in report.broken),
            *(f"  {part}" for part in (*plan.messages, *plan.faults)),
            *(
                line
                for line in report.timeline
                if None in concerned or number_in(line) in {None, *concerned}
            ),
            f"plan: {plan!r}",
            f"again: {_COMMAND} --seed {plan.seed}{options} --explain",
        )
    )
