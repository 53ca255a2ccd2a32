"""Reports how deliveries end: to the observer, and to the dead-letter queue for events that must not run again."""

from collections.abc import Callable

from idempotency import observation
from idempotency.dead_letters import QUARANTINED, UNKNOWN, DeadLetter, DeadLetters
from idempotency.delivery import POSTPONED, Answer, Delivery
from idempotency.errors import describe
from idempotency.observation import Observation, Observer
from idempotency.operation import downstream_key
from idempotency.record import Record, unknown_calls
from idempotency.stores import Store


class Reports:
    """The reports of one consumer."""

    def __init__(self, consumer: str, store: Store, observe: Observer, dead_letters: DeadLetters | None) -> None:
        self._consumer = consumer
        self._store = store
        self._observe = observe
        self._dead_letters = dead_letters

    def report(self, delivery: Delivery, answer: Answer) -> Answer:
        """Observe how a delivery ended; return the answer, or raise its error. A postponed delivery has not ended."""
        if answer.outcome == POSTPONED:
            return answer
        if self._observe is not observation.ignore:
            number = 0 if answer.record is None else answer.record.attempt
            outcome = answer.outcome
            if not delivery.protected and outcome in observation.COMMITTED:
                outcome = observation.UNPROTECTED
            self._observe(
                Observation(self._consumer, outcome, delivery.key, number, delivery.id, answer.reason, delivery.labels)
            )
        if answer.error is not None:
            raise answer.error
        return answer

    def observed[**P, T](
        self, delivery: Delivery, step: Callable[P, T | Answer], *args: P.args, **kwargs: P.kwargs
    ) -> T | Answer:
        """Perform a step of a delivery; report an answer, or the error with which the delivery ends instead."""
        try:
            ended = step(*args, **kwargs)
        except Exception as error:
            self.report(delivery, Answer(observation.FAILED, None, describe(error)))
            raise
        return self.report(delivery, ended) if isinstance(ended, Answer) else ended

    def unread(self, delivery_id: str, reason: str, outcome: str = observation.FAILED) -> None:
        """Observe a message that could not be read: it has no key."""
        self._observe(Observation(self._consumer, outcome, None, 0, delivery_id, reason))

    def reject(self, delivery_id: str, reason: str, error: Exception, event: object) -> None:
        """Send a message that is at fault itself to the dead-letter queue; without one, raise ``error``."""
        if self._dead_letters is None:
            self.unread(delivery_id, reason)
            raise error
        self._dead_letters.send(DeadLetter(reason, describe(error), self._consumer, None, 0, event))
        self.unread(delivery_id, reason, observation.DEAD_LETTERED)

    def give_up(self, delivery: Delivery, reason: str, error: Exception, record: Record | None) -> Answer:
        """Send the event to the dead-letter queue, then flag the record, then acknowledge."""
        if self._dead_letters is None or not delivery.dead_letters:
            return Answer(observation.FAILED, record, describe(error), error)
        # The flag belongs to the record's own quarantine, not to another event that shares the key.
        poison = record if reason in (QUARANTINED, UNKNOWN) else None
        if poison is None or not poison.dead_lettered:
            number = 0 if record is None else record.attempt
            dead_letter = DeadLetter(
                reason, _message(error, poison), self._consumer, delivery.key, number, delivery.event
            )
            self._dead_letters.send(dead_letter)
            if poison is not None:
                self._store.compare_and_swap(poison, poison._replace(dead_lettered=True), until_ms=delivery.deadline_ms)
        return Answer(observation.DEAD_LETTERED, record, reason, None if delivery.acknowledges else error)


def _message(error: Exception, poison: Record | None) -> str:
    """Return what a dead letter says: the error, and the external calls whose outcome is unknown."""
    names = [] if poison is None else unknown_calls(poison)
    calls = [f"{name} (downstream key {downstream_key(poison.key, name)})" for name in names if poison is not None]
    return f"{describe(error)}; unknown: {', '.join(calls)}" if calls else describe(error)
