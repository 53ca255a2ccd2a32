"""Reads, chooses and explains the records of a place, and changes one or many of them.

A change is planned on a record as it was read, shown, and written only if the record is still so.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.operators.changing import ChangeRefusedError, Planned
from carride_idempotency.operators.choosing import Choice
from carride_idempotency.operators.explaining import Explained, explain
from carride_idempotency.operators.reading import records_at, records_in
from carride_idempotency.policy import DAY
from carride_idempotency.protocol.decision import is_forgotten, released
from carride_idempotency.protocol.externals import NOT_DONE, Answer, Stored
from carride_idempotency.record import Record
from carride_idempotency.recovery import forgotten, new_owner
from carride_idempotency.stores import Store
from carride_idempotency.stores.codec import as_stored

type Planner = Callable[[Record, Explained], Planned]
"""Plans the change of a record, or raises a ChangeRefusedError."""


class NoRecordError(Exception):
    """Raised when a key that was named has no record."""


class Preview(NamedTuple):
    """What a command would do with the records that were chosen."""

    planned: list[Planned]
    left_alone: Counter[str]
    """Why other chosen records stay as they are, and how many."""

    def exact(self, action: str) -> dict[str, Any]:
        """Return what has to be the same when it is carried out."""
        records = []
        for each in self.planned:
            seen = each.seen
            # Without the lease: by a server's clock it reads a little different each time.
            revision = revision_of(seen)
            records.append({"id": seen.key, "record": revision, "then": each.change.then})
        return {"action": action, "records": records}


class Records:
    """The records of an operator's place: here those of one store.

    A subclass has several stores, knows the policies of its consumers, or forgets in another way.

    Args:
        stores: have the records.
    """

    attempts: Mapping[str, int] = {}
    """The ``max_attempts`` of each consumer whose policy is known."""
    where_keys_are: str = "keys are CONSUMER#KEY, as `list` shows them"

    def __init__(self, *stores: Store) -> None:
        self.stores = stores

    def store_of(self, key: str) -> Store:  # noqa: ARG002 - there is one
        """Return the store that has the record of a key."""
        return self.stores[0]

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────

    def at(self, keys: Iterable[str]) -> Iterator[Record]:
        """Yield the records that exist under keys, which are read together."""
        wanted = {*keys}
        for store in self.stores:
            of_store = [key for key in wanted if self.store_of(key) is store]
            yield from records_at(store, of_store)

    def by_key(self, keys: Iterable[str]) -> dict[str, Record]:
        """Return the records that exist under keys, by key."""
        return {record.key: record for record in self.at(keys)}

    def read(self, key: str) -> Record | None:
        """Return the record of a key; None if there is none."""
        return next(self.at([key]), None)

    def named(self, keys: Collection[str]) -> list[Record]:
        """Return the records of keys, in the order of the keys.

        Raises:
            NoRecordError: one of them has none.
        """
        found = self.by_key(keys)
        missing = {*keys} - found.keys()
        if missing:
            raise NoRecordError(f"there is no record of {min(missing)!r}: {self.where_keys_are}")
        return [found[key] for key in sorted(found)]

    def chosen(self, choice: Choice, now_ms: int, *, index: str | None = None) -> Iterator[Record]:
        """Yield the records that are meant, without those that are forgotten.

        Args:
            choice: says which. Keys that it names have to be there.
            now_ms: epoch milliseconds.
            index: of a DynamoDB table, by ``unsettledSince``: has only what waits for an operator.

        Raises:
            NoRecordError: a key that the choice names has none.
        """
        found: Iterable[Record] = (
            self.named(choice.keys) if choice.keys else self._all(choice, index)
        )
        for record in found:
            if choice.has(record, now_ms) and not is_forgotten(record, now_ms):
                yield record

    def _all(self, choice: Choice, index: str | None) -> Iterator[Record]:
        stores = self.stores
        if choice.consumer is not None:
            stores = (self.store_of(f"{choice.consumer}#"),)
        for store in stores:
            yield from records_in(
                store, consumer=choice.consumer, status=choice.status, index=index
            )

    def explain(self, record: Record, now: datetime) -> Explained:
        """Return a record with its meaning at a time, by the policy of its consumer if known."""
        return explain(record, now, self.attempts)

    # ── Changing ──────────────────────────────────────────────────────────────────────────────────

    def preview(
        self, choice: Choice, plan: Planner, now_ms: int, *, index: str | None = None
    ) -> Preview:
        """Return what would be done with the records that are meant.

        Raises:
            ChangeRefusedError: a record that was named by its key cannot be changed so.
            NoRecordError: a key that the choice names has none.
        """
        planned = []
        left_alone = Counter[str]()
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        for record in self.chosen(choice, now_ms, index=index):
            try:
                planned.append(plan(record, self.explain(record, now)))
            except ChangeRefusedError as refused:
                if choice.keys:
                    raise
                left_alone[_without_its_key(refused, record)] += 1
        planned.sort(key=lambda each: each.seen.key)
        return Preview(planned, left_alone)

    def carry_out(
        self, planned: Planned, *, window: int = 30 * DAY, clock: Clock = epoch_ms
    ) -> bool:
        """Write what is planned; return whether the record was still as it was read.

        ``window`` says for how many seconds the record of a key that runs again is kept.
        """
        if planned.left is None:
            return self.forget(planned.seen, clock())
        record = released(planned.left, new_owner(), clock(), window)
        return self.swap(planned.seen, record)

    def swap(self, seen: Record, record: Record) -> bool:
        """Write a record over one that was read, if that is still so; return whether it was."""
        there = self.store_of(seen.key).compare_and_swap(seen, record)
        return there is not None and there.owner == record.owner

    def forget(self, seen: Record, now_ms: int) -> bool:
        """Forget a key whose record is still as it was read; return whether it was."""
        return self.swap(seen, forgotten(seen, new_owner(), now_ms))


def _without_its_key(refused: ChangeRefusedError, record: Record) -> str:
    """Return why a record is left alone, in words that many records share."""
    text = str(refused).removeprefix(f"{record.key} ")
    return text.partition(":")[0]


def revision_of(record: Record | None) -> str:
    """Return a text that changes with every change of a record, but for renewed leases."""
    if record is None:
        return "none"
    return f"{record.status}, attempt {record.attempt}, owner {record.owner}"


def answer_of(done: str | None, *, not_done: bool) -> Stored | Answer:
    """Return what an operator says of a call: its result as text, or that it was not made.

    Raises:
        ChangeRefusedError: neither was said, or both, or the result is not JSON.
    """
    if (done is not None) is not_done:
        raise ChangeRefusedError("give --done with the call's result as JSON, or --not-done")
    if done is None:
        return NOT_DONE
    try:
        return Stored(as_stored(done))
    except ValueError as error:
        raise ChangeRefusedError(
            f"{done!r} is not JSON, nor what recovery.stored_form(result) returns: write a text as "
            f"'\"text\"', and no result as null ({error})"
        ) from None
