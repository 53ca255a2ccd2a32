"""One attempt at one operation, as the handler sees it."""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from idempotency.clock import Clock
from idempotency.errors import ConfigurationError
from idempotency.record import Record

if TYPE_CHECKING:
    from idempotency.effects import Effect

type Renew = Callable[[], int | None]
"""Renews a lease; returns its new end in epoch milliseconds, or None if the claim is lost."""


class Operation:
    """The attempt that is running. It is immutable, and holds all that belongs to one attempt."""

    key: str
    """``<consumer>#<key>`` of the record, or ``<consumer>/<operation>#<key>`` of a function's or block's."""
    attempt: int
    """1 for the first run of this key. In atomic mode always 1: the commit finds out which attempt it is."""
    owner: str
    """The owner token of this attempt: random, and new for each claim."""
    delivery: str | None
    """The transport's id of this delivery, if it has one."""
    deadline_ms: int | None
    """When the invocation is stopped, in epoch milliseconds; None outside Lambda."""
    context: Any
    """Lambda's context object of the invocation; None outside Lambda."""
    _effects: list["Effect"]
    _lease_ms: int | None
    _lost: bool
    _renew: Renew | None
    _takes_effects: bool
    _clock: Clock

    def __init__(
        self,
        record: Record,
        deadline_ms: int | None,
        *,
        takes_effects: bool,
        clock: Clock,
        renew: Renew | None,
        context: Any = None,
    ) -> None:
        self.__dict__.update(
            key=record.key,
            attempt=record.attempt,
            owner=record.owner,
            delivery=record.delivery,
            deadline_ms=deadline_ms,
            context=context,
            _takes_effects=takes_effects,
            _clock=clock,
            _renew=renew,
            _lease_ms=None if renew is None else record.lease_ms,
            _effects=[],
            _lost=False,
        )

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an operation is immutable: {name} cannot be set")

    @property
    def downstream_key(self) -> str:
        """The idempotency key for another system: 32 hexadecimal digits, the same for every attempt."""
        return hashlib.blake2b(self.key.encode(), digest_size=16).hexdigest()

    def downstream_key_for(self, step: str) -> str:
        """Return a `downstream_key` for one of several calls to other systems."""
        return hashlib.blake2b(step.encode(), key=bytes.fromhex(self.downstream_key), digest_size=16).hexdigest()

    @property
    def lost(self) -> bool:
        """Whether the claim is lost: a heartbeat found it taken over, or its lease ended. Stop the work then."""
        return self._lost or (self._lease_ms is not None and self._clock() > self._lease_ms)

    def heartbeat(self) -> bool:
        """Renew the lease now, and return whether the claim still holds.

        Long work is renewed in the background. Call this before an external effect that no other attempt may overlap.

        Raises:
            StoreError: the store gave no answer, or refused the renewal.
        """
        if self._renew is not None and not self._lost:
            lease_ms = self._renew()
            self.__dict__.update(_lost=True) if lease_ms is None else self.__dict__.update(_lease_ms=lease_ms)
        return not self.lost

    def write(self, *effects: "Effect") -> None:
        """Register DynamoDB writes that are committed together with this operation's completion, or not at all.

        They are converted and checked now, before the handler does anything that cannot be undone.

        Raises:
            EffectsRejectedError: DynamoDB cannot hold one of them.
            ConfigurationError: the store has no transactions.
        """
        if not self._takes_effects:
            raise ConfigurationError(
                "this store has no transactions, so effects cannot be committed with the record: keep this consumer's "
                "records in a DynamoDBStore, or write them yourself under a condition that recognises a second write"
            )
        from idempotency.effects import prepared

        self._effects.extend([prepared(effect) for effect in effects])
