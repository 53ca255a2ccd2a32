"""What the sides of the benchmark share that take the place of `carride.consumer`."""

from datetime import timedelta
from typing import Any, NamedTuple, Self

from msgspec import Struct

from carride.events import parse_event
from carride.saga_step import Outbox


class ConsumerSettings(Struct, frozen=True, kw_only=True):
    idempotency_store: str
    dead_letter_queue_url: str


class SagaSettings(ConsumerSettings, frozen=True, kw_only=True):
    outbox_table: str
    aws_region: str

    def outbox(self) -> Outbox:
        return Outbox(self.outbox_table, self.aws_region, timedelta(days=7))


class Table(NamedTuple):
    """Takes the place of a store."""

    name: str
    transport: Any = None

    @classmethod
    def opened(cls, location: str, *, transport: Any = None) -> Self:
        """Return the table of a setting such as `dynamodb:table`."""
        return cls(location.partition(":")[2], transport)


def ride_events(settings: ConsumerSettings, policy: object) -> dict[str, Any]:
    """Return what a stand-in of a consumer needs besides its name and its table."""
    return {"parse": parse_event}


class Operation(NamedTuple):
    """Gathers the writes of a run."""

    downstream_key: str
    effects: list[Any]
    deadline_ms: int | None = None
    lost: bool = False

    def write(self, *effects: Any) -> None:
        self.effects.extend(effects)
