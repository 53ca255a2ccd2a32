"""What one seed tells: the rides, the fleet, the gateway, and what goes wrong.

Three tiers. In *calm* nothing goes wrong but what AWS always may do: deliver twice, late, in any
order. In *light* each event meets at most two faults at each consumer. In *heavy* faults are
frequent, and some last for hours.
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from local.simulated_gateway import Troubles
from tests.upgrades.samples import RELEASES

_INHERITED: Final = 100
"""The number of the first life of an earlier release."""


class Tier(StrEnum):
    CALM = "calm"
    LIGHT = "light"
    HEAVY = "heavy"


class Step(NamedTuple):
    """What somebody asks of the API about a ride, so many seconds after the answer before."""

    action: str
    after_s: float
    price: int = 0
    """In cents; of a changed destination."""
    again: bool = False
    """Whether the request is sent again after its answer, under the same key."""


class Life(NamedTuple):
    """A ride as its customer and the staff mean it to go."""

    number: int
    at_s: float
    price: int
    pickup: str
    steps: tuple[Step, ...]

    @property
    def is_inherited(self) -> bool:
        """Whether the ride was booked before the story."""
        return self.number >= _INHERITED

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody ends the ride, so that it becomes overdue."""
        return not self.steps or self.steps[-1].action not in {"complete", "cancel"}


class Window(NamedTuple):
    """A fault that lasts."""

    what: str
    """One of `WINDOWS`."""
    begins_s: float
    lasts_s: float
    share: float
    """Of the requests that meet it."""

    @property
    def ends_s(self) -> float:
        return self.begins_s + self.lasts_s


class Act(NamedTuple):
    """What the operator does while a story is lived."""

    what: str
    """One of `ACTS`."""
    at_s: float


class Story(NamedTuple):
    seed: int
    tier: Tier
    lives: tuple[Life, ...] = ()
    cars: int = 0
    troubles: Troubles = Troubles()
    share: float = 0.0
    """Of all requests that meet a fault of their own."""
    gateways_share: float = 0.0
    """Of the requests to the gateway."""
    windows: tuple[Window, ...] = ()
    ticks: int = 1
    """Every how many runs of the schedule one takes place."""
    acts: tuple[Act, ...] = ()
    release: str = ""
    """The version of an earlier release whose tables and events are there at the beginning."""
    inherited: tuple[Life, ...] = ()
    """How its open rides go on: one life for each."""
    days: float = 0.0
    """How long the story is left alone before it is looked at again."""
    has_peer: bool = False
    """Whether the stack has a second region."""
    fails_over_s: float = 0.0
    """When an operator moves the processing to the second region; 0: never."""

    def plain(self) -> "Story":
        """Return the same story in one region, without an operator, and without past or future."""
        alone = self._replace(has_peer=False, fails_over_s=0.0, acts=())
        return alone._replace(release="", inherited=(), days=0.0)

    @property
    def ends_s(self) -> float:
        """When the last ride has ended if all goes well."""
        lives = (*self.lives, *self.inherited)
        return max(life.at_s + sum(step.after_s for step in life.steps) for life in lives)


WINDOWS: Final = (
    "gateway",
    "slow gateway",
    "DynamoDB",
    "SQS",
    "deliveries",
    "pipe",
    "schedule",
    "CarRideApiFunction",
    "RideHistoryFunction",
    "DispatchFunction",
    "PaymentFunction",
    "ReconcilerFunction",
)
"""What may fail for a while: a service, or every invocation of a function."""
REPLAY: Final = "replay"
REDRIVE: Final = "redrive"
RELEASE: Final = "release"
FORGET: Final = "forget"
FORGET_AN_ENTRY: Final = "forget an entry"
FREE_A_CAR: Final = "free a car"
ACTS: Final = (REPLAY, REDRIVE, RELEASE, FORGET, FORGET_AN_ENTRY, FREE_A_CAR)
"""What an operator may do at any time, without breaking a promise."""
_ACTS: Final = {
    Tier.CALM: (REPLAY, FORGET_AN_ENTRY, FREE_A_CAR),
    Tier.LIGHT: (REPLAY, REPLAY, FORGET, FORGET_AN_ENTRY, FREE_A_CAR),
    Tier.HEAVY: (REPLAY, REDRIVE, REDRIVE, RELEASE, FORGET, FORGET_AN_ENTRY, FREE_A_CAR),
}
_RELEASED: Final = 0.12
"""The share of stories that begin with what an earlier release has left."""
_OPEN_RIDES: Final = 4
_PAIRED: Final = 0.08
"""The share of stories with two regions."""
_PRICES: Final = (1, 550, 1250, 2000, 10_000_000)
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_MOST_RIDES: Final = 6


def tell(seed: int, tier: Tier | None = None, rides: int | None = None) -> Story:
    """Draw a story. ``tier`` and the number of ``rides`` are drawn if they are not given."""
    dice = random.Random(seed)  # noqa: S311 - it has to be the same every time
    drawn = dice.choice((Tier.CALM, Tier.LIGHT, Tier.LIGHT, Tier.HEAVY, Tier.HEAVY))
    tier = tier or drawn
    number = rides or dice.randint(1, _MOST_RIDES)
    # In a rush, rides compete for cars; slow ones meet the reconciler while they are driven.
    begin_s = dice.choice((_HOUR, _HOUR, 5.0))
    paces = (1.0, 1.0, 0.01, 0.001)
    if tier is Tier.HEAVY:
        paces = (1.0, 0.01, 0.001, 8.0)
    lives = tuple(_life(dice, each, begin_s, paces) for each in range(number))
    story = Story(seed, tier, lives, cars=dice.choice((number, number, number, 2, 1)))
    story = story._replace(troubles=_troubles(dice), ticks=dice.choice((1, 6, 6, 6, 6)))
    story = _with_a_past(story)._replace(acts=tuple(_acts(story)))
    story = _with_a_peer(story)
    if tier is Tier.LIGHT:
        share = dice.choice((0.01, 0.03, 0.1))
        return story._replace(share=share, gateways_share=dice.choice((0.0, 0.1, 0.3)))
    if tier is Tier.HEAVY:
        windows = tuple(_windows(dice, story))
        share = dice.choice((0.01, 0.05, 0.15))
        gateways_share = dice.choice((0.05, 0.3, 0.6))
        return story._replace(share=share, gateways_share=gateways_share, windows=windows)
    return story


def _life(dice: random.Random, number: int, begin_s: float, paces: tuple[float, ...]) -> Life:
    steps = [
        Step("accept", dice.uniform(5, 10 * _MINUTE)),
        Step("start", dice.uniform(10, 20 * _MINUTE)),
        Step("complete", dice.uniform(60, 50 * _MINUTE)),
    ]
    for _ in range(dice.choice((0, 0, 1, 2))):
        price = dice.choice(_PRICES)
        place = dice.randrange(len(steps))
        steps.insert(place, Step("changeDestination", dice.uniform(1, 5 * _MINUTE), price))
    match dice.choice(("end", "end", "end", "cancel", "cancel", "leave")):
        case "cancel":
            steps[dice.randrange(len(steps)) :] = [Step("cancel", dice.uniform(1, 10 * _MINUTE))]
        case "leave":
            steps[dice.randrange(len(steps)) :] = []
    pace = dice.choice(paces)  # the events of a hurried ride overtake each other
    return Life(
        number=number,
        at_s=round(dice.uniform(0, begin_s), 3),
        price=dice.choice(_PRICES),
        pickup=f"sector_{dice.randrange(1, 63):02d}",
        steps=tuple(
            step._replace(after_s=round(step.after_s * pace, 3), again=dice.random() < 0.2)
            for step in steps
        ),
    )


def _troubles(dice: random.Random) -> Troubles:
    return Troubles(
        declined=dice.choice((0.0, 0.0, 0.3)),
        refused=dice.choice((0.0, 0.0, 0.3)),
        capped=dice.choice((0.0, 0.0, 1.0)),
        forgotten=dice.choice((0.0, 0.0, 0.5)),
        pending=dice.choice((0.0, 0.0, 0.0, 0.5)),
    )


def _windows(dice: random.Random, story: Story) -> Iterator[Window]:
    """Draw faults that last, aimed: each begins while something happens to a ride."""
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        moments = _moments(dice.choice(story.lives))
        begins_s = max(0.0, dice.choice(moments) - dice.choice((0.5, 5.0, 60.0)))
        lasts_s = dice.choice((20.0, 5 * _MINUTE, 40 * _MINUTE, 3 * _HOUR, 8 * _HOUR))
        share = dice.choice((0.5, 1.0))
        what = dice.choice((*WINDOWS, "gateway", "gateway"))
        if what == "SQS":  # only dead letters are sent to it, hours after their events
            lasts_s = 8 * _HOUR
        yield Window(what, round(begins_s, 3), lasts_s, share)


def _moments(life: Life) -> list[float]:
    """Return when something is asked of the API about a ride, in seconds."""
    moments = [life.at_s]
    for step in life.steps:
        moments.append(moments[-1] + step.after_s)
    return moments


def _acts(story: Story) -> Iterator[Act]:
    """Draw what the operator does: while rides are driven, and while letters come."""
    dice = random.Random(f"{story.seed} operator")  # noqa: S311 - the same every time
    for _ in range(dice.choice((0, 0, 0, 1, 1, 2))):
        what = dice.choice(_ACTS[story.tier])
        moment = dice.choice(_moments(dice.choice(story.lives)))
        after_s = dice.choice((1.0, 20.0, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR)) * dice.random()
        if what == FORGET_AN_ENTRY:  # its event has to be in the archive
            after_s += 15 * _MINUTE
        if what in {REDRIVE, RELEASE}:  # letters come late
            after_s += dice.choice((10 * _MINUTE, 4 * _HOUR))
        yield Act(what, round(moment + after_s, 3))


def _with_a_past(story: Story) -> Story:
    """Draw whether a story goes on with what an earlier release has left, and how long it lasts."""
    dice = random.Random(f"{story.seed} past")  # noqa: S311 - the same every time
    story = story._replace(days=dice.choice((*[0.0] * 15, 2.5, 8.0, 12.0)))
    if dice.random() >= _RELEASED:
        return story
    number = _OPEN_RIDES if story.tier is Tier.HEAVY else 1
    lives = tuple(_inherited(dice, _INHERITED + each, story.tier) for each in range(number))
    return story._replace(release=RELEASES[-1], inherited=lives)


def _with_a_peer(story: Story) -> Story:
    """Draw whether the stack has a second region, and whether and when that takes over."""
    dice = random.Random(f"{story.seed} regions")  # noqa: S311 - the same every time
    if dice.random() >= _PAIRED:
        return story
    # An operator of one region acts in one region only.
    story = story._replace(has_peer=True, release="", inherited=(), acts=(), days=0.0)
    if story.tier is not Tier.HEAVY:
        return story
    moment = dice.choice(_moments(dice.choice(story.lives)))
    # Soon after a request, while its events are on their way.
    after_s = dice.choice((3.0, 30.0, 5 * _MINUTE)) * dice.random()
    return story._replace(fails_over_s=round(moment + after_s, 3))


def _inherited(dice: random.Random, number: int, tier: Tier) -> Life:
    """Draw how an accepted ride of an earlier release goes on."""
    steps = [
        Step("start", round(dice.uniform(10, 20 * _MINUTE), 3)),
        Step("complete", round(dice.uniform(60, 50 * _MINUTE), 3)),
    ]
    if tier is Tier.HEAVY:
        steps = dice.choice((steps, steps, steps[:1], []))
    at_s = round(dice.uniform(0, 10 * _MINUTE), 3)
    return Life(number, at_s, price=1250, pickup="sector_01", steps=tuple(steps))
