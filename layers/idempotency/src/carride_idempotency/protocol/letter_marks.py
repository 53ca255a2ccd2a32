"""Marks of dead letters: which messages without a key have a letter in the dead-letter queue.

A message that is at fault itself has no record, so a replay of it would send its letter again. Its
mark is a record of its own, written after the letter was sent. A crash between the two leaves no
mark, and a replay then sends a second letter. A mark ends before its queue deletes the letter.

Only replays look for it: they send again what was sent before. A redrive has taken the letter out
of the queue, and must leave a new one if the message is still at fault.
"""

import os

from carride_idempotency.clock import Clock
from carride_idempotency.errors import StoreError
from carride_idempotency.keys import letter_key
from carride_idempotency.record import COMPLETED, NO_RESULT, Record
from carride_idempotency.sources import Envelope
from carride_idempotency.stores import Store


class LetterMarks:
    """The marks of one consumer in one region. A letter is in the queue of one region.

    Args:
        consumer: the consumer's name.
        region: where this process runs.
        store: holds the marks.
        retention_s: how long the dead-letter queue keeps a message. 0: nothing is marked.
        skew_ms: how much two clocks may differ.
        clock: epoch milliseconds.
    """

    def __init__(
        self,
        consumer: str,
        region: str | None,
        store: Store,
        *,
        retention_s: int,
        skew_ms: int,
        clock: Clock,
    ) -> None:
        self._consumer = consumer
        self._region = region
        self._store = store
        self._retention_ms = retention_s * 1000
        self._skew_ms = skew_ms
        self._clock = clock

    def recognise(self, envelope: Envelope | None, until_ms: int | None) -> bool:
        """Return whether this is a replay of a message whose letter is in the queue.

        Raises:
            StoreUnavailableError: the store does not say so in time.
        """
        if envelope is None or not envelope.replayed or not self._retention_ms:
            return False
        mark = self._store.read(self._key(envelope), until_ms=until_ms)
        now_ms = self._clock()
        return mark is not None and (mark.expiry or 0) * 1000 > now_ms + self._skew_ms

    def write(self, envelope: Envelope | None, sent_ms: int, until_ms: int | None) -> None:
        """Mark a message whose letter was sent, no earlier than at ``sent_ms``.

        Without an answer of the store there may be no mark: a replay then sends a second letter.
        """
        if envelope is None or not self._retention_ms:
            return
        mark = self._mark(self._key(envelope), sent_ms)
        try:
            self._put(mark, until_ms)
        except StoreError as error:
            import logging

            logging.getLogger("carride_idempotency").warning(
                "%s: a dead letter could not be marked, so a replay sends it again: %s",
                self._consumer,
                error,
            )

    def _put(self, mark: Record, until_ms: int | None) -> None:
        """Write a mark, unless one lasts as long. The mark of an earlier letter does not."""
        found = self._store.put_if_absent(mark, until_ms=until_ms)
        if (found.expiry or 0) < (mark.expiry or 0):
            self._store.compare_and_swap(found, mark, until_ms=until_ms)

    def _mark(self, key: str, sent_ms: int) -> Record:
        return Record(
            key=key,
            status=COMPLETED,
            owner=os.urandom(16).hex(),
            attempt=1,
            lease_ms=None,
            expiry=(sent_ms - self._skew_ms + self._retention_ms) // 1000,
            fingerprint=None,
            delivery=None,
            region=self._region,
            created_ms=sent_ms,
            updated_ms=sent_ms,
            result=NO_RESULT,
            dead_lettered=True,
        )

    def _key(self, envelope: Envelope) -> str:
        return letter_key(self._consumer, self._region, envelope.id)
