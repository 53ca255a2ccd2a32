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
many stories as others are sabotaged. With --each as well, stories are lived until each kind was
planted so often.

Then the shop is lived, on the same engine: the layer alone, with handlers that misbehave
(`python -m shop`: only that). The exit status is 0 only if no promise was broken, and if 2,000
stories or more have used every freedom of docs/simulation.md.
"""

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TextIO

from shop import telling as shop
from tests.world.freedoms import FREEDOMS, rows
from tests.world.setting import prepare
from tests.world.story import Tier, tell

if TYPE_CHECKING:
    from tests.world.run import Report
    from tests.world.sabotage.telling import Sabotaged

_PROCESSES: Final = 2
_AT_ONCE: Final = 5
_ENOUGH: Final = 2_000
"""Stories of all tiers that use every freedom."""
_MOST_TRIES: Final = 20
"""How many stories may be lived to plant a kind of sabotage once."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    if options.freedoms:
        print("\n".join(rows()))
        return 0
    if options.sabotage is not None:
        return _sabotaged(options, options.seeds)
    status = _stories(options)
    if options.seed is None and options.tier is None and not options.json:
        print("\nThe audit, with a saboteur:", flush=True)
        options.sabotage = ""
        status = max(status, _sabotaged(options, max(1, options.seeds // 4)))
        print("\nThe shop:", flush=True)
        seeds = ["--seeds", str(options.seeds), "--first", str(options.first)]
        status = max(status, shop.main(seeds))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make simulate ARGS=…",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many runs of each (100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="only this story")
    parser.add_argument("--tier", choices=[*Tier], help="have every story in this tier")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="tell each story line by line, a broken one cut down to what breaks it",
    )
    parser.add_argument(
        "--sabotage",
        nargs="?",
        const="",
        metavar="KIND",
        help="plant wrong things, and print how often the audit named each kind",
    )
    parser.add_argument(
        "--each",
        type=int,
        metavar="TIMES",
        help="with --sabotage: live stories until each kind was planted so often",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print only the stories' counters, as JSON; with --sabotage: its table",
    )
    parser.add_argument("--freedoms", action="store_true", help="print the table of freedoms")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise")
    return parser


def _stories(options: argparse.Namespace) -> int:
    total = Total()
    began = time.monotonic()
    for report in _reports(options):
        total.add(report)
        is_told = report.broken or options.explain
        if is_told:
            print(text_of(report, explains=options.explain), file=_texts(options), flush=True)
        if report.broken and options.stop:
            break
    seconds = time.monotonic() - began
    print(total.as_json(seconds) if options.json else total.as_text(seconds))
    needs_all = total.stories >= _ENOUGH and options.tier is None
    return 1 if total.failed or (needs_all and total.unused) else 0


def _texts(options: argparse.Namespace) -> TextIO:
    """Return where stories are told: not between the braces of JSON."""
    return sys.stderr if options.json else sys.stdout


class Total:
    """What stories have in sum.

    Attributes:
        stories: how many there were.
        failed: how many of them broke a promise.
        hours: how long they lasted, in simulated time.
        counts: how often each freedom was used, each outcome observed.
        met: in how many stories.
    """

    def __init__(self) -> None:
        self.stories = 0
        self.failed = 0
        self.hours = 0.0
        self.counts: Counter[str] = Counter()
        self.met: Counter[str] = Counter()

    def add(self, report: "Report") -> None:
        self.stories += 1
        self.failed += bool(report.broken)
        self.hours += report.hours
        self.counts.update(report.counts)
        self.met.update(report.counts.keys())

    @property
    def unused(self) -> list[str]:
        """The freedoms that no story used."""
        return [name for name in FREEDOMS if not self.counts[name]]

    def as_text(self, seconds: float) -> str:
        first = (
            f"{self.stories:,} stories, {self.failed} broke a promise; "
            f"{self.hours:,.0f} simulated hours in {seconds:.0f} s"
        )
        others = sorted(self.counts.keys() - FREEDOMS.keys())
        used = [name for name in FREEDOMS if self.counts[name]]
        lines = [first, "Freedoms that were used:", *map(self._line, used)]
        if self.unused:
            lines.append(f"Freedoms that no story used: {', '.join(self.unused)}")
        lines += ["What else was counted:", *map(self._line, others)]
        return "\n".join(lines)

    def _line(self, name: str) -> str:
        share = self.met[name] / self.stories
        return f"  {name:60}{self.counts[name]:12,}  in {share:4.0%} of the stories"

    def as_json(self, seconds: float) -> str:
        """Return the counters: of each freedom, also of an unused one, and the others."""
        freedoms = {
            name: {**freedom._asdict(), "times": self.counts[name], "stories": self.met[name]}
            for name, freedom in FREEDOMS.items()
        }
        others = {name: self.counts[name] for name in sorted(self.counts.keys() - FREEDOMS.keys())}
        whole = {
            "stories": self.stories,
            "broken": self.failed,
            "hours": round(self.hours),
            "seconds": round(seconds),
            "freedoms": freedoms,
            "counts": others,
        }
        return json.dumps(whole, indent=1)


def _reports(options: argparse.Namespace) -> Iterator["Report"]:
    prepare()  # here too: what the processes return is read with the functions' modules
    tier = None if options.tier is None else Tier(options.tier)
    if options.seed is not None:
        yield live(tier, options.seed)
        return
    import tests.world.run  # noqa: F401, PLC0415 - once, for the processes that begin here

    gc.freeze()  # what is imported stays: the garbage collector need not look at it again
    with ProcessPoolExecutor(_PROCESSES) as processes:
        seeds = range(options.first, options.first + options.seeds)
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
    tier = options.tier and Tier(options.tier)
    one = partial(plant, tier, kind, keeps=options.explain)
    told = partial(telling.tabulated, as_json=options.json, explains=options.explain)
    if options.seed is not None:
        return told([one(options.seed)], stories=1)
    gc.freeze()  # as above
    with ProcessPoolExecutor(_PROCESSES) as processes:
        if options.each is not None:
            kinds = [kind] if kind else telling.NAMES
            often = partial(plant_often, tier, options.first, options.each, keeps=options.explain)
            lived = processes.map(often, kinds)
            return told(chain.from_iterable(lived), each=options.each)
        seeds = range(options.first, options.first + stories)
        found = processes.map(one, seeds, chunksize=_AT_ONCE)
        return told(found, stories=stories)


def plant(tier: Tier | None, kind: str, seed: int, *, keeps: bool) -> "Sabotaged":
    """Have the story of a seed sabotaged. Its timeline is left out unless it ``keeps`` that."""
    prepare()
    from tests.world.sabotage.telling import sabotage  # noqa: PLC0415 - as above

    found = sabotage(seed, kind, tier)
    return found if keeps else found._replace(timeline=())


def plant_often(
    tier: Tier | None, first: int, times: int, kind: str, *, keeps: bool
) -> list["Sabotaged"]:
    """Have stories from a seed on sabotaged until a kind was planted so many times."""
    lived: list[Sabotaged] = []
    planted = 0
    for seed in range(first, first + times * _MOST_TRIES):
        found = plant(tier, kind, seed, keeps=keeps)
        lived.append(found)
        planted += found.expected is not None
        if planted == times:
            break
    return lived


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
        lines += [f"  {act}" for act in story.acts]
        lines += [f"  {story.days} days later"] * bool(story.days)
        lines += report.timeline
    command = f"--seed {story.seed} --tier {story.tier} --explain"
    lines.append(f'again: make simulate ARGS="{command}"')
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
