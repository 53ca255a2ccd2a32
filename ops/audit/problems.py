"""What the audit may find wrong with a ride, as facts. `ops.sentences` says them. No I/O."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from ops.audit.evidence import GatewayPayment


class Broken(StrEnum):
    """How tables, events, cars and the gateway contradict each other."""

    MANY_CARS = "many_cars"
    PUBLISHED_AGAIN = "published_again"
    CHARGED_AGAIN = "charged_again"
    CAPTURED_AGAIN = "captured_again"
    """Or refunded."""
    BOOKING_VERSION = "booking_version"
    BOOKING_STATUS = "booking_status"
    BOOKING_PRICE = "booking_price"
    OTHER_CARS = "other_cars"
    OTHER_PAYMENTS = "other_payments"
    MONEY_RETURNED = "money_returned"
    CANCELLED_AND_CAPTURED = "cancelled_and_captured"
    CAPTURED_TOO_MUCH = "captured_too_much"
    CAPTURED_TOO_LITTLE = "captured_too_little"
    OTHER_EVENTS = "other_events"
    CAR_KEPT = "car_kept"
    MONEY_RESERVED = "money_reserved"
    DRIVEN_UNPAID = "driven_unpaid"


class Problem(NamedTuple):
    """A contradiction. Each kind has some of the fields."""

    kind: Broken
    consumer: str | None = None
    """Whose table is contradicted."""
    state: str | None = None
    """As what that table has the ride."""
    types: tuple[str, ...] = ()
    """Of the events that contradict, or are contradicted."""
    times: int | None = None
    """How often such an event was published, or the ride charged."""
    cars: tuple[str, ...] = ()
    """That have the ride, by their own items."""
    payments: tuple[GatewayPayment, ...] = ()
    """As the gateway has them."""
    has: str | int | None = None
    """The booking's version, status or price, or the amount of its payment in cents."""
    stated: str | int | None = None
    """What the events state instead."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that this kind has."""
        fields = dict[str, Any]()
        for name, value in self._asdict().items():
            if value not in (None, ()):
                fields[name] = value
        if self.payments:
            fields["payments"] = [each._asdict() for each in self.payments]
        return fields


class Need(NamedTuple):
    """Since when a ride has needed something, by one table."""

    since: datetime
    consumer: str | None
    """None if it is the API's table: the ride is booked."""
    state: str | None = None
    """As what the consumer has it."""


class Overdue(NamedTuple):
    """What a ride has needed for too long."""

    needs: tuple[Need, ...]
    """By each table, the oldest first."""

    @classmethod
    def of(cls, needs: Iterable[Need]) -> "Overdue":
        """Return needs in the order of their times."""
        return cls(tuple(sorted(needs, key=lambda need: (need.since, str(need.consumer)))))

    @property
    def since(self) -> datetime:
        """Since when it has needed something."""
        return self.needs[0].since

    def to_json(self) -> dict[str, Any]:
        """Return since when, and what each table has."""
        needs = list[dict[str, Any]]()
        for each in self.needs:
            needs.append(each._asdict() | {"since": each.since.isoformat()})
        return {"since": self.since.isoformat(), "needs": needs}
