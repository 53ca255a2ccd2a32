"""One story lived to its end: the people, then the operator, then the judges."""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Final, NamedTuple

from carride_idempotency import marshalling
from ops import fleet
from tests.world import aws, cars, judges, operators, unreadable
from tests.world.archive import Archive
from tests.world.bus import Api, Bus, Pipe, QueueMapping, Schedule
from tests.world.cloud import Cloud
from tests.world.expiry import Expiry
from tests.world.functions import Function
from tests.world.mistaken import MistakenGateway
from tests.world.people import Lived, Person
from tests.world.producers import Producer
from tests.world.queues import Queues
from tests.world.regions import Pair, Parameters
from tests.world.story import Story, Tier
from tests.world.wiring import Wiring, paired, wiring
from virtual_time.scheduler import Machine, RestlessError

_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S
_SWEEPS: Final = 4
_FORGOTTEN: Final = "idempotency-key-forgotten"
"""What a booking is answered that is repeated after its answer has expired, deleted or not."""
_RECONCILED_S: Final = 6 * _HOUR_S
"""After the last change of a ride: the limit of four hours, and time for what follows."""


class Report(NamedTuple):
    """What became of a story."""

    story: Story
    broken: Sequence[str]
    timeline: Sequence[str]
    counts: Counter[str]
    hours: float
    used: Sequence[str]
    """The names of the freedoms that were used and of the faults that were met."""


class World:
    """The application of one story."""

    def __init__(
        self,
        story: Story,
        wired: Wiring,
        kept: Container[str] | None = None,
        first: "World | None" = None,
    ) -> None:
        self.story = story
        self.cloud: Cloud = Cloud(wired, story, kept, first.cloud if first else None)
        self.queues = Queues(self.cloud)
        self.cloud.dead_letters = self.queues  # type: ignore[assignment] # a client of SQS as well
        self.gateway: MistakenGateway = first.gateway if first else MistakenGateway(self.cloud)
        self.parameters = Parameters()
        self.functions = {
            name: Function(spec, self.cloud, self.queues, self.gateway)
            for name, spec in wired.functions.items()
        }
        self.bus: Bus = Bus(self.cloud, self.queues, self.functions)
        self.archive = Archive(self.cloud, self.bus)
        self.pipes: list[Pipe] = [
            Pipe(self.cloud, spec, self.bus, self.queues) for spec in wired.pipes
        ]
        for pipe in self.pipes:
            self.cloud.dynamodb.written = pipe.written
        self.mappings = [
            QueueMapping(self.cloud, mapping, self.queues, self.functions[mapping.function])
            for mapping in wired.mappings
        ]
        self.schedules: list[Schedule] = [
            Schedule(self.cloud, spec, self.functions[spec.function], self.queues)
            for spec in wired.schedules
        ]
        self.api: Api = Api(self.cloud, self.functions[wired.api_function])
        self.expiry = Expiry(self.cloud)
        self.people: list[Person] = []
        self.producers: list[Producer] = []
        self.lived: list[Lived] = []
        self.found: list[str] = []
        """What went wrong while the story was lived."""
        if not story.has_peer:  # the tables of a replica follow each other
            self.cloud.dynamodb.committed = lambda writes: self.found.extend(
                cars.contradictions(self, writes)
            )
        self.pair: Pair | None = None
        self.regions: tuple[World, ...] = (self,) if first is None else (first, self)
        if story.has_peer and first is None:
            _, secondary = paired()
            peer = World(story, secondary, kept, self)
            self.regions = peer.regions
            self.pair = Pair(self, peer)

    def table(self, name: str) -> list[dict[str, object]]:
        """Return every item of a table, by its logical id, as Python values."""
        table = self.cloud.wiring.tables[name].name
        return [marshalling.values(item) for item in self.cloud.dynamodb.all(table)]

    def live(self) -> None:
        """Have the people live, until everything is at rest."""
        dynamodb = aws.Tables(self.cloud.dynamodb)
        fleet.seed(dynamodb, self.cloud.wiring.tables["CarTable"].name, self.story.cars)
        for life in self.story.lives:
            person = Person(self.cloud, self.pair or self.api, life)
            self.people.append(person)
            self._begin(person)
        for life in self.story.published:
            producer = Producer(self.cloud, self.bus, life)
            self.producers.append(producer)
            self._begin(producer)
        if self.story.has_unreadable:
            unreadable.put(self)
        operators.begin(self)
        if self.pair is not None and self.story.fails_over_s:
            self.cloud.simulation.after(self.story.fails_over_s, self.pair.fail_over)
        end_s = self.story.ends_s + _HOUR_S
        is_calm = self.story.tier is Tier.CALM
        lives = (*self.story.lives, *self.story.published)
        if not is_calm or any(life.is_abandoned for life in lives):
            end_s += _RECONCILED_S
        self._run_until(end_s)

    def _begin(self, who: Person | Producer) -> None:
        self.lived.append(who.lived)
        machine = Machine(f"person-{who.lived.life.number}")
        begin = partial(self.cloud.simulation.spawn, machine, who.live)
        self.cloud.simulation.after(who.lived.life.at_s, begin)

    def wait(self, seconds: float) -> None:
        """Let time pass in a world at rest."""
        self.cloud.simulation.advance(seconds)

    def mend(self) -> None:
        """Have an operator repair everything, and the world come to rest again."""
        self._heal()
        if self.pair is not None and self.pair.has_failed_over:
            # What the primary has kept takes effect there only if the secondary has not done it.
            self.redrive(self.pair.secondary)
            self.pair.go_back()
            self.cloud.simulation.run()
        # Two regions must not work on the same event at once, whose letters both may have.
        self.redrive(*self.regions)

    def redrive(self, *regions: "World") -> None:
        """Redrive the letters of regions, one region after the other, until none is left."""
        for _ in range(operators.ROUNDS):
            self.wait(_HOUR_S)
            for region in regions:
                operators.redrive(region)
                self.cloud.simulation.run()
            self._run_until(self.cloud.now_s + _RECONCILED_S)

    def _heal(self) -> None:
        """Have nothing fail any more."""
        for region in self.regions:
            region.cloud.healed = True

    def switch(self, *, on: bool) -> None:
        """Switch on or off what a fence stops: all but the log's rule and the API's reads."""
        self.bus.is_fenced = not on
        for pipe in self.pipes:
            pipe.switch(on=on)
        for name, function in self.functions.items():
            function.is_off = not on and name != self.cloud.wiring.api_function
        for mapping in self.mappings:
            mapping.is_off = not on
            mapping.poll()

    def stop_schedules(self) -> None:
        """Have the schedules run no more."""
        for schedule in self.schedules:
            schedule.until_s = 0.0

    def look_again(self) -> None:
        """Days later, have customers repeat their bookings and an operator replay the archive."""
        self._heal()
        self.wait(self.story.days / 2 * _DAY_S)
        simulation = self.cloud.simulation
        for each in range(_SWEEPS):
            simulation.after(each * _HOUR_S / _SWEEPS, self.expiry.sweep)
        for person in self.people:
            if person.lived.order_id:
                at_s = _HOUR_S * self.cloud.roll(f"again {person.lived.life.number}")
                machine = Machine(f"person-{person.lived.life.number} again")
                simulation.after(at_s, partial(simulation.spawn, machine, self._ask_again(person)))
        operators.replay_all(self)
        self._run_until(self.cloud.now_s + _HOUR_S)

    def look_at_producers(self) -> None:
        """Have somebody ask the API how the rides of other producers stand."""
        simulation = self.cloud.simulation
        for each in self.producers:
            machine = Machine(f"views-{each.lived.life.number}")
            simulation.spawn(machine, partial(self._look_at, each))
        simulation.run()

    def _look_at(self, producer: Producer) -> None:
        wrong = producer.wrong_view(self.api)
        if wrong:
            self.found.append(wrong)

    def _ask_again(self, person: Person) -> Callable[[], None]:
        def ask() -> None:
            answer = person.book_again()
            self.cloud.counts[f"booked again: {answer}"] += 1
            if answer != _FORGOTTEN:
                self.found.append(f"ride {person.lived.life.number} was booked again: {answer}")

        return ask

    def _run_until(self, end_s: float) -> None:
        active = self if self.pair is None else self.pair.active
        for schedule in active.schedules:
            schedule.start(end_s)
        self.cloud.simulation.run()


def run(story: Story, wired: Wiring | None = None, kept: Container[str] | None = None) -> Report:
    """Live a story, and judge it; ``kept`` as in `Cloud`."""
    if wired is None:
        wired = paired()[0] if story.has_peer else wiring()
    world = World(story, wired, kept)
    broken: list[str] = []
    with world.cloud.living():
        try:
            world.live()
            world.wait(story.days / 2 * _DAY_S)
            world.expiry.sweep()
            if story.tier is Tier.HEAVY:
                world.mend()
            if story.days:
                world.look_again()
            if story.has_unreadable:
                broken += unreadable.remove(world)
            world.look_at_producers()
            world.wait(_HOUR_S)
            broken += [*world.found, *judges.of(world)]
            if world.pair is not None:
                broken += world.pair.differences()
        except RestlessError as error:
            broken.append(str(error))
    hours = world.cloud.now_s / _HOUR_S
    cloud = world.cloud
    return Report(story, broken, cloud.timeline, cloud.counts, hours, cloud.used)
