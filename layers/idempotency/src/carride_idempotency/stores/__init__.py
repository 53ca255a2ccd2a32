"""Stores of records.

A store has three conditional writes and a read. Each write answers with what is now under the key:
the very record that was passed in if it was written, the record that refused the condition, or
``None`` if the key is absent. The conditions are `may_put_if_absent`, `may_compare_and_swap` and
`may_update_if_owner` below, in the language of the backend.

``docs/stores.md`` explains how to write a store, and how to prove it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from carride_idempotency.record import IN_PROGRESS, Record

if TYPE_CHECKING:
    from carride_idempotency.effects import Effect

__all__ = ["Store", "may_compare_and_swap", "may_put_if_absent", "may_update_if_owner"]


class Store(Protocol):
    """What the protocol needs of a backend.

    ``until_ms`` is the epoch millisecond by which every further try must end; ``None`` leaves it to
    the store. ``effects`` take place in the same transaction as the record, or not at all. A write
    raises:

    - StoreUnavailableError if its outcome is unknown; so does a read;
    - StoreRefusedError if nothing was written; so does a read;
    - EffectConflictError if the condition of an effect does not hold;
    - EffectsRejectedError if the effects can never be written.
    """

    transactional: bool
    """Whether the store can commit effects together with a record. Otherwise it refuses them."""

    def put_if_absent(
        self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record:
        """Write ``record`` if its key is absent."""
        ...

    def compare_and_swap(
        self,
        seen: Record,
        record: Record,
        effects: Sequence["Effect"] = (),
        *,
        until_ms: int | None = None,
    ) -> Record | None:
        """Write ``record`` if owner, attempt, status and lease are still those of ``seen``."""
        ...

    def update_if_owner(
        self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` over one that is IN_PROGRESS, of the same owner, with no later lease."""
        ...

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Read the record under ``key``, consistently."""
        ...


def may_put_if_absent(found: Record | None) -> bool:
    """Return whether `Store.put_if_absent` writes."""
    return found is None


def may_compare_and_swap(found: Record | None, seen: Record) -> bool:
    """Return whether `Store.compare_and_swap` writes.

    A heartbeat in between changes the lease and so refuses it.
    """
    return (
        found is not None
        and found.owner == seen.owner
        and found.attempt == seen.attempt
        and found.status == seen.status
        and found.lease_ms == seen.lease_ms
    )


def may_update_if_owner(found: Record | None, record: Record) -> bool:
    """Return whether `Store.update_if_owner` writes.

    An owner that has finished changes nothing. Only heartbeats write a lease: a late one must not
    shorten it.
    """
    return (
        found is not None
        and found.status == IN_PROGRESS
        and found.owner == record.owner
        and (
            record.lease_ms is None
            or (found.lease_ms is not None and found.lease_ms <= record.lease_ms)
        )
    )
