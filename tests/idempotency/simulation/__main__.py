"""Run the layer under simulated transports and faults; show each broken promise."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.idempotency.simulation import plan as plans
from tests.idempotency.simulation.engine import Line
from tests.idempotency.simulation.run import Report, run

EPILOG = """
Each seed is one run: messages, a transport with AWS's documented rules, a policy, and faults: crashes, lost and late
answers, throttling, refusals, clocks that jump, sandboxes that freeze. The consumer, its runner and its store are the
real ones. Time is virtual, and one thread runs everything.

After each run an operator repairs everything, releases what is quarantined and delivers it again. The promises: nothing
is lost; nothing takes effect twice; no healthy message is given up; each dead letter has its true reason; each key is
free in the end; work is bounded.

A seed that breaks a promise is shrunk to the fewest messages, faults and features that still break it, and printed as a
timeline. The same seed is the same run, in every process. The exit status is 0 only if no promise was broken.

examples:
  make simulate ARGS="--seeds 1000"                a thousand runs: about a minute
  make simulate ARGS="--seed 17 --timeline"        one run again, and its timeline
  make simulate ARGS="--world kinesis --seeds 99"  runs of this world only
  make simulate ARGS="--plan FILE"                 the run of a plan as it was printed, or as you have changed it
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit status."""
    worlds = "\n".join(f"  {name:10}{about}" for name, about in plans.WORLDS.items())
    parser = argparse.ArgumentParser(
        prog="make simulate ARGS=…",
        description="Deterministic simulation of the idempotency layer under its transports.",
        epilog=f"{EPILOG}\nworlds:\n{worlds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many runs (100)")
    parser.add_argument("--seed", type=int, help="only this run")
    parser.add_argument("--world", choices=plans.WORLDS, metavar="WORLD", help="have every run happen in this world")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="run the plan in this file")
    parser.add_argument("--timeline", action="store_true", help="print the timeline of each run")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise, and do not shrink it")
    options = parser.parse_args(arguments)

    seeds = range(options.seeds) if options.seed is None else [options.seed]
    drawn: Iterable[plans.Plan] = (plans.draw(seed, options.world) for seed in seeds)
    if options.plan is not None:
        drawn = [eval(options.plan.read_text(), vars(plans))]  # noqa: S307 - the caller's own file
    totals: Counter[str] = Counter()
    hours, runs, failed, began = 0.0, 0, 0, time.monotonic()
    for plan in drawn:
        report = run(plan)
        totals.update(report.counts)
        hours, runs, failed = hours + report.hours, runs + 1, failed + bool(report.broken)
        if report.broken:
            print(text_of(report if options.stop else shrink(report), options.world), flush=True)
            if options.stop:
                break
        elif options.timeline:
            print("\n".join(map(line_of, report.timeline)))
    seconds = time.monotonic() - began
    print(f"{runs:,} runs, {failed} broke a promise; {hours:,.0f} simulated hours in {seconds:.0f} s")
    print("\n".join(f"  {name:30}{totals[name]:12,}" for name in sorted(totals)))
    return 1 if failed else 0


def shrink(report: Report) -> Report:
    """Remove, bit by bit, what the first broken promise does not need."""
    for plan in plans.smaller(report.plan):
        less = run(plan)
        if less.broken and _words(less) == _words(report):
            return shrink(less)
    return report


def _words(report: Report) -> list[str]:
    """Return the words of the first broken promise, without its numbers and names."""
    return [word for word in report.broken[0].what.split(":")[0].split() if word.isalpha()]


def text_of(report: Report, world: str | None) -> str:
    """Describe a run that broke a promise: which, and what happened to the messages concerned."""
    plan, concerned = report.plan, {broken.message for broken in report.broken}
    chosen = "" if world is None else f" --world {world}"
    return "\n".join(
        (
            f"\nBROKEN  seed {plan.seed}, world {plan.world}, work {plan.work}",
            *(f"  message {broken.message}: {broken.what}" for broken in report.broken),
            *(f"  {part}" for part in (*plan.messages, *plan.faults)),
            *(line_of(line) for line in report.timeline if None in concerned or line.message in {None, *concerned}),
            f"plan: {plan!r}",
            f'again: make simulate ARGS="--seed {plan.seed}{chosen}", or --plan with a file that holds the plan',
        )
    )


def line_of(line: Line) -> str:
    """Return one line of the timeline."""
    number = "" if line.message is None else f"order-{line.message}"
    return f"{line.at_ms / 1000:12.3f} s  {line.who:11} {number:9} {line.text:.150}"


if __name__ == "__main__":
    sys.exit(main())
