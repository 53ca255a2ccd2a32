"""The operator: changes something while a story is lived, and mends what is left of it.

Everything is done with the functions of `./carride`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import assignments
from carride_idempotency import marshalling
from carride_idempotency.clock import to_ms
from carride_idempotency.record import FAILED, IN_PROGRESS, QUARANTINED
from carride_idempotency.record_items import item_of, record_of
from ops import fleet, plans, records, replay
from ops.audit import reading
from ops.audit.evidence import HISTORY
from ops.dead_letters import READERS
from ops.redrive import StackSite, carried_out, plan_of
from ops.stack import FAILURES, OperatorError
from tests.world.aws import stack_of
from tests.world.story import (
    FORGET,
    FORGET_AN_ENTRY,
    FREE_A_CAR,
    REDRIVE,
    RELEASE,
    REPLAY,
    Act,
)
from virtual_time.scheduler import Machine

if TYPE_CHECKING:
    from carride_idempotency.operators.redriving import Redriven
    from tests.world.run import World

ROUNDS: Final = 3
"""A key whose last attempt was killed is quarantined by its first redrive, and released by the
second."""
_LOST_RIDE: Final = "ride-of-a-table-that-was-restored"
_LOST_CAR: Final = assignments.Car("car_lost", "sector_28")
_CONSUMERS: Final = ("", "RideHistoryRule", "DispatchRule", "PaymentRule")
_SPANS: Final = (timedelta(minutes=10), timedelta(hours=1), timedelta(days=1))
_AGAIN_S: Final = 1800.0
_TRIES: Final = 40
_READS_S: Final = 20.0
"""How long an operator looks at a plan before it is carried out."""
_POLL_S: Final = 15.0
_HALF: Final = 0.5


def redrive(world: "World") -> None:
    """Redrive every dead letter, and release its key if it is quarantined.

    A tick of the reconciler is not redriven: the next one has done its work.
    """
    world.queues.by_name["ReconcilerDlq"].messages.clear()
    _settle(world)
    for queue in _filled(world):
        world.cloud.say(f"redrives {queue}", "operator")
        site = StackSite(stack_of(world), queue)
        plan = plan_of(site, release=True)
        for each in plan.letters:
            world.cloud.counts[f"redrive: {each.verdict.says}"] += 1
        carried_out(site, plan, tries_one=False, report=_silent, sleep=_at_once)


def _settle(world: "World") -> None:
    """Record of each call with an unknown outcome that it was not made."""
    _leave_calls_open(world)
    stack = stack_of(world)
    for each in records.explained(stack):
        with suppress(OperatorError):  # most keys are quarantined for another reason
            records.settle(stack, each.key, not_done=True).do()
            world.cloud.use("operator: settle")


def _leave_calls_open(world: "World") -> None:
    """Have half of the keys that were given up lack the outcome of a call to another system.

    No handler of the application uses `Operation.external`; those of other teams do.
    """
    table = world.cloud.wiring.tables["IdempotencyTable"].name
    for item in world.cloud.dynamodb.all(table):
        record = record_of(item)
        is_given_up = record.status == QUARANTINED and record.dead_lettered
        if is_given_up and world.cloud.roll(f"a call of {record.key}") < _HALF:
            called = record._replace(externals=json.dumps({"charge": None}))
            world.cloud.dynamodb.put_item(TableName=table, Item=item_of(called))


def _filled(world: "World") -> list[str]:
    """Return the dead-letter queues of consumers that hold letters."""
    return [name for name in READERS if world.queues.by_name[name].messages]


def _silent(_: str) -> None:
    """Say nothing."""


def _at_once(_: float) -> None:
    """Wait for nothing."""


def replay_all(world: "World") -> None:
    """Replay everything that the archive still has."""
    operator = Operator(world, "operator-in-the-end")
    world.cloud.simulation.spawn(Machine(operator.name), operator.replay_all)


# ── While a story is lived ────────────────────────────────────────────────────────────────────────


def begin(world: "World") -> None:
    """Have the operator of a story act when it is time, as a task of its own."""
    simulation = world.cloud.simulation
    if any(act.what == FREE_A_CAR for act in world.story.acts):
        _lose_a_car(world)
    for number, act in enumerate(world.story.acts):
        operator = Operator(world, f"operator-{number}")
        work = partial(operator.act, act)
        simulation.after(act.at_s, partial(simulation.spawn, Machine(operator.name), work))


def _lose_a_car(world: "World") -> None:
    """Have a ride hold a car of which dispatch knows nothing, as after a table was restored."""
    place = {
        "zone": assignments.zone(_LOST_CAR.sector),
        "carID": _LOST_CAR.car_id,
        "sector": _LOST_CAR.sector,
        "rideID": _LOST_RIDE,
    }
    table = world.cloud.wiring.tables["CarTable"].name
    world.cloud.dynamodb.put_item(TableName=table, Item=marshalling.item(place))


class Operator:
    """Does one thing to a stack at work. Its requests travel, so that others come in between."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self._world = world
        self._cloud = world.cloud
        self._sleep = world.cloud.simulation.sleep
        self._stack = stack_of(world)

    def act(self, act: Act) -> None:
        """Do something; again after a while if a service is out of order."""
        does: dict[str, Callable[[], bool]] = {
            REPLAY: self._replay,
            REDRIVE: self._redrive,
            RELEASE: self._release,
            FORGET: self._forget,
            FORGET_AN_ENTRY: self._forget_an_entry,
            FREE_A_CAR: self._free_cars,
        }
        for _ in range(_TRIES):
            self._cloud.say(f"will {act.what}", self.name)
            with suppress(*FAILURES):
                if does[act.what]():
                    self._cloud.use(f"operator: {act.what}")
                return
            self._sleep(_AGAIN_S)

    def _pick[T](self, things: list[T]) -> T | None:
        """Return one of some things, or None of none."""
        if not things:
            return None
        return things[int(len(things) * self._cloud.roll(f"{self.name} picks"))]

    # ── What it does; each returns whether there was anything to do ───────────────────────────────

    def _replay(self) -> bool:
        """Replay what happened lately, to one consumer or to all."""
        rule = self._pick([*_CONSUMERS])
        span = self._pick([*_SPANS])
        until = datetime.now(UTC)
        self._replayed(until - (span or _SPANS[0]), until, rule or None)
        return True

    def replay_all(self) -> None:
        """Replay everything that the archive still has, to every consumer."""
        until = datetime.now(UTC)
        self._replayed(until - timedelta(days=30), until, None)
        self._cloud.use(f"operator: {REPLAY}")

    def _replayed(self, since: datetime, until: datetime, rule: str | None) -> None:
        """Start a replay, and wait until it was handed over."""
        replay.check(self._stack)
        replay.warnings(self._stack, since, until, datetime.now(UTC))
        rules = replay.receivers(self._stack, only=rule)
        name = replay.name_for(self._stack.region, plans.now())
        replay.start(self._stack, name, since, until, rules)
        replay.handed_over(self._stack, name, sleep=lambda _: self._sleep(_POLL_S))

    def _redrive(self) -> bool:
        """Redrive what lies in the queues; one letter of each group goes first."""
        releases = self._cloud.roll(f"{self.name} releases") < 0.5
        sent = 0
        for queue in _filled(self._world):
            with suppress(OperatorError):  # another one came first, or a request got no answer
                sent += self._redriven(queue, releases=releases).sent
        return bool(sent)

    def _redriven(self, queue: str, *, releases: bool) -> "Redriven":
        site = StackSite(self._stack, queue)
        plan = plan_of(site, release=releases)
        self._sleep(_READS_S)
        return carried_out(site, plan, report=_silent, sleep=self._pause)

    def _pause(self, seconds: float) -> None:
        """Wait before a further look at what became of the first letters."""
        if seconds:
            self._sleep(_POLL_S)

    def _release(self) -> bool:
        """Let a quarantined key run again. Its letter is redriven later."""
        listed = records.explained(self._stack)
        return self._change(records.release, [each.key for each in listed])

    def _forget(self) -> bool:
        """Delete the record of a key that has not taken effect, and that nobody holds."""
        listed = [
            *records.explained(self._stack, status=FAILED),
            *records.explained(self._stack, status=IN_PROGRESS),
            *records.explained(self._stack),
        ]
        return self._change(records.forget, [each.key for each in listed if not each.held])

    def _change(self, verb: Callable[..., Any], keys: list[str]) -> bool:
        """Change the record of one key, as it was planned some seconds before."""
        key = self._pick(keys)
        if key is None:
            return False
        try:
            plan = verb(self._stack, key)
            self._sleep(_READS_S * self._cloud.roll(f"{self.name} reads"))
            plan.do()
        except OperatorError as error:
            self._cloud.say(f"changes nothing: {error}", self.name)
            return False
        self._cloud.say(f"{verb.__name__} {key}", self.name)
        return True

    def _forget_an_entry(self) -> bool:
        """Delete an entry of the ride history, and have the archive's event write it again."""
        long_ago = datetime.now(UTC) - replay.ARCHIVED_IN
        # The archive has their events by now, however late those were.
        known: list[dict[str, Any]] = self._world.table(HISTORY)
        entries = [
            each["idempotencyKey"]
            for each in known
            if "entry" in each and each["updatedAt"] < to_ms(long_ago)
        ]
        times = self._times_on_the_bus()
        found = self._pick([key for key in entries if key in times])
        if found is None or not self._change(records.forget, [found]):
            return False
        moment = timedelta(seconds=1)
        time = times[found]
        self._until_done(partial(self._replayed, time - moment, time + moment, "RideHistoryRule"))
        return True

    def _times_on_the_bus(self) -> dict[str, datetime]:
        """Return the times by which a replay chooses events, by the keys of the ride history.

        An event's own time may be another: its producer's clock may be wrong.
        """
        times: dict[str, datetime] = {}
        for line in reading.lines(self._stack, reading.BUS, "", None):
            published = reading.published_in(line)
            if published is not None and published.fact and published.sent:
                times.setdefault(f"ride-history#{published.fact}", published.sent)
        return times

    def _until_done(self, work: Callable[[], object]) -> None:
        for _ in range(_TRIES):
            with suppress(*FAILURES):
                work()
                return
            self._sleep(_AGAIN_S)

    def _free_cars(self) -> bool:
        """Give back every car that a ride holds of which dispatch knows nothing."""
        return sum(self._freed(car_id) for car_id in self._cars()) > 0

    def _cars(self) -> Iterator[str]:
        for item in self._world.table("CarTable"):
            yield str(item["carID"])

    def _freed(self, car_id: str) -> bool:
        try:
            held = fleet.held(self._stack, car_id)
            self._sleep(_READS_S * self._cloud.roll(f"{self.name} reads"))
            fleet.give_back(self._stack, held)
        except OperatorError as error:
            self._cloud.say(f"frees nothing: {error}", self.name)
            return False
        self._cloud.say(f"frees {car_id} of {held.ride_id}", self.name)
        if held.ride_id != _LOST_RIDE:
            self._world.found.append(f"the operator took {car_id} from {held.ride_id}")
        return True
