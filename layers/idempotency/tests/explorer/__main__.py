"""Visit every state of the worlds, and print how a promise can be broken.

A state is one record, the requests under way to it, and what up to three deliveries of its key have
done so far. From each state every step is taken: a request takes place, is lost, or comes late; a
process goes on, crashes, or is taken for dead; a handler returns or raises; DynamoDB deletes; an
operator removes the record, and it is replayed or redriven; time passes. Sandboxes remember what
they have completed until they crash. The deliveries are the layer's own runner, stopped at each
request. The store is the layer's own conditions.

A broken promise is printed as a timeline. The exit status is 0 only if no promise was broken.

All worlds take half a minute; one with a fault more, `--scenario claims --faults 2`, takes
minutes.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.explorer.scenarios import SCENARIOS
from tests.explorer.world import explore


def main(arguments: Sequence[str] | None = None) -> int:
    """Search what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.explorer",
        description=__doc__,
        epilog="worlds:\n"
        + "\n".join(f"  {name:24}{scenario.about}" for name, scenario in SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scenario", nargs="+", choices=SCENARIOS, metavar="WORLD", help="only these worlds"
    )
    parser.add_argument("--faults", type=int, help="how many faults may happen (1)", default=1)
    options = parser.parse_args(arguments)

    kept = True
    print(f"{'world':24}{'states':>10}  search")
    for name in options.scenario or SCENARIOS:
        result = explore(replace(SCENARIOS[name], faults=options.faults))
        kept = kept and result.timeline is None
        print(
            f"{name:24}{len(result.visited):10,}  {'BROKEN' if result.timeline else 'complete'}",
            flush=True,
        )
        if result.timeline is not None:
            print(f"\n{result.timeline}\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
