"""Stories in which a saboteur plants one wrong thing, and what the audit says of them.

The audit must name it, and raise no alarm where a story had nothing to plant it in.
"""

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from random import Random
from typing import Final, NamedTuple

from ops.audit import Report as Audit
from ops.sentences import says
from tests.world import judges
from tests.world.run import World
from tests.world.sabotage.hand import Expected, Hand
from tests.world.sabotage.kinds import AT_REST, IN_FLIGHT, KINDS
from tests.world.story import Story, Tier, tell
from tests.world.wiring import wiring
from virtual_time.scheduler import RestlessError

NAMES: Final = tuple(KINDS)
_HOUR_S: Final = 3600.0
_TICKS: Final = 12
_PROGRESS: Final = 100
_MOST_LINES: Final = 5


class Sabotaged(NamedTuple):
    """What became of a story with a saboteur."""

    story: Story
    kind: str
    expected: Expected | None
    """What the audit had to name; None if the story had nothing to plant the wrong thing in."""
    is_right: bool
    """Whether the audit named it; of an honest story, whether the audit is balanced."""
    said: Sequence[str]
    """What the audit named."""
    timeline: Sequence[str]


def kind_of(seed: int) -> str:
    """Return the kind of a seed's sabotage: each in turn."""
    return NAMES[seed % len(NAMES)]


def sabotage(
    seed: int, kind: str = "", tier: Tier | None = None, rides: int | None = None
) -> Sabotaged:
    """Live a seed's story with a saboteur.

    Kind, tier and number of rides are the seed's if they are not given. The reconciler looks around
    every hour, which changes little and takes a fifth of the time.
    """
    kind = kind or kind_of(seed)
    planting = KINDS[kind]
    # An operator would mend what is planted, and so would a replay or another region's replica.
    story = planting.suited(tell(seed, tier, rides)).plain()._replace(ticks=_TICKS)
    world = World(story, wiring())
    with world.cloud.living(), ExitStack() as taps:
        dice = Random(f"{seed}/{kind}")  # noqa: S311 - it has to be the same every time
        hand = Hand(world, dice, taps)
        if planting.when == IN_FLIGHT:
            planting.plant(hand)
        try:
            world.live()
            hand.between()
            if story.tier is Tier.HEAVY or hand.expected is not None:
                world.mend()  # so that only what nobody can mend is left
            if planting.when == AT_REST:
                planting.plant(hand)
            world.wait(_HOUR_S)
            # A gateway may refuse a ride for good; only what was planted is a wrong thing.
            honest = judges.unpaid(world, judges.Facts(world)) - {hand.about}
            said = list(named_by(judges.audited(world), honest))
        except RestlessError as error:
            said = [str(error)]
    is_right = not said if hand.expected is None else _is_named(hand.expected, said)
    return Sabotaged(story, kind, hand.expected, is_right, said, world.cloud.timeline)


def named_by(report: Audit, honest: Collection[str] = ()) -> Iterator[str]:
    """Yield everything that an audit names as wrong, a line each.

    Rides that nobody pays in an honest story are left out.
    """
    if not report.status:
        return
    yield from report.ledger.blind
    yield from (each.says for each in report.ledger.named())
    for ride, problems in report.saga.problems.items():
        for problem in problems:
            yield f"{ride}: {says(problem)}"
    for ride, overdue in report.saga.overdue.items():
        yield f"{ride}: overdue {says(overdue)}"
    for ride in report.saga.unpaid:
        if ride not in honest:
            yield f"{ride}: driven, not paid"
    for car in report.saga.unlisted_cars:
        yield f"{car}: outside of the index of free cars"


def _is_named(expected: Expected, said: Sequence[str]) -> bool:
    return any(expected.about in line and expected.says in line for line in said)


# ── The table ─────────────────────────────────────────────────────────────────────────────────────


class Table:
    """How often each kind was planted and named, and whether honest stories raised an alarm."""

    def __init__(self) -> None:
        self.stories = 0
        self.tried: set[str] = set()
        self.planted: Counter[str] = Counter()
        self.named: Counter[str] = Counter()
        self.false_alarms = 0

    def add(self, found: Sabotaged) -> None:
        self.stories += 1
        self.tried.add(found.kind)
        if found.expected is None:
            self.false_alarms += not found.is_right
            return
        self.planted[found.kind] += 1
        self.named[found.kind] += found.is_right

    @property
    def least_planted(self) -> int:
        """How often the rarest kind was planted, of those that were tried."""
        return min((self.planted[kind] for kind in self.tried), default=0)

    @property
    def is_right(self) -> bool:
        """Whether everything that was planted was named, and nothing else."""
        return self.named.total() == self.planted.total() and not self.false_alarms

    def to_json(self) -> dict[str, object]:
        kinds = {
            name: {
                "when": KINDS[name].when,
                "planted": self.planted[name],
                "named": self.named[name],
            }
            for name in NAMES
        }
        return {
            "stories": self.stories,
            "planted": self.planted.total(),
            "named": self.named.total(),
            "honest": self.stories - self.planted.total(),
            "falseAlarms": self.false_alarms,
            "kinds": kinds,
        }

    def lines(self) -> Iterator[str]:
        yield f"{'planted':48}{'when':12}{'stories':>8}{'named':>8}"
        for name in NAMES:
            yield f"{name:48}{KINDS[name].when:12}{self.planted[name]:8}{self.named[name]:8}"
        honest = self.stories - self.planted.total()
        yield (
            f"{self.stories:,} stories: {self.planted.total():,} with one of {len(NAMES)} wrong "
            f"things, {self.named.total():,} named; {honest:,} honest, "
            f"{self.false_alarms} false alarms"
        )


def tabulated(
    found: Iterable[Sabotaged],
    *,
    as_json: bool,
    explains: bool,
    stories: int | None = None,
    each: int = 0,
) -> int:
    """Print what the audit said of stories as they come, then the table; return the status.

    Args:
        found: what became of the stories.
        as_json: print the table as JSON.
        explains: print each story's timeline.
        stories: how many there are; None if nobody knows. Of one there is no table.
        each: how often each kind that occurs has to be planted.
    """
    table = Table()
    for one in found:
        table.add(one)
        if explains or not one.is_right:
            print("\n".join(_told(one, explains=explains)), file=sys.stderr, flush=True)
        if table.stories % _PROGRESS == 0 and table.stories != stories:
            total = "" if stories is None else f" of {stories:,}"
            print(f"{table.stories:,}{total} stories", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps(table.to_json()))
    elif stories != 1:
        print("\n".join(table.lines()))
    return 0 if table.is_right and table.least_planted >= each else 1


def _told(found: Sabotaged, *, explains: bool) -> Iterator[str]:
    story = found.story
    verdict = "named" if found.is_right else "BROKEN: not named"
    if found.expected is None:
        verdict = "nothing was planted" if found.is_right else "BROKEN: a false alarm"
    yield f"\n{verdict}  seed {story.seed}, {story.tier}, {found.kind}"
    if found.expected is not None:
        yield f"  to be named: {found.expected.about}: {found.expected.says}"
    yield from (f"  the audit says {line}" for line in found.said[:_MOST_LINES])
    if explains:
        yield from found.timeline
    yield f"again: make simulate ARGS=\"--sabotage '{found.kind}' --seed {story.seed} --explain\""
