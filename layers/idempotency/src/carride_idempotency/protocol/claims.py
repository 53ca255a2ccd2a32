"""The claim that a running attempt holds: the record as it was last written, and its lease."""

import os
from collections.abc import Callable
from threading import Lock

from carride_idempotency.clock import Clock
from carride_idempotency.errors import UnfinishedWorkError
from carride_idempotency.protocol.decision import ClaimRequest, renewed
from carride_idempotency.record import IN_PROGRESS, Record
from carride_idempotency.stores import Store


class HeldClaim:
    """One attempt's claim, which heartbeats and external calls write while the handler runs.

    In atomic mode there is no claim: ``lease_ms`` is None, and nothing is written. A process that
    was forked during the run has a copy. For the copy the run has ended: it takes no step of it.
    """

    __slots__ = (
        "_has_ended",
        "_is_taken",
        "_process",
        "_store",
        "begun_calls",
        "clock",
        "is_first",
        "lease_ms",
        "lock",
        "open_calls",
        "promised_calls",
        "record",
        "request",
    )

    record: Record
    """The claim as it was last sent to the store, and what became known of external calls since."""
    is_first: bool
    """Whether no earlier attempt at the key is known."""
    lease_ms: int | None
    """When the lease ends that the store has confirmed."""
    begun_calls: set[str]
    """The names of the external calls of this run."""
    promised_calls: set[str]
    """The names of those that a coroutine has asked for, and not awaited yet."""
    open_calls: set[str]
    """The names of those that have begun, and neither returned nor raised."""
    lock: Lock
    """Guards the end of the run against its threads, and `record` against heartbeats. It is held
    during no request."""

    def __init__(
        self,
        record: Record,
        request: ClaimRequest,
        store: Store,
        clock: Clock,
        *,
        claimed: bool,
        first: bool,
    ) -> None:
        self.record = record
        self.request = request
        self.clock = clock
        self.is_first = first
        self.lease_ms = record.lease_ms if claimed else None
        self.begun_calls = set()
        self.promised_calls = set()
        self.open_calls = set()
        self.lock = Lock()
        self._has_ended = False
        self._process = os.getpid()
        self._store = store
        self._is_taken = False

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended: what it registers or calls now would be lost."""
        return self._has_ended or self._is_of_another_process()

    def _is_of_another_process(self) -> bool:
        return self._process != os.getpid()

    @property
    def is_lost(self) -> bool:
        """Whether another attempt has taken the claim over, or may because the lease has ended."""
        if self._is_taken:
            return True
        return self.lease_ms is not None and self.clock() > self.lease_ms

    def renew(self) -> bool:
        """Renew the lease in one try, and return whether the claim still holds for this run."""
        if self.has_ended:
            return False
        if self.lease_ms is not None and not self._is_taken:
            beat = self.change(lambda claim: renewed(claim, self.request, self.clock()))
            self.write(beat, until_ms=beat.updated_ms)  # one try: the next beat is the retry
        return not self.is_lost

    def end(self) -> list[str]:
        """End the run; return the names of its external calls that are under way.

        The run takes no further step of a call, and no further effect.

        Raises:
            UnfinishedWorkError: another process has begun it, and alone ends it.
        """
        if self._is_of_another_process():
            raise UnfinishedWorkError(
                f"{self.record.key}: this process was forked during the run, which the process "
                "that began it ends: end a child with os._exit, or use multiprocessing"
            )
        with self.lock:
            self._has_ended = True
            return sorted(self.open_calls)

    def change(self, change: Callable[[Record], Record]) -> Record:
        """Change what is known of the claim, without writing it, and return it."""
        with self.lock:
            self.record = change(self.record)
            return self.record

    def write(self, claim: Record, until_ms: int | None) -> None:
        """Write the claim, or note that it is lost."""
        found = self._store.update_if_owner(claim, until_ms=until_ms)
        if found is not None and found.owner == claim.owner and found.status == IN_PROGRESS:
            self.lease_ms = claim.lease_ms
        else:
            self._is_taken = True
