"""What a saboteur can reach: tables, logs, queues, the gateway's books, and what is on its way."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from carride.history import EVENT_PREFIX
from carride_idempotency import marshalling
from gateway_rules import Intent

if TYPE_CHECKING:
    from tests.world.run import World

type Item = dict[str, Any]

BOOKINGS: Final = "BookingTable"
CARS: Final = "CarTable"
HISTORY: Final = "RideHistoryTable"
RECORDS: Final = "IdempotencyTable"
OUTBOX: Final = "OutboxTable"
TABLES: Final = {"dispatch": "AssignmentTable", "payment": "PaymentTable"}
"""Of the effects of each consumer."""
_TAKEN: Final = 0.6
"""The share of suitable moments of a story that a saboteur uses, until one was used."""


class Expected(NamedTuple):
    """What the audit has to name."""

    about: str
    """A ride, an event or a car."""
    says: str
    """A part of what it says about that."""


class Hand:
    """What a saboteur can reach, in one story.

    Attributes:
        expected: what the audit has to name; None as long as nothing was planted.
        between: is called after the story and before the operator.
    """

    def __init__(self, world: "World", dice: Random, taps: ExitStack) -> None:
        self.world = world
        self.expected: Expected | None = None
        self.between: Callable[[], object] = lambda: None
        self._dice = dice
        self._seen = set[str]()
        self._taps = taps

    # ── Choosing ──────────────────────────────────────────────────────────────────────────────────

    def one[T](self, found: Sequence[T]) -> T | None:
        """Choose one of what a story has; None if it has none."""
        return self._dice.choice(found) if found else None

    def takes(self, about: str = "") -> bool:
        """Decide whether to use a moment. Only one is used, the first one about an event."""
        is_first = not about or about not in self._seen
        self._seen.add(about)
        return is_first and self.expected is None and self._dice.random() < _TAKEN

    def planted(self, about: object, says: str) -> None:
        self.expected = Expected(str(about), says)
        self.world.cloud.say(f"PLANTED: {about}: {says}", "saboteur")

    @property
    def about(self) -> str:
        """What was planted is about this; empty if nothing was."""
        return self.expected.about if self.expected else ""

    # ── Tables ────────────────────────────────────────────────────────────────────────────────────

    def items(self, table: str, **attributes: object) -> list[Item]:
        """Return the items of a table with these attributes, as Python values."""
        return [
            item
            for item in self.world.table(table)
            if all(item.get(name) == value for name, value in attributes.items())
        ]

    def put(self, table: str, item: Mapping[str, Any]) -> None:
        self.world.cloud.dynamodb.put_item(
            TableName=self.name_of(table), Item=marshalling.item(item)
        )

    def delete(self, table: str, item: Mapping[str, Any]) -> None:
        names = self.world.cloud.wiring.tables[table].keys
        key = marshalling.item({name: item[name] for name in names})
        self.world.cloud.dynamodb.delete_item(TableName=self.name_of(table), Key=key)

    def name_of(self, table: str) -> str:
        return self.world.cloud.wiring.tables[table].name

    # ── The gateway and the events ────────────────────────────────────────────────────────────────

    @property
    def books(self) -> dict[str, Intent]:
        """The gateway's payments, by their ids, to be changed."""
        return self.world.gateway.books.intents

    def charges(self, ride: str) -> list[Intent]:
        """Return the gateway's payments of a ride that were confirmed."""
        return [each for each in self.books.values() if each.ride == ride and each.charge]

    def charge(self, ride: str) -> Intent:
        """Return the gateway's one payment of a ride."""
        (found,) = self.charges(ride)
        return found

    def paid(self) -> list[Item]:
        """Return the captured rides whose price was captured, as payment has them."""
        captured = self.items("PaymentTable", state="captured")
        return [item for item in captured if "raiseRefused" not in item]

    def published(self, *types: str) -> list[Item]:
        """Return the details of the published events of these types."""
        found = [event["detail"] for event in self.world.bus.published]
        return [detail for detail in found if detail["type"] in types]

    def facts(self) -> list[str]:
        """Return the ids of the published facts."""
        return [event["detail"]["idempotencyid"] for event in self.world.bus.published]

    # ── Taps on what is on its way ────────────────────────────────────────────────────────────────

    def tap(self, owner: object, name: str, made: Callable[..., Any]) -> None:
        """Replace a method; ``made`` gets the real one before its arguments."""
        real = getattr(owner, name)
        self._taps.enter_context(patch.object(owner, name, partial(made, real)))


def held(car: Item, ride: str) -> Item:
    """Return a car as it is while a ride has it."""
    kept = {name: value for name, value in car.items() if name not in {"freeShard", "freePlace"}}
    return kept | {"rideID": ride}


def entries(item: Item) -> list[str]:
    return sorted(name for name in item if name.startswith(EVENT_PREFIX))


def lines(hand: Hand) -> list[Item]:
    return [each for each in hand.items(HISTORY) if "entry" in each]


def fact_of(record: Item) -> str:
    return str(record["idempotencyKey"]).partition("#")[2]
