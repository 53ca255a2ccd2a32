"""What one seed tells: the rides, the fleet, the gateway, and what goes wrong.

Three tiers. In *calm* nothing goes wrong but what AWS always may do: deliver twice, late, in any
order. In *light* each event meets at most two faults at each consumer. In *heavy* faults are
frequent, and some last for hours.
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from carride.overdue import LIMIT
from local.simulated_gateway import Troubles


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
    """Whether the request or the event is sent again after its answer, under the same key."""


class Life(NamedTuple):
    """A ride as its customer and the staff mean it to go."""

    number: int
    at_s: float
    price: int
    pickup: str
    steps: tuple[Step, ...]
    days_ahead: float = 0.0
    """By how much a producer's clock is wrong."""

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody ends the ride, so that it becomes overdue."""
        return not {step.action for step in self.steps} & {"complete", "cancel"}


class Window(NamedTuple):
    """A fault that lasts."""

    what: str
    """One of `WINDOWS`, or `OUTBOX`."""
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
    can_raise: bool = True
    """Whether the gateway's account may raise reservations."""
    by_hand: float = 0.0
    """The share of payments that somebody cancels at the gateway."""
    is_mistaken: bool = False
    """Whether the gateway's answers are often about something else."""
    is_cut_off: bool = False
    """Whether runs are killed while they reserve money, and the gateway does so later."""
    windows: tuple[Window, ...] = ()
    ticks: int = 1
    """Every how many runs of the schedule one takes place."""
    acts: tuple[Act, ...] = ()
    published: tuple[Life, ...] = ()
    """The rides of other producers, which put their events on the bus."""
    has_unreadable: bool = False
    """Whether there is a booking that nobody can read."""
    days: float = 0.0
    """How long the story is left alone before it is looked at again."""
    has_peer: bool = False
    """Whether the stack has a second region."""
    fails_over_s: float = 0.0
    """When an operator moves the processing to the second region; 0: never."""

    def plain(self) -> "Story":
        """Return the same story in one region, without an operator, and without a future."""
        alone = self._replace(has_peer=False, fails_over_s=0.0, acts=())
        return alone._replace(published=(), has_unreadable=False, days=0.0)

    @property
    def ends_s(self) -> float:
        """When the last ride has ended if all goes well."""
        lives = (*self.lives, *self.published)
        return max(life.at_s + sum(step.after_s for step in life.steps) for life in lives)


OUTBOX: Final = "writes to the outbox"
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
"""What may fail for a while: a service, or every invocation of a function. Besides, `OUTBOX`."""
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
_PAIRED: Final = 0.08
"""The share of stories with two regions."""
_PUBLISHED: Final = 0.12
"""The share of stories with rides of another producer."""
_STRANGE: Final = 200
"""The number of the first of them."""
_ACCEPTED_LATE: Final = 0.4
_UNREADABLE: Final = 0.06
_PRICES: Final = (1, 550, 1250, 2000, 10_000_000)
_CAN_RAISE: Final = 0.8
"""The share of stories whose account may raise reservations."""
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
    story = story._replace(days=_days(seed), acts=tuple(_acts(story)))
    story = _with_a_peer(story)._replace(is_mistaken=_is_mistaken(seed))
    story = _with_customers(story)
    if not story.has_peer:
        story = _with_strangers(story)
    if tier is Tier.LIGHT:
        share = dice.choice((0.01, 0.03, 0.1))
        return story._replace(share=share, gateways_share=dice.choice((0.0, 0.1, 0.3)))
    if tier is Tier.HEAVY:
        windows = (*_windows(dice, story), *_while_reconciled(story))
        share = dice.choice((0.01, 0.05, 0.15))
        gateways_share = dice.choice((0.05, 0.3, 0.6))
        story = story._replace(share=share, gateways_share=gateways_share, windows=windows)
        return _with_a_cut(story)
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


def _with_customers(story: Story) -> Story:
    """Draw what else may be wrong with customers, the account, and whoever works at the gateway."""
    dice = random.Random(f"{story.seed} customers")  # noqa: S311 - the same every time
    troubles = story.troubles._replace(
        unknown=dice.choice((0.0, 0.0, 0.0, 0.3)),
        asked=dice.choice((0.0, 0.0, 0.0, 0.3)),
        expired=dice.choice((0.0, 0.0, 0.0, 0.3)),
    )
    can_raise = dice.random() < _CAN_RAISE
    by_hand = dice.choice((0.0, 0.0, 0.0, 0.3))
    return story._replace(troubles=troubles, can_raise=can_raise, by_hand=by_hand)


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


_MISTAKEN: Final = 0.1
"""The share of stories whose gateway is mistaken, in light and heavy stories."""
_DEAF: Final = 0.06
"""The share of heavy stories in which dispatch stands still while rides are driven."""
_FULL: Final = 0.12
"""The share of heavy stories in which the outbox takes no writes while rides are reconciled."""


def _is_mistaken(seed: int) -> bool:
    dice = random.Random(f"{seed} mistaken")  # noqa: S311 - the same every time
    return dice.random() < _MISTAKEN


def _while_reconciled(story: Story) -> Iterator[Window]:
    """Draw a fault that is aimed at the reconciler.

    The outbox takes no writes from the time on when a ride becomes overdue, or dispatch hears of no
    ride from the beginning on.
    """
    dice = random.Random(f"{story.seed} reconciled")  # noqa: S311 - the same every time
    drawn = dice.random()
    if drawn > 1 - _DEAF:
        yield Window("DispatchFunction", 0.0, 9 * _HOUR, 1.0)
    if drawn >= _FULL:
        return
    left = [life for life in story.lives if life.is_abandoned] or story.lives
    begins_s = _moments(dice.choice(left))[-1] + LIMIT.total_seconds() - _MINUTE
    yield Window(OUTBOX, round(begins_s, 3), dice.choice((3 * _HOUR, 8 * _HOUR)), 1.0)


_CUT: Final = 0.08
"""The share of heavy stories in which runs are cut off while they reserve money."""


def _with_a_cut(story: Story) -> Story:
    """Draw a ride that is called off between a killed run and Lambda's retry of it."""
    dice = random.Random(f"{story.seed} cut")  # noqa: S311 - the same every time
    if dice.random() >= _CUT or story.has_peer:
        return story
    steps = (
        Step("accept", round(dice.uniform(1, 20), 3)),
        Step("cancel", round(dice.uniform(8, 50), 3)),
    )
    called_off = Life(len(story.lives), round(dice.uniform(0, _HOUR), 3), 1250, "sector_28", steps)
    return story._replace(is_cut_off=True, lives=(*story.lives, called_off))


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


def _days(seed: int) -> float:
    """Draw how many days later a story is looked at again; 0: never."""
    dice = random.Random(f"{seed} past")  # noqa: S311 - the same every time
    return dice.choice((*[0.0] * 15, 2.5, 8.0, 12.0))


def _with_strangers(story: Story) -> Story:
    """Draw rides of another producer, and a booking that nobody can read."""
    dice = random.Random(f"{story.seed} strangers")  # noqa: S311 - the same every time
    story = story._replace(has_unreadable=dice.random() < _UNREADABLE)
    if dice.random() >= _PUBLISHED:
        return story
    paces = (1.0, 0.01) if story.tier is not Tier.HEAVY else (1.0, 0.01, 8.0)
    number = dice.choice((1, 2))
    lives = tuple(_of_a_producer(dice, _STRANGE + each, paces) for each in range(number))
    return story._replace(published=lives)


def _of_a_producer(dice: random.Random, number: int, paces: tuple[float, ...]) -> Life:
    """Draw a ride whose producer knows no changes of destination; it may accept a ride late."""
    life = _life(dice, number, _HOUR, paces)
    steps = [step for step in life.steps if step.action != "changeDestination"]
    accepted = [step for step in steps if step.action == "accept"]
    if len(steps) > 1 and accepted and dice.random() < _ACCEPTED_LATE:
        steps.remove(accepted[0])
        steps.append(accepted[0])
    days_ahead = dice.choice((0.0, 0.0, 20.0))
    return life._replace(steps=tuple(steps), days_ahead=days_ahead)


def _with_a_peer(story: Story) -> Story:
    """Draw whether the stack has a second region, and whether and when that takes over."""
    dice = random.Random(f"{story.seed} regions")  # noqa: S311 - the same every time
    if dice.random() >= _PAIRED:
        return story
    # An operator of one region acts in one region only.
    story = story._replace(has_peer=True, acts=(), days=0.0)
    if story.tier is not Tier.HEAVY:
        return story
    moment = dice.choice(_moments(dice.choice(story.lives)))
    # Soon after a request, while its events are on their way.
    after_s = dice.choice((3.0, 30.0, 5 * _MINUTE)) * dice.random()
    return story._replace(fails_over_s=round(moment + after_s, 3))
