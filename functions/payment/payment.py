"""Reserves the money for each ride with a car, takes it when the ride is over, or gives it back.

`payments` decides, a `Gateway` is asked, and `payment_table` writes what follows.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import payments
from carride.consumer import SagaSettings, ride_events
from carride.dynamodb import DynamoDB
from carride.events import RideEvent
from carride.facts import CarAssigned
from carride.ride import Ride
from carride.settings import from_environment
from carride.telemetry import count
from carride_idempotency import (
    Consumer,
    Operation,
    RetryableError,
    dynamodb_transport,
    open_store,
)
from gateway import (
    Call,
    Gateway,
    GatewayAccountError,
    GatewayError,
    GatewayRefusedError,
    Intent,
    Known,
    Reservation,
    Stands,
)
from gateway_access import Access, Bearer, signed
from payment_table import (
    PaymentChangedError,
    Seen,
    effects,
    read_payment,
    record_duty,
    record_payment,
)
from payments import Action, Decision, Payment, State, UnexpectedPaymentError
from stripe_gateway import StripeGateway

_DECISIONS: Final = 5
"""How often a run decides again because another one has changed the payment."""
_CLOCKS_DIFFER: Final = timedelta(minutes=10)
_LOOKBACK: Final = timedelta(days=35)
"""How old a payment may be that nobody has recorded: a table is restored to 35 days ago at most."""


class Settings(SagaSettings, frozen=True, kw_only=True):
    """The function's environment."""

    payment_table: str
    payment_gateway_url: str = ""
    # Whether it is a Lambda function URL, which takes signed requests only.
    payment_gateway_signed: bool = False
    payment_gateway_secret_arn: str = ""
    lease_seconds: float = 30.0


def make_handler(
    settings: Settings,
    gateway: Gateway,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    table = settings.payment_table
    outbox = settings.outbox()
    transport = dynamodb_transport()
    client = DynamoDB(transport)
    policy = payments.payment_policy(settings.lease_seconds)
    store = open_store(settings.idempotency_store, transport=transport)
    consumer = Consumer("payment", store, **ride_events(settings, policy))

    def ask_and_decide(event: RideEvent, operation: Operation) -> tuple[Seen, Decision]:
        """Ask the gateway for what an event needs, and decide what follows, from one reading.

        The result has the payment's row as it is after what this run has recorded: `effects` writes
        only if that row is unchanged.

        Raises:
            PaymentChangedError: another run has changed the payment meanwhile.
        """
        seen = read_payment(client, table, event.subject)
        before = seen.payment
        action = payments.plan(before, event.data)
        if action in {Action.REFUND, Action.UNDO}:
            seen = record_duty(client, table, event, seen, now=now())

        def record(intent: Intent) -> None:
            nonlocal seen
            seen = record_payment(client, table, event, seen, intent, now=now())

        call = Call(operation.deadline_ms, lambda: operation.lost)
        steps = Steps(gateway, call, event.data, _since(event, now()), record)
        try:
            decision = _decided(steps, action, before)
        except (GatewayError, UnexpectedPaymentError) as error:
            # The answer may not fit because another run has asked for something meanwhile.
            known = read_payment(client, table, event.subject)
            if (known.stored, known.payment) != (seen.stored, seen.payment):
                raise PaymentChangedError(f"{event.subject}: {error}") from error
            raise
        return seen, decision

    def ask_until_decided(event: RideEvent, operation: Operation) -> tuple[Seen, Decision]:
        """Ask and decide, again if another run has changed the payment meanwhile."""
        for _ in range(_DECISIONS):
            try:
                return ask_and_decide(event, operation)
            except PaymentChangedError:
                continue
        raise RetryableError(f"{event.subject} was changed {_DECISIONS} times meanwhile")

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        seen, decision = ask_until_decided(event, operation)
        writes = effects(table, event, seen, decision, outbox=outbox, now=now())
        operation.write(*writes)

    return handler


class Steps:
    """What one run asks the gateway for about a ride.

    Args:
        gateway, call: who is asked, for which attempt.
        ride: the ride, as the event has it.
        since: when a payment of the ride was made at the earliest.
        record: records a prepared payment, before it is confirmed.
    """

    def __init__(
        self,
        gateway: Gateway,
        call: Call,
        ride: Ride,
        since: datetime,
        record: Callable[[Intent], None],
    ) -> None:
        self.ride = ride
        self._gateway = gateway
        self._call = call
        self._since = since
        self._record = record

    def carry_out(self, action: Action, seen: Payment) -> Intent | None:
        """Ask for what is planned, and return the payment as it is afterwards.

        The result is None if nothing was asked for, or if there was nothing to undo. Asked again,
        the gateway answers the same.

        Raises:
            GatewayRefusedError: No payment could be prepared.
        """
        match action:
            case Action.NOTHING:
                return None
            case Action.AUTHORIZE:
                return self._reserve(seen)
            case Action.AUTHORIZE_AND_CAPTURE:
                reserved = self._reserve(seen)
                if reserved.stands is not Stands.HELD:
                    return reserved
                known = _known(self.ride, reserved)
                return self._gateway.capture(self._call, known, payments.due(seen, self.ride))
            case Action.CAPTURE:
                price = payments.due(seen, self.ride)
                return self._gateway.capture(self._call, self._recorded(seen), price)
            case Action.REFUND | Action.UNDO | Action.RELEASE:
                return self.end(action, seen)

    def end(self, action: Action, seen: Payment) -> Intent | None:
        """End the ride's payment for good; None if there is none."""
        if seen.payment_id is not None:
            known = self._recorded(seen)
        else:
            ride = self.ride
            found = self._gateway.find(self._call, ride.order_id, ride.customer_id, self._since)
            if found is None or found.stands in {Stands.RETURNED, Stands.ENDED}:
                return found
            known = _known(ride, found)
        taken = seen.state is State.CAPTURED
        gives_back = action is not Action.RELEASE
        return self._gateway.end(self._call, known, taken=taken, gives_back=gives_back)

    def _reserve(self, seen: Payment) -> Intent:
        """Reserve what is due, under an id that is recorded."""
        if seen.payment_id is not None:
            return self._gateway.reserve(self._call, self._recorded(seen))
        ride = self.ride
        due = payments.due(seen, ride)
        reservation = Reservation(ride.order_id, ride.customer_id, due, ride.currency)
        prepared = self._gateway.prepare(self._call, reservation, self._since)
        self._record(prepared)
        return self._gateway.reserve(self._call, _known(ride, prepared))

    def _recorded(self, seen: Payment) -> Known:
        amount = seen.amount or 0
        return Known(self.ride.order_id, seen.payment_id or "", amount, seen.currency or "")


def _decided(steps: Steps, action: Action, before: Payment) -> Decision:
    """Carry out an action, and decide what follows."""
    ride: Any = steps.ride
    try:
        intent = steps.carry_out(action, before)
    except GatewayRefusedError as refusal:
        if action not in {Action.AUTHORIZE, Action.AUTHORIZE_AND_CAPTURE}:
            raise
        count("payment", {"DeclinedByRequest": 1})
        return payments.refuse(before, ride, refusal.reason)
    except GatewayAccountError as refusal:
        if not payments.may_be_given_up(ride, action):
            raise
        with suppress(GatewayAccountError):  # then it is let go when the hold ends
            intent = steps.end(Action.RELEASE, before)
            if intent is not None and intent.stands is Stands.TAKEN:
                return payments.conclude(before, ride, action, intent)
        return payments.refuse(before, ride, refusal.reason)
    return payments.conclude(before, ride, action, intent)


def _known(ride: Ride, intent: Intent) -> Known:
    return Known(ride.order_id, intent.payment_id, intent.amount, intent.currency)


def _since(event: RideEvent, now: datetime) -> datetime:
    """Return when a payment that is not recorded was made at the earliest.

    The first event that needs one finds what its own attempts have made. Any other may come after a
    table was restored.
    """
    if isinstance(event.data, CarAssigned):
        return min(event.time, now) - _CLOCKS_DIFFER
    return now - _LOOKBACK


def gateway_of(settings: Settings) -> StripeGateway:
    """Return the gateway of the settings, without asking for anything, not even for a secret."""
    return StripeGateway(settings.payment_gateway_url, _access_of(settings))


def _access_of(settings: Settings) -> Access | None:
    """Return what authorises requests to the gateway of the settings."""
    if settings.payment_gateway_signed:
        from botocore.session import get_session  # noqa: PLC0415 - signatures need it, and nothing else

        return signed(get_session(), settings.aws_region)
    if settings.payment_gateway_secret_arn:
        return Bearer(settings.payment_gateway_secret_arn)
    return None


_settings = from_environment(Settings)
handler = make_handler(_settings, gateway_of(_settings))
