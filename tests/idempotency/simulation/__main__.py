"""Run the layer under simulated transports and faults; show each broken promise."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.idempotency.simulation import plan as plans
from tests.idempotency.simulation.engine import Line
from tests.idempotency.simulation.run import Report, run

EPILOG = """
Each seed is one run: messages, a transport with AWS's documented rules, a policy, and faults: crashes, lost and late
answers, throttling, refusals, clocks that differ. The consumer, its runner and its store are the
real ones. Time is virtual, and one thread runs everything.

After each run an operator repairs everything, releases what is quarantined and delivers it again. The promises: nothing
is lost; nothing takes effect twice; no healthy message is given up; each dead letter has its true reason; each key is
free in the end; work is bounded.

A seed that breaks a promise is printed as a timeline of the messages concerned. The same seed is the same run, in every
process. The exit status is 0 only if no promise was broken.

examples:
  make simulate ARGS="--seeds 1000"                a thousand runs: about a minute
  make simulate ARGS="--seed 17 --timeline"        one run again, and its timeline
  make simulate ARGS="--world rule --seeds 99"     runs of this world only
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
    parser.add_argument("--timeline", action="store_true", help="print the timeline of each run")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise")
    options = parser.parse_args(arguments)

    seeds = range(options.seeds) if options.seed is None else [options.seed]
    totals: Counter[str] = Counter()
    hours, runs, failed, began = 0.0, 0, 0, time.monotonic()
    for seed in seeds:
        report = run(plans.draw(seed, options.world))
        totals.update(report.counts)
        hours, runs, failed = hours + report.hours, runs + 1, failed + bool(report.broken)
        if report.broken:
            print(text_of(report, options.world), flush=True)
            if options.stop:
                break
        elif options.timeline:
            print("\n".join(map(line_of, report.timeline)))
    seconds = time.monotonic() - began
    print(f"{runs:,} runs, {failed} broke a promise; {hours:,.0f} simulated hours in {seconds:.0f} s")
    print("\n".join(f"  {name:30}{totals[name]:12,}" for name in sorted(totals)))
    return 1 if failed else 0


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
            f'again: make simulate ARGS="--seed {plan.seed}{chosen}"',
        )
    )


def line_of(line: Line) -> str:
    number = "" if line.message is None else f"order-{line.message}"
    return f"{line.at_ms / 1000:12.3f} s  {line.who:11} {number:9} {line.text:.150}"


if __name__ == "__main__":
    sys.exit(main())
