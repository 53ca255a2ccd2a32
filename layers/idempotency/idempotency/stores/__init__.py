"""Where records live.

A store is three conditional writes and a read. Each write answers with what is now under the key: the very record that
was handed in where it was written, the record in the way where the condition refused it, or ``None`` where the key is
absent. The conditions are `may_put_if_absent`, `may_compare_and_swap` and `may_update_if_owner` below, in whatever
language the backend speaks.

A new backend is a page of code: see ``docs/writing-a-store.md``, and run ``tests/integration/stores`` against it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from idempotency.record import IN_PROGRESS, Record

if TYPE_CHECKING:
    from idempotency.effects import Effect

__all__ = ["EffectWriter", "Store", "may_compare_and_swap", "may_put_if_absent", "may_update_if_owner"]


class EffectWriter(Protocol):
    """Takes effects in a transaction of their own, for stores that cannot commit them together with a record."""

    longest_try_s: float
    """After how many seconds a request without an answer is given up: a claim has to hold for longer."""

    def write(self, effects: Sequence["Effect"], *, until_ms: int | None = None) -> None:
        """Have all effects take place, unless the mark of one shows that they have; or none of them.

        Raises:
            StoreUnavailableError: whether they took place is not known.
            StoreRefusedError: they did not.
            EffectConflictError: the condition of an effect refused them, and no mark is there.
            EffectsRejectedError: they can never be written.
        """
        ...


class Store(Protocol):
    """What the protocol asks of a backend.

    ``until_ms`` is the epoch millisecond after which no further try may begin; ``None`` leaves it to the store.
    ``effects`` take place in the same transaction as the record, or not at all.

    Every write raises StoreUnavailableError where it cannot tell what became of it, StoreRefusedError where it was
    definitely refused, EffectConflictError where the condition of an effect refused it, EffectsRejectedError where the
    effects can never be written. A read raises one of the first two.
    """

    transactional: bool
    """Whether effects can be committed together with a record."""

    effect_writer: EffectWriter | None
    """Where they cannot: what commits them just before the record; without it, there are none."""

    def put_if_absent(self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None) -> Record:
        """Write ``record`` if its key is absent."""
        ...

    def compare_and_swap(
        self, seen: Record, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if owner, attempt, status and lease under its key are still as in ``seen``."""
        ...

    def update_if_owner(
        self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if the one under its key is IN_PROGRESS, has the same owner, and no later lease."""
        ...

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Read the record under ``key``, consistently."""
        ...


def may_put_if_absent(found: Record | None) -> bool:
    """Say whether `Store.put_if_absent` writes."""
    return found is None


def may_compare_and_swap(found: Record | None, seen: Record) -> bool:
    """Say whether `Store.compare_and_swap` writes.

    The lease counts: a heartbeat that lands in between must refuse a takeover.
    """
    return (
        found is not None
        and found.owner == seen.owner
        and found.attempt == seen.attempt
        and found.status == seen.status
        and found.lease_ms == seen.lease_ms
    )


def may_update_if_owner(found: Record | None, record: Record) -> bool:
    """Say whether `Store.update_if_owner` writes.

    The status counts: an owner that has finished changes nothing any more. The lease counts for a heartbeat, which is
    the one write that has a lease: one that comes late, after the next, must not shorten what its owner relies on.
    """
    return (
        found is not None
        and found.status == IN_PROGRESS
        and found.owner == record.owner
        and (record.lease_ms is None or (found.lease_ms is not None and found.lease_ms <= record.lease_ms))
    )
