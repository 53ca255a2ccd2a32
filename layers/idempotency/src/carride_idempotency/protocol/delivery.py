"""What the protocol is told about one delivery, how that ends, and who hears of it."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from carride_idempotency import dead_letters, observation
from carride_idempotency.clock import Clock
from carride_idempotency.dead_letters import DeadLetter, DeadLetters
from carride_idempotency.errors import ResultOmittedError, describe
from carride_idempotency.keys import downstream_key
from carride_idempotency.observation import Observation, Observers, observers_in
from carride_idempotency.protocol.letter_marks import LetterMarks
from carride_idempotency.record import COMPLETED, FAILED, NO_RESULT, Record, unknown_calls
from carride_idempotency.sources import Envelope
from carride_idempotency.stores import Store

_COMPLAINTS_APART_MS: Final = 60_000
"""An observer that always raises is logged once a minute."""
POSTPONED: Final = "Postponed"
"""The outcome of a delivery that runs later in the same invocation. It is not observed."""


class Delivery(NamedTuple):
    """What the protocol must know about one delivery. Times are epoch milliseconds."""

    key: str
    fingerprint: str | None
    id: str | None
    """The transport's own id, by which a retry of the same delivery is recognised."""
    deadline_ms: int | None
    acknowledges: bool
    """The caller is a transport: it delivers again whatever raises, and forgets whatever does
    not."""
    comes_again: bool = False
    """The transport is known to deliver this again until it is acknowledged. A synchronous caller
    is not."""
    remembered: bool = False
    """Its id names this delivery, and nobody can ask for it again: see `warm_cache`."""
    postpones: bool = False
    """If an earlier attempt at the key crashed, answer POSTPONED and write nothing."""
    claims: bool = False
    """Claim the key even if the policy is atomic, so that a crash is visible in the record."""
    protected: bool = True
    """The delivery has an idempotency key. Without one it runs under a key that no other delivery
    has."""
    repeats: bool = False
    """Its sender gets each error at once, and can repeat it. So only its own quarantine is
    dead-lettered, and that ends with the window."""
    context: Any = None
    replayed: bool = False
    sent_ms: int | None = None
    expires_ms: int | None = None
    event: object = None
    """What a dead letter and a kept failure hold."""
    message: Any = None
    """The raw message or request, as the transport delivered it; None for calls."""
    labels: Mapping[str, str] = observation.NO_LABELS
    """For the observer; the protocol ignores them."""


class Rejection(NamedTuple):
    """A message that is at fault itself."""

    delivery_id: str | None
    """None if the message does not say it."""
    reason: str
    """A code of `dead_letters`."""
    error: Exception
    event: object
    """What the dead letter holds."""
    envelope: Envelope | None
    """EventBridge's, if the message has one."""


class DeliveryAnswer(NamedTuple):
    """How a delivery ended."""

    outcome: str
    record: Record | None
    reason: str | None = None
    error: Exception | None = None
    """What to raise to the caller; None if the delivery can be acknowledged."""

    @property
    def attempt(self) -> int:
        """The number of the attempt; 0 without a record."""
        return 0 if self.record is None else self.record.attempt

    def value(self) -> Any:
        """Return the result of the committed run.

        Raises:
            ResultOmittedError: the run was committed without its value.
            UndecodableResultError: the stored result cannot be rebuilt.
        """
        if self.record is None or self.record.status != COMPLETED:
            return None
        if self.record.result is None:
            raise ResultOmittedError(self.record.key, self.record.error)
        if self.record.result == NO_RESULT:
            return None
        from carride_idempotency.stores import codec

        return codec.decode(self.record.result)


def unrecorded(error: Exception, why: Exception, record: Record | None) -> DeliveryAnswer:
    """Answer with the handler's own error: its failure could not be recorded or dead-lettered."""
    error.add_note(f"This failure could not be recorded: {describe(why)}")
    return DeliveryAnswer(observation.FAILED, record, describe(error), error)


def kind_of_run(replaced: Record | None) -> str:
    """Return what to call a committed run, by the record that its claim replaced."""
    if replaced is None or replaced.status == COMPLETED:
        return observation.NEW
    if replaced.status == FAILED:
        return observation.RETRIED
    return observation.TAKEOVER


class Reports:
    """Reports how one consumer's deliveries end: to the observer, and to the dead-letter queue."""

    def __init__(
        self,
        consumer: str,
        store: Store,
        observe: Observers,
        dead_letters: DeadLetters | None,
        marks: LetterMarks,
        *,
        clock: Clock,
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._observers = observers_in(observe)
        self._dead_letters = dead_letters
        self._marks = marks
        self._clock = clock
        self._complained_ms: int | None = None
        """When an observer's error was logged."""

    def report(self, delivery: Delivery, answer: DeliveryAnswer) -> DeliveryAnswer:
        """Observe how a delivery ended; return the answer, or raise its error.

        A postponed delivery has not ended.
        """
        if answer.outcome == POSTPONED:
            return answer
        self._observe_end(delivery, answer)
        if answer.error is not None:
            raise answer.error
        return answer

    def _observe(self, seen: Observation) -> None:
        """Tell each observer. What one raises is logged: the delivery and the others go on."""
        for observer in self._observers:
            try:
                observer(seen)
            except Exception as error:  # noqa: BLE001 - raised by the observer's own code
                self._complain(error)

    def _complain(self, error: Exception) -> None:
        now_ms = self._clock()
        if self._complained_ms is not None and now_ms - self._complained_ms < _COMPLAINTS_APART_MS:
            return
        self._complained_ms = now_ms
        import logging

        logging.getLogger("carride_idempotency").error(
            "%s: observe= raised, so outcomes of deliveries are missing: mend the observer",
            self._consumer,
            exc_info=error,
        )

    def _observe_end(self, delivery: Delivery, answer: DeliveryAnswer) -> None:
        if not self._observers:
            return
        outcome = answer.outcome
        if not delivery.protected and outcome in observation.COMMITTED:
            outcome = observation.UNPROTECTED
        self._observe(
            Observation(
                consumer=self._consumer,
                outcome=outcome,
                key=delivery.key,
                attempt=answer.attempt,
                delivery=delivery.id,
                reason=answer.reason,
                labels=delivery.labels,
            )
        )

    def raised(self, delivery: Delivery, error: Exception) -> None:
        """Observe a delivery that ended with ``error`` instead of an answer."""
        self._observe_end(delivery, DeliveryAnswer(observation.FAILED, None, describe(error)))

    def unread(self, delivery_id: str | None, reason: str) -> None:
        """Observe a message that could not be read: it has no key, and comes again."""
        self._observe(Observation(self._consumer, observation.FAILED, None, 0, delivery_id, reason))

    def _rejected(
        self, rejection: Rejection, reason: str, outcome: str = observation.FAILED
    ) -> None:
        """Observe a message that is at fault itself: EventBridge's id names it, if it has one."""
        self._observe(
            Observation(
                consumer=self._consumer,
                outcome=outcome,
                key=None,
                attempt=0,
                delivery=rejection.delivery_id,
                reason=reason,
                event_id=rejection.envelope.id if rejection.envelope else None,
            )
        )

    def reject(self, rejection: Rejection, *, until_ms: int | None) -> str:
        """Send a message that is at fault itself to the dead-letter queue; return the outcome.

        A replay of it is a duplicate while the letter is there. Without a queue, raise its error.
        """
        if self._dead_letters is None:
            self._rejected(rejection, rejection.reason)
            raise rejection.error
        try:
            outcome = self._send_once(rejection, self._dead_letters, until_ms)
        except Exception as error:
            self._rejected(rejection, describe(error))
            raise
        self._rejected(rejection, rejection.reason, outcome)
        return outcome

    def _send_once(self, rejection: Rejection, queue: DeadLetters, until_ms: int | None) -> str:
        """Send the letter of a rejected message, unless a replay finds it there."""
        envelope = rejection.envelope
        if self._marks.recognise(envelope, until_ms):
            return observation.DUPLICATE
        sent_ms = self._clock()
        text = describe(rejection.error)
        queue.send(DeadLetter(rejection.reason, text, self._consumer, None, 0, rejection.event))
        self._marks.write(envelope, sent_ms, until_ms)
        return observation.DEAD_LETTERED

    def give_up(
        self, delivery: Delivery, reason: str, error: Exception, record: Record | None
    ) -> DeliveryAnswer:
        """Send the event to the dead-letter queue, then mark its record, then acknowledge."""
        # The mark belongs to the record's own quarantine, not to another event of the same key.
        is_own = reason in (dead_letters.QUARANTINED, dead_letters.UNKNOWN)
        quarantine = record if is_own else None
        if quarantine is not None and quarantine.dead_lettered:
            return _told_before(delivery, quarantine, error)
        queue = self._dead_letters if is_own or not delivery.repeats else None
        if queue is None:
            outcome = observation.QUARANTINED if is_own else observation.FAILED
            return DeliveryAnswer(outcome, record, _message(describe(error), quarantine), error)
        dead_letter = DeadLetter(
            reason=reason,
            message=_message(_cause(error, quarantine), quarantine),
            consumer=self._consumer,
            key=delivery.key,
            attempt=0 if record is None else record.attempt,
            event=delivery.event,
        )
        queue.send(dead_letter)
        if quarantine is not None:
            marked = quarantine._replace(dead_lettered=True)
            self._store.compare_and_swap(quarantine, marked, until_ms=delivery.deadline_ms)
        unacknowledged = None if delivery.acknowledges else error
        return DeliveryAnswer(observation.DEAD_LETTERED, record, reason, unacknowledged)


def _told_before(delivery: Delivery, quarantine: Record, error: Exception) -> DeliveryAnswer:
    """Answer a delivery of a quarantined key whose letter was sent; a caller gets the error."""
    if delivery.acknowledges:
        return DeliveryAnswer(observation.QUARANTINED, quarantine)
    return DeliveryAnswer(observation.QUARANTINED, quarantine, describe(error), error)


def _cause(error: Exception, quarantine: Record | None) -> str:
    """Return why an event is given up: the same for each letter of a quarantined key.

    A copy of its event is only refused, which says nothing of what has to be mended.
    """
    if quarantine is None or quarantine.error is None:
        return describe(error)
    return quarantine.error


def _message(text: str, quarantine: Record | None) -> str:
    """Return what a dead letter or an observation says: an error, and calls of unknown outcome."""
    calls = [] if quarantine is None else unknown_calls(quarantine)
    if quarantine is None or not calls:
        return text
    named = [f"{name} (downstream key {downstream_key(quarantine.key, name)})" for name in calls]
    return f"{text}; unknown: {', '.join(named)}"
