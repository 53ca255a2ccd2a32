"""What the sides of the benchmark share that take the place of `carride.consumer`."""

from datetime import timedelta
from typing import Any, NamedTuple

from msgspec import Struct

from carride.saga_step import Outbox


class ConsumerSettings(Struct, frozen=True, kw_only=True):
    idempotency_store: str
    dead_letter_queue_url: str


class SagaSettings(ConsumerSettings, frozen=True, kw_only=True):
    outbox_table: str
    aws_region: str

    def outbox(self) -> Outbox:
        return Outbox(self.outbox_table, self.aws_region, timedelta(days=7))


class Operation(NamedTuple):
    """Gathers the writes of a run."""

    downstream_key: str
    effects: list[Any]
    deadline_ms: int | None = None
    lost: bool = False

    def write(self, *effects: Any) -> None:
        self.effects.extend(effects)
