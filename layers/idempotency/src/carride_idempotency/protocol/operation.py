"""One attempt at one operation, as the handler sees it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from carride_idempotency.errors import ConfigurationError, UnfinishedWorkError
from carride_idempotency.keys import downstream_key
from carride_idempotency.protocol.claims import HeldClaim
from carride_idempotency.stores import Store

if TYPE_CHECKING:
    from carride_idempotency.effects import Effect
    from carride_idempotency.protocol.externals import Probe


class AnyOperation:
    """What `Operation` and `AsyncOperation` have in common. It is immutable.

    `Operation` explains the attributes.
    """

    key: str
    attempt: int
    owner: str
    delivery: str | None
    deadline_ms: int | None
    context: Any
    message: Any
    _held: HeldClaim
    _store: Store
    _effects: list["Effect"]

    def __init__(
        self, held: HeldClaim, store: Store, context: Any = None, message: Any = None
    ) -> None:
        record = held.record
        self.__dict__.update(
            key=record.key,
            attempt=record.attempt,
            owner=record.owner,
            delivery=record.delivery,
            deadline_ms=held.request.deadline_ms,
            context=context,
            message=message,
            _held=held,
            _store=store,
            _effects=[],
        )

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an operation is immutable: {name} cannot be set")

    @property
    def downstream_key(self) -> str:
        """The key for another system: 32 hexadecimal digits, the same for every attempt."""
        return downstream_key(self.key)

    def downstream_key_for(self, step: str) -> str:
        """Return a `downstream_key` for one of several calls to other systems."""
        return downstream_key(self.key, step)

    @property
    def lost(self) -> bool:
        """Whether the claim is lost. Stop the work then.

        A heartbeat found that another attempt has the key, or the lease ended.
        """
        return self._held.is_lost

    def write(self, *effects: "Effect") -> None:
        """Register DynamoDB writes that are committed with the completion, or not at all.

        They are converted and checked now, before the handler does anything that cannot be undone.

        Raises:
            UnfinishedWorkError: the run has ended, so nothing can be committed with it.
            EffectsRejectedError: DynamoDB would refuse them, whatever its tables hold. So it is
                with more than 99 effects beside the record (98 with ``before=``), two on one item,
                more than 4 MB, or a placeholder that no expression uses.
            ConfigurationError: the store has no transactions.
        """
        if not self._store.transactional:
            raise ConfigurationError(
                "this store has no transactions, so effects cannot be committed with the record: "
                "keep this consumer's records in a DynamoDBStore (in tests a MemoryStore(apply=...)"
                "), or write the effects yourself under a condition that recognises a second write"
            )
        from carride_idempotency.effects import prepared, require_one_transaction

        further = [prepared(effect) for effect in effects]
        held = self._held
        self._require_running()  # a child that was forked may have a lock that nobody releases
        with held.lock:  # other threads register effects too, and the run may end
            self._require_running()
            registered = [*self._effects, *further]
            require_one_transaction(held.record, registered, self._store)
            self._effects[:] = registered

    def _require_running(self) -> None:
        if self._held.has_ended:
            raise UnfinishedWorkError(
                f"{self.key}: the operation has ended, and takes no more effects: call write "
                "before the handler returns, or inside the `with` block, and in the process that "
                "runs it"
            )


class Operation(AnyOperation):
    """The attempt that is running. It is immutable, and holds all that belongs to one attempt.

    Attributes:
        key: ``<consumer>#<key>`` of the record, or ``<consumer>/<operation>#<key>`` of a function's
            or block's.
        attempt: 1 for the first run of this key. In atomic mode always 1: the commit finds out
            which attempt it is.
        owner: the owner token of this attempt: random, and new for each claim.
        delivery: the transport's id of this delivery; None if it has none.
        deadline_ms: when the invocation is stopped, in epoch milliseconds; None outside Lambda.
        context: Lambda's context object of the invocation; None outside Lambda.
        message: what the transport delivered, undecoded: a record of a batch, the event or the
            request. A DynamoDB stream's has the ``eventName``. None for functions and blocks.
    """

    def heartbeat(self) -> bool:
        """Renew the lease now, and return whether the claim still holds.

        Long work is renewed in the background. Call this before an external effect that no other
        attempt may overlap.

        Raises:
            StoreError: the store gave no answer, or refused the renewal.
        """
        return self._held.renew()

    def external[T](
        self, name: str, call: Callable[[str], T], probe: "Probe[T] | None" = None
    ) -> T:
        """Make a call to another system, or return what an earlier attempt got from it.

        After a crash the next attempt asks ``probe`` whether the call took effect. Without an
        answer the key is quarantined as UNKNOWN: the call is not made again before an operator has
        settled it.

        Args:
            name: names the call; the same in every attempt, and used once in a run.
            call: gets the `downstream_key_for` this name. It raises a NotDoneError if the other
                system certainly did nothing. After any other error the outcome is unknown: this run
                cannot be completed.
            probe: gets the same key, and returns ``Done(result)``, ``NOT_DONE`` or ``CANNOT_TELL``.
                If it raises, the attempt has failed. Without it one more write precedes the call.

        Returns:
            What ``call`` returned, or ``probe`` found. A later attempt gets an equal value if the
            codec can store it.

        Raises:
            ConfigurationError: the policy makes no claim that outlives the call, or the name was
                used before, or the arguments are not a name and functions.
            UnfinishedWorkError: the run has ended.
            LostLeaseError: another attempt holds the key, or may soon; nothing was called.
            UnknownOutcomeError: nobody can tell whether the call was made.
            StoreError: the intent could not be written; nothing was called.
        """
        from carride_idempotency.protocol.externals import perform

        return perform(self._held, name, call, probe)
