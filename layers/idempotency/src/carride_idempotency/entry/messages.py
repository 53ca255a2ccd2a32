"""Reads messages: makes an event for the handler of each, and a delivery for the protocol."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from carride_idempotency import dead_letters, observation
from carride_idempotency.clock import to_ms
from carride_idempotency.errors import ConfigurationError, MissingKeyError, describe
from carride_idempotency.fingerprint import exact_fingerprint, fingerprint
from carride_idempotency.invocation import LambdaInvocation, current, enter, leave
from carride_idempotency.keys import Extract, TransportId, extractor, record_key
from carride_idempotency.policy import Policy
from carride_idempotency.protocol.delivery import Delivery, DeliveryAnswer, Rejection
from carride_idempotency.protocol.operation import Operation
from carride_idempotency.protocol.run import Runner
from carride_idempotency.protocol.unfinished import finished, registered
from carride_idempotency.sources import (
    Envelope,
    Raw,
    Source,
    envelope_of,
    event_ms,
    require_trigger,
)

_LETTERS_WITHOUT_A_KEY: Final = 3
"""How many messages without a key a process dead-letters before it has found any key."""


class Message[E](NamedTuple):
    """One message that could be read."""

    event: E
    delivery: Delivery


class RejectedMessageError(Exception):
    """Raised for a message that is at fault itself, so that no retry can help.

    ``reason`` is a code of `dead_letters`, and ``cause`` what was raised while it was read.
    """

    def __init__(self, reason: str, cause: Exception) -> None:
        super().__init__(reason, cause)
        self.reason = reason
        self.cause = cause


@dataclass
class Reader[E]:
    """A consumer's settings for reading what is delivered. `Consumer` explains them."""

    consumer: str
    policy: Policy
    key: str | TransportId | Callable[[E], object] | None
    parse: Callable[[Any], E] | None
    payload: str | Callable[[E], object] | None
    occurred: Callable[[E], datetime | None] | None
    expires: Callable[[E], datetime | None] | None
    labels: Callable[[E], Mapping[str, str]] | None

    def __post_init__(self) -> None:
        self._key: Extract | None = None
        if self.key is not None and not isinstance(self.key, TransportId):
            self._key = extractor(self.key, "key")
        self._payload: Extract | None = None
        if self.payload is not None:
            self._payload = extractor(self.payload, "payload")
        self._has_found_a_key = False
        self._without_a_key = 0

    def suspects_its_key(self) -> bool:
        """Count a message without a key; return whether ``key=`` is at fault, and not the message.

        It probably is if no message of this process has had a key. Otherwise such a mistake would
        move all traffic to the dead-letter queue, while the function looks healthy.
        """
        self._without_a_key += 1
        return not self._has_found_a_key and self._without_a_key > _LETTERS_WITHOUT_A_KEY

    def read_message(
        self,
        source: Source,
        raw: Raw,
        invocation: LambdaInvocation,
        delivery_id: str | None,
        *,
        postpones: bool,
    ) -> Message[E]:
        """Read one message.

        Raises:
            RejectedMessageError: it cannot be decoded, ``parse`` raised a ValueError, or its key is
                missing.
            Exception: the consumer's own code failed.
        """
        message = self._decode(source, raw)
        try:
            event: E = message if self.parse is None else self.parse(message)
        except ValueError as error:
            raise RejectedMessageError(dead_letters.CONTRACT, error) from error
        key, protected = self._key_of(source, raw, message, event)
        self._has_found_a_key = self._has_found_a_key or protected
        received = source.attempts(raw)
        delivery = Delivery(
            key=key,
            fingerprint=self._fingerprint(source, message, event),
            id=delivery_id,
            deadline_ms=invocation.deadline_ms,
            acknowledges=True,
            comes_again=source.comes_again(raw),
            remembered=not source.is_log,
            postpones=postpones,
            claims=postpones and received != 1,
            protected=protected,
            context=invocation.context,
            replayed=source.replayed(raw),
            sent_ms=self._sent_ms(source, raw, message, event),
            expires_ms=_ms(self.expires, event),
            event=raw,
            message=raw,
            labels=self.labels_of(event),
        )
        return Message(event, delivery)

    def _key_of(self, source: Source, raw: Raw, message: Any, event: E) -> tuple[str, bool]:
        """Return the record's key, and whether the message has an idempotency key."""
        try:
            if isinstance(self.key, TransportId):
                return self.record_key(_transport_id(source, raw))
            return self.record_key(self.find_key(message, event))
        except MissingKeyError as error:
            missing = MissingKeyError(f"{error}; {self._searched(message)}")
            raise RejectedMessageError(dead_letters.MISSING_KEY, missing) from error

    def _searched(self, message: Any) -> str:
        """Say where the key was looked for, so that a mistake in ``key=`` is seen in the letter."""
        what = f"key={self.key!r}" if isinstance(self.key, str) else "key= (a function)"
        fields = f"the fields {sorted(message)}" if isinstance(message, dict) else "no fields"
        return f"{what:.200} was looked for in a message with {fields:.200}"

    def _fingerprint(self, source: Source, message: Any, event: E) -> str | None:
        if self.payload is not None:
            payload = self.find_payload(message, event)
        else:
            payload = source.payload(message)
        try:
            return fingerprint(payload)
        except (ValueError, RecursionError) as error:
            # A number that JSON does not have, or a message that is nested too deeply.
            raise RejectedMessageError(dead_letters.CONTRACT, error) from error

    def _sent_ms(self, source: Source, raw: Raw, message: Any, event: E) -> int | None:
        """Return when the message was first sent: the oldest time that anything states.

        A message in EventBridge's envelope may be older than the transport that carried it knows.
        """
        times = [_ms(self.occurred, event)]
        try:
            times.append(source.sent_ms(raw))
            if message is not raw:
                times.append(event_ms(message))
        except (ValueError, TypeError, OverflowError) as error:  # what stands there is not a time
            raise RejectedMessageError(dead_letters.CONTRACT, error) from error
        return min([at_ms for at_ms in times if at_ms is not None], default=None)

    def call(self, key: object, payload: object, operation: str | None) -> Delivery:
        """Return the delivery of a call of a function, or of a block."""
        invocation = current()
        name, protected = self.record_key(key, operation)
        return Delivery(
            key=name,
            fingerprint=exact_fingerprint(payload),
            id=None,
            deadline_ms=invocation.deadline_ms,
            acknowledges=False,
            protected=protected,
            context=invocation.context,
            event=payload,
        )

    def record_key(self, key: object, operation: str | None = None) -> tuple[str, bool]:
        """Return a record key, and whether there is an idempotency key.

        Without one, and if the policy runs such messages, the record key is random.

        Raises:
            MissingKeyError: there is none, and the policy does not run such messages.
        """
        try:
            return record_key(self.consumer, key, operation), True
        except MissingKeyError:
            if self.policy.missing_key != "run":
                raise
            return f"{self.consumer}#%none:{os.urandom(16).hex()}", False

    def find_key(self, message: Any, event: E) -> object:
        """Return what ``key=`` finds.

        An expression searches the message, a function is given the event.
        """
        if self._key is None:
            return None
        return self._key(message if isinstance(self.key, str) else event)

    def find_payload(self, message: Any, event: E) -> object:
        """Return what ``payload=`` finds, in the same way; None without it."""
        if self._payload is None:
            return None
        return self._payload(message if isinstance(self.payload, str) else event)

    def labels_of(self, event: E) -> Mapping[str, str]:
        """Return the labels of an event for the observer."""
        if self.labels is None:
            return observation.NO_LABELS
        return self.labels(event)

    def _decode(self, source: Source, raw: Raw) -> Any:
        try:
            return source.message(raw)
        except (ValueError, RecursionError) as error:
            # Invalid JSON, or JSON that is nested too deeply. Text will do where nothing reads it.
            text = None
            if isinstance(self.key, TransportId) and self.parse is None:
                text = source.text(raw)
            if text is None:
                raise RejectedMessageError(dead_letters.CONTRACT, error) from error
            return text
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise _not_an_event(source, raw, error) from error


def _not_an_event(source: Source, event: Any, error: Exception) -> ConfigurationError:
    """Return the error of an event that is not one of the source's."""
    from carride_idempotency.errors import misuse

    return misuse.not_an_event(source, event, error)


class MessageHandler[E]:
    """Handles messages of one source: reads each, and runs the work for it under the protocol."""

    def __init__(
        self,
        reader: Reader[E],
        runner: Runner,
        source: Source,
        work: Callable[[E, Operation], object],
    ) -> None:
        self.source = source
        self._reader = reader
        self._runner = runner
        self._work = work
        self._has_warned = False

    def check(self, event: Raw, delivery_id: str) -> None:
        """Check that an event has the source's shape; otherwise raise a ConfigurationError."""
        try:
            require_trigger(self.source, event)
        except ConfigurationError as error:
            self._runner.reports.unread(delivery_id, describe(error))
            raise

    def records(self, event: Raw, delivery_id: str) -> list[Raw]:
        """Return the records of a batch.

        Raises:
            ConfigurationError: the event is not a batch of the source.
        """
        try:
            return [*self.source.records(event)]
        except (KeyError, TypeError, AttributeError) as error:
            wrong = _not_an_event(self.source, event, error)
            self._runner.reports.unread(delivery_id, describe(wrong))
            raise wrong from error

    def record_id(self, raw: Raw) -> str | None:
        """Return the transport's id of a record; None if the record does not say it."""
        try:
            return self.source.message_id(raw)
        except (KeyError, IndexError, TypeError):
            return None

    def read_message(
        self,
        raw: Raw,
        invocation: LambdaInvocation,
        delivery_id: str | None,
        *,
        postpones: bool = False,
    ) -> Message[E]:
        """Read one message.

        Raises:
            RejectedMessageError: the message is at fault itself: `reject` it.
            Exception: the consumer's own code failed: the message is delivered again.
        """
        try:
            return self._reader.read_message(
                self.source, raw, invocation, delivery_id, postpones=postpones
            )
        except RejectedMessageError:
            raise
        except Exception as error:
            self._runner.reports.unread(delivery_id, describe(error))
            raise

    def reject(
        self,
        rejected: RejectedMessageError,
        invocation: LambdaInvocation,
        raw: Raw,
        delivery_id: str | None,
    ) -> str:
        """Send a message that is at fault itself to the dead-letter queue; return the outcome.

        Raises:
            ConfigurationError: ``key=`` is at fault instead, as far as this process can tell.
        """
        if rejected.reason == dead_letters.MISSING_KEY and self._reader.suspects_its_key():
            error = ConfigurationError(
                f"no message has had a key so far, so check key=: {rejected.cause}"
            )
            self._runner.reports.unread(delivery_id, describe(error))
            raise error from rejected.cause
        token = enter(invocation)
        try:
            until_ms = self._runner.reserve_begins_ms(invocation.deadline_ms)
            rejection = Rejection(
                delivery_id, rejected.reason, rejected.cause, raw, self._envelope(raw)
            )
            return self._runner.reports.reject(rejection, until_ms=until_ms)
        finally:
            leave(token)

    def _envelope(self, raw: Raw) -> Envelope | None:
        try:
            return envelope_of(self.source.message(raw))
        except (ValueError, RecursionError):  # why it was rejected
            return None

    def run_message(self, message: Message[E]) -> DeliveryAnswer:
        """Run the work for one message. What the work returns is not stored.

        A transport does not read it. Log one warning if a synchronous caller may be waiting for it.
        """
        event, delivery = message

        def work(operation: Operation) -> None:
            result = finished(self._work(event, operation))
            if result is not None:
                registered(result)
                if not delivery.comes_again:
                    self._warn_of_lost_result()

        token = enter(LambdaInvocation(delivery.deadline_ms, delivery.context))
        try:
            return self._runner.run_delivery(delivery, work)
        finally:
            leave(token)

    def _warn_of_lost_result(self) -> None:
        """Log one warning that a synchronous caller does not get what the work returns."""
        if self._has_warned:
            return
        self._has_warned = True
        import logging

        logging.getLogger("carride_idempotency").warning(
            "%s: the handler returned a value, and a caller that waits, such as a Task of Step "
            "Functions or a direct invocation, does not get it: decorate a function with "
            "@consumer.function(key=...), and call it from a plain handler",
            self._reader.consumer,
        )


def _transport_id(source: Source, raw: Raw) -> str:
    """Return the transport's id of a message.

    Raises:
        ConfigurationError: the message is not one of the source's.
    """
    try:
        return source.message_id(raw)
    except (KeyError, IndexError, TypeError) as error:
        raise _not_an_event(source, raw, error) from error


def _ms[E](find: Callable[[E], datetime | None] | None, event: E) -> int | None:
    if find is None:
        return None
    time = find(event)
    if time is None:
        return None
    return to_ms(time)
