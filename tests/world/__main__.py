"""Live the whole application in virtual time, wired from its own template; show broken promises.

Each seed is one story: rides, a fleet, a gateway, and what goes wrong. Every function runs by its
`make_handler`, and an operator with the functions of `./carride`. AWS's services and the gateway
are simulated, with the freedoms that they have. A *calm* story has no fault, a *light* one few for
each event, and in a *heavy* one faults last for hours.

In the end each fact took effect once, each ride was paid as its last price says, nothing is held,
reserved or open, and the audit is balanced. In calm and light stories nothing needs an operator,
and each ride goes as it was meant.

With --sabotage, a saboteur plants one wrong thing that no honest history could produce: each kind
in turn, or the one that is named, when a story is over or while it is lived. The audit has to name
it, and to say nothing of a story that has no place for it. Without --seed or --tier, a quarter as
many stories as others are sabotaged.

Then the shop is lived, on the same engine: the layer alone, with handlers that misbehave (--shop:
only that). The exit status is 0 only if no promise was broken.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.world.setting import prepare
from tests.world.shop import telling as shop
from tests.world.story import Tier, tell

if TYPE_CHECKING:
    from tests.world.run import Report
    from tests.world.sabotage.telling import Sabotaged

_PROCESSES: Final = 2
_AT_ONCE: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if "--shop" in given:
        return shop.main([each for each in given if each != "--shop"])
    options = _parser().parse_args(given)
    if options.sabotage is not None:
        return _sabotaged(options, options.seeds)
    status = _stories(options)
    if options.seed is None and options.tier is None:
        print("\nThe audit, with a saboteur:", flush=True)
        options.sabotage = ""
        status = max(status, _sabotaged(options, max(1, options.seeds // 4)))
        print("\nThe shop:", flush=True)
        status = max(status, shop.main(["--seeds", str(options.seeds)]))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make simulate ARGS=…",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many runs of each (100)")
    parser.add_argument("--seed", type=int, help="only this story")
    parser.add_argument("--tier", choices=[*Tier], help="have every story in this tier")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="tell each story line by line, a broken one cut down to what breaks it",
    )
    parser.add_argument(
        "--shop",
        action="store_true",
        help="only the shop: --shop --help tells what it takes besides",
    )
    parser.add_argument(
        "--sabotage",
        nargs="?",
        const="",
        metavar="KIND",
        help="plant wrong things, and print how often the audit named each kind",
    )
    parser.add_argument("--json", action="store_true", help="with --sabotage: the table as JSON")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise")
    return parser


def _stories(options: argparse.Namespace) -> int:
    totals: Counter[str] = Counter()
    met: Counter[str] = Counter()
    hours = 0.0
    runs = 0
    failed = 0
    began = time.monotonic()
    for report in _reports(options):
        totals.update(report.counts)
        met.update(report.counts.keys())
        hours += report.hours
        runs += 1
        failed += bool(report.broken)
        if report.broken or options.explain:
            print(text_of(report, explains=options.explain), flush=True)
        if report.broken and options.stop:
            break
    seconds = time.monotonic() - began
    print(
        f"{runs:,} stories, {failed} broke a promise; "
        f"{hours:,.0f} simulated hours in {seconds:.0f} s"
    )
    for name in sorted(totals):
        print(f"  {name:60}{totals[name]:12,}  in {met[name] / runs:4.0%} of the stories")
    return 1 if failed else 0


def _reports(options: argparse.Namespace) -> Iterator["Report"]:
    prepare()  # here too: what the processes return is read with the functions' modules
    tier = None if options.tier is None else Tier(options.tier)
    if options.seed is not None:
        yield live(tier, options.seed)
        return
    with ProcessPoolExecutor(_PROCESSES) as processes:
        seeds = range(options.seeds)
        yield from processes.map(partial(live, tier), seeds, chunksize=_AT_ONCE)


def _sabotaged(options: argparse.Namespace, stories: int) -> int:
    """Have stories sabotaged; return the exit status."""
    prepare()
    from tests.world.sabotage import telling  # noqa: PLC0415 - the functions' modules need the environment

    kind = options.sabotage
    if kind and kind not in telling.NAMES:
        listed = "\n  ".join(telling.NAMES)
        print(f"there is no kind of sabotage {kind!r}. The kinds:\n  {listed}", file=sys.stderr)
        return 2
    one = partial(plant, options.tier and Tier(options.tier), kind, keeps=options.explain)
    told = partial(telling.tabulated, as_json=options.json, explains=options.explain)
    if options.seed is not None:
        return told([one(options.seed)], stories=1)
    with ProcessPoolExecutor(_PROCESSES) as processes:
        found = processes.map(one, range(stories), chunksize=_AT_ONCE)
        return told(found, stories=stories)


def plant(tier: Tier | None, kind: str, seed: int, *, keeps: bool) -> "Sabotaged":
    """Have the story of a seed sabotaged. Its timeline is left out unless it ``keeps`` that."""
    prepare()
    from tests.world.sabotage.telling import sabotage  # noqa: PLC0415 - as above

    found = sabotage(seed, kind, tier)
    return found if keeps else found._replace(timeline=())


def live(tier: Tier | None, seed: int) -> "Report":
    """Live the story of a seed."""
    prepare()
    from tests.world.run import run  # noqa: PLC0415 - the functions' modules need the environment

    return run(tell(seed, tier))


def cut_down(report: "Report") -> tuple["Report", str]:
    """Return a story's smallest form that breaks the same promise, and how it was found."""
    from tests.world.shrinking import shrink  # noqa: PLC0415 - as above

    before = len(report.used)
    smallest, runs = shrink(report)
    story = smallest.story
    return smallest, (
        f"  cut down in {runs} runs to {len(story.lives)} of {len(report.story.lives)} rides, "
        f"{len(story.windows)} of {len(report.story.windows)} lasting faults, "
        f"{len(smallest.used)} of {before} single ones"
    )


def text_of(report: "Report", *, explains: bool) -> str:
    """Describe a story: what was broken, what it consists of, and its timeline if asked for."""
    story = report.story
    lines = [f"\n{'BROKEN' if report.broken else 'sound'}  seed {story.seed}, {story.tier}"]
    lines += [f"  {each}" for each in report.broken]
    if explains and report.broken:
        report, how = cut_down(report)
        story = report.story
        lines += [how, *(f"  {each}" for each in report.broken[:1])]
        lines += [f"  {name}" for name in report.used]
    if explains:
        lines += [f"  {life}" for life in story.lives]
        lines += [f"  {window}" for window in story.windows]
        lines += report.timeline
    command = f"--seed {story.seed} --tier {story.tier} --explain"
    lines.append(f'again: make simulate ARGS="{command}"')
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
