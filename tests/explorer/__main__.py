"""`python -m tests.explorer`: search the protocol's worlds to their end, and tell how any promise can be broken."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.explorer.scenarios import LARGER, SCENARIOS
from tests.explorer.search import Result, explore
from tests.explorer.world import Scenario

EPILOG = """
A state is one record, the requests that are under way to it, and what up to three deliveries of its key have done so
far. From each state every step is taken: a request takes place, is lost, or comes late; a process goes on, crashes, or
is taken for dead; a handler returns or raises; DynamoDB deletes; an operator releases; time passes. The deliveries are
the layer's own runner, stopped at each request; the store is the layer's own conditions.

The exit status is 0 only if every search was complete and no promise was broken.

examples:
  python -m tests.explorer                                 all worlds, within wide bounds: minutes
  python -m tests.explorer --quick                         the bounds of the test suite: seconds
  python -m tests.explorer --scenario claims --faults 3    one world, with one fault more
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Search what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.explorer",
        description="Drives the idempotency protocol through every interleaving of a few deliveries of one key.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="say what the worlds are")
    parser.add_argument("--scenario", action="append", default=[], metavar="NAME", help="only this world (repeatable)")
    parser.add_argument("--quick", action="store_true", help="the bounds of the test suite instead of the wide ones")
    parser.add_argument("--faults", type=int, help="how many faults may happen, instead of what the world says")
    parser.add_argument("--max-states", type=int, help="stop a search after about so many states (1 million: 300 MB)")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, for machines")
    options = parser.parse_args(arguments)

    if options.list:
        print("\n".join(f"{scenario.name:20}{scenario.about}" for scenario in SCENARIOS))
        return 0
    worlds = SCENARIOS if options.quick else LARGER
    unknown = set(options.scenario) - {scenario.name for scenario in worlds}
    if unknown:
        parser.error(f"there is no world {', '.join(sorted(unknown))}: see --list")
    chosen = [scenario for scenario in worlds if not options.scenario or scenario.name in options.scenario]
    if options.faults is not None:
        chosen = [replace(scenario, faults=options.faults) for scenario in chosen]
    results = _search(chosen, options.max_states, as_json=options.json)
    if options.json:
        found = [result._asdict() | {"outcomes": sorted(result.outcomes)} for result in results]
        print(json.dumps([row | {"story": row["story"] and str(row["story"])} for row in found]))
    return 0 if all(result.complete for result in results) else 1


def _search(scenarios: Sequence[Scenario], max_states: int | None, *, as_json: bool) -> list[Result]:
    results = []
    if not as_json:
        print(f"{'world':20}{'states':>12}{'steps':>12}{'depth':>7}{'seconds':>9}  search")
    for scenario in scenarios:
        result = explore(scenario, max_states=max_states, progress=_progress(scenario.name))
        results.append(result)
        if as_json:
            continue
        how = "BROKEN" if result.story else "complete" if result.complete else "capped"
        print(
            f"{result.scenario:20}{result.states:12,}{result.steps:12,}{result.depth:7}{result.seconds:9.1f}  {how}",
            flush=True,
        )
        if result.story is not None:
            print(f"\n{result.story}\n")
    if not as_json:
        print(f"{'all':20}{sum(result.states for result in results):12,}")
    return results


def _progress(name: str) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def progress(states: int, depth: int) -> None:
        sys.stderr.write(f"\r{name}: {states:,} states, {depth} steps away\033[K\r")
        sys.stderr.flush()

    return progress


if __name__ == "__main__":
    sys.exit(main())
