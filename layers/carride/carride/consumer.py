"""What all consumers of ride events share: contract, dead letters, logs and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from msgspec import Struct

from carride.events import RideEvent, parse_event
from carride.saga_step import Outbox
from carride.telemetry import labels, observe
from carride_idempotency import Policy, SqsDeadLetters

if TYPE_CHECKING:
    from carride_idempotency import DeadLetters, Observer


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


class RideEvents(TypedDict):
    """How a `Consumer` reads ride events, and what becomes of those that it gives up."""

    parse: Callable[[Any], RideEvent]
    key: Callable[[RideEvent], object]
    payload: Callable[[RideEvent], object]
    expires: Callable[[RideEvent], datetime | None]
    policy: Policy
    dead_letters: "DeadLetters"
    observe: "Observer"
    labels: Callable[[RideEvent], Mapping[str, str]]


def ride_events(settings: ConsumerSettings, policy: Policy) -> RideEvents:
    """Return what every `Consumer` of ride events is given besides its name and its store.

    The policy's window comes from the settings.
    """
    return wired(
        replace(policy, window=timedelta(days=settings.idempotency_window_days)),
        SqsDeadLetters(settings.dead_letter_queue_url),
        observe,
    )


def wired(policy: Policy, dead_letters: "DeadLetters", observer: "Observer") -> RideEvents:
    """Return what a `Consumer` of ride events is given, with these dead letters."""
    return {
        "parse": parse_event,
        "key": lambda event: event.idempotencyid,
        "payload": lambda event: event.payload,
        "expires": lambda event: event.expirytime,
        "policy": replace(policy, letter_retention=LETTER_RETENTION),
        "dead_letters": dead_letters,
        "observe": observer,
        "labels": labels,
    }
