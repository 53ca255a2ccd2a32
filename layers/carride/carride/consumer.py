"""The wiring that all consumers share: contract, records, dead letters, logs and metrics."""

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from carride.events import RideEvent, parse_event
from carride.saga_step import Outbox
from carride.telemetry import labels, observe
from carride_idempotency import Consumer, Policy, SqsDeadLetters, open_store

if TYPE_CHECKING:
    from carride_idempotency import DeadLetters, Observer
    from carride_idempotency.stores import Store
    from carride_idempotency.stores.transport import Transport


POLICY: Final = Policy(same_delivery_takes_over=True)
"""Protects the events of a consumer whose effects are all in the commit.

Lambda's retry need not wait until the lease of a killed attempt has ended.
"""


LETTER_RETENTION: Final = 14 * 86_400
"""How long the stack's dead-letter queues keep a message, in seconds."""


class ConsumerSettings(Struct, frozen=True, kw_only=True):
    """The environment of every consumer."""

    idempotency_store: str
    dead_letter_queue_url: str
    idempotency_window_days: int = 30


class SagaSettings(ConsumerSettings, frozen=True, kw_only=True):
    """The environment of a consumer that emits events."""

    outbox_table: str
    aws_region: str
    outbox_days: int = 7

    def outbox(self) -> Outbox:
        """Return the outbox for emitted events."""
        return Outbox(self.outbox_table, self.aws_region, timedelta(days=self.outbox_days))


def ride_consumer(
    name: str, settings: ConsumerSettings, policy: Policy, transport: "Transport | None" = None
) -> Consumer[RideEvent]:
    """Return a consumer of ride events: each event takes effect once under its idempotency id.

    Its name is part of every key. The policy's window comes from the settings. ``transport``
    carries the records, and may be shared with the handler's own requests.
    """
    return wired(
        name,
        open_store(settings.idempotency_store, transport=transport),
        replace(policy, window=timedelta(days=settings.idempotency_window_days)),
        SqsDeadLetters(settings.dead_letter_queue_url),
        observe,
    )


def wired(
    name: str,
    store: "Store",
    policy: Policy,
    dead_letters: "DeadLetters",
    observer: "Observer",
    *,
    region: str | None = None,
) -> Consumer[RideEvent]:
    """Return a consumer of ride events over any store.

    The prediction of a replay is wired like the deployed ones, in the region of their stack.
    """
    return Consumer(
        name,
        store,
        parse=parse_event,
        key=lambda event: event.idempotencyid,
        payload=lambda event: event.payload,
        expires=lambda event: event.expirytime,
        policy=replace(policy, letter_retention=LETTER_RETENTION),
        dead_letters=dead_letters,
        observe=observer,
        labels=labels,
        region=region,
    )
