"""One attempt at one operation, as the handler sees it."""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from idempotency.errors import ConfigurationError
from idempotency.record import Record

if TYPE_CHECKING:
    from idempotency.effects import Effect


class Operation:
    """The attempt that is running. Immutable: what belongs to one attempt is carried here and nowhere else.

    Attributes:
        key: ``<consumer>#<key>`` of the record.
        attempt: 1 for the first run of this key; in atomic mode, where the attempt is only known at the commit, 1.
        owner: the fencing token of this attempt.
        downstream_key: the same for every attempt at this operation, and for no other: send it to external systems as
            their idempotency key. 32 hexadecimal digits.
        delivery: the transport's id of this delivery, if it has one.
        deadline_ms: when the invocation is stopped, in epoch milliseconds; None outside Lambda.
    """

    __slots__ = ("_effects", "_lost", "_renew", "_takes_effects", "attempt", "deadline_ms", "delivery", "key", "owner")

    key: str
    attempt: int
    owner: str
    delivery: str | None
    deadline_ms: int | None
    _effects: list["Effect"]
    _lost: bool
    _renew: Callable[[], bool] | None
    _takes_effects: bool

    def __init__(
        self, record: Record, deadline_ms: int | None, *, takes_effects: bool, renew: Callable[[], bool] | None
    ) -> None:
        init = object.__setattr__
        init(self, "key", record.key)
        init(self, "attempt", record.attempt)
        init(self, "owner", record.owner)
        init(self, "delivery", record.delivery)
        init(self, "deadline_ms", deadline_ms)
        init(self, "_takes_effects", takes_effects)
        init(self, "_renew", renew)
        init(self, "_effects", [])
        init(self, "_lost", False)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an operation is immutable: {name} cannot be set")

    @property
    def downstream_key(self) -> str:
        """The stable idempotency key for external systems."""
        return hashlib.blake2b(self.key.encode(), digest_size=16).hexdigest()

    @property
    def lost(self) -> bool:
        """Whether a heartbeat found that another attempt has taken this key over: stop, nothing can be committed."""
        return self._lost

    def heartbeat(self) -> bool:
        """Renew the lease now, and say whether it still holds.

        Long work is renewed in the background anyway; this asks before an effect that must not be overtaken.

        Raises:
            StoreUnavailableError: the store gave no answer.
        """
        if self._renew is not None and not self._renew():
            object.__setattr__(self, "_lost", True)
        return not self.lost

    def write(self, *effects: "Effect") -> None:
        """Register DynamoDB writes that are committed together with the completion of this operation, or not at all.

        Over a store without transactions, like ValkeyStore, they are committed in one transaction of their own just
        before the completion, while the claim holds. A crash in between has the operation run again: give one of its
        effects a ``mark``, and they take place once all the same.

        Raises:
            ConfigurationError: the store has no transactions, and nothing to write effects with either.
        """
        if not self._takes_effects:
            raise ConfigurationError(
                "this store has no transactions: give it effect_writer=DynamoDBEffects(), or use DynamoDBStore"
            )
        self._effects.extend(effects)
