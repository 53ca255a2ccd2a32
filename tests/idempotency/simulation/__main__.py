"""Run the layer under simulated transports and faults; show each broken promise.

Each seed is one run: messages, a transport with AWS's documented rules, a policy, and faults:
crashes, lost and late answers, throttling, refusals, clocks that differ. The consumer, its runner
and its store are the real ones. Time is virtual, and one thread runs everything.

After each run an operator repairs everything, releases what is quarantined and delivers it again.
The promises: nothing is lost; nothing takes effect twice; no healthy message is given up; each dead
letter has its true reason; each key is free in the end; work is bounded.

A seed that breaks a promise is printed as a timeline of the messages concerned. The same seed is
the same run, in every process. The exit status is 0 only if no promise was broken.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.idempotency.simulation import plan as plans
from tests.idempotency.simulation.network import number_in
from tests.idempotency.simulation.run import Report, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="make simulate ARGS=…",
        description=__doc__,
        epilog="worlds:\n"
        + "\n".join(f"  {name:10}{about}" for name, about in plans.WORLDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds", type=int, default=100, help="how many runs (100); a thousand take a minute"
    )
    parser.add_argument("--seed", type=int, help="only this run")
    parser.add_argument(
        "--world", choices=plans.WORLDS, metavar="WORLD", help="have every run happen in this world"
    )
    parser.add_argument("--timeline", action="store_true", help="print the timeline of each run")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise")
    options = parser.parse_args(arguments)

    totals: Counter[str] = Counter()
    hours = 0.0
    runs = 0
    failed = 0
    began = time.monotonic()
    for seed in range(options.seeds) if options.seed is None else [options.seed]:
        report = run(plans.draw(seed, options.world))
        totals.update(report.counts)
        hours = hours + report.hours
        runs = runs + 1
        failed = failed + bool(report.broken)
        if report.broken:
            print(
                text_of(report, "" if options.world is None else f" --world {options.world}"),
                flush=True,
            )
            if options.stop:
                break
        elif options.timeline:
            print("\n".join(report.timeline))
    seconds = time.monotonic() - began
    print(
        f"{runs:,} runs, {failed} broke a promise; {hours:,.0f} simulated hours in {seconds:.0f} s"
    )
    print("\n".join(f"  {name:30}{totals[name]:12,}" for name in sorted(totals)))
    return 1 if failed else 0


def text_of(report: Report, options: str) -> str:
    """Describe a run that broke a promise: which, and what happened to the messages concerned."""
    plan = report.plan
    concerned = {number for number, _ in report.broken}
    return "\n".join(
        (
            f"\nBROKEN  seed {plan.seed}, world {plan.world}, work {plan.work}",
            *(f"  message {number}: {what}" for number, what in report.broken),
            *(f"  {part}" for part in (*plan.messages, *plan.faults)),
            *(
                line
                for line in report.timeline
                if None in concerned or number_in(line) in {None, *concerned}
            ),
            f"plan: {plan!r}",
            f'again: make simulate ARGS="--seed {plan.seed}{options}"',
        )
    )


if __name__ == "__main__":
    sys.exit(main())
