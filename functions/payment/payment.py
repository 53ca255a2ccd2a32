"""Reserves the money for each ride with a car, takes it when the ride is over, or gives it back.

`payments` decides, a `PersistentGateway` asks the gateway, and `payment_table` writes what follows.
"""

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any, Final, Literal

import payments
from carride.consumer import SagaSettings, ride_consumer
from carride.dynamodb import DynamoDB
from carride.events import RideEvent
from carride.ride import Ride
from carride.settings import from_environment
from carride_idempotency import Operation, RetryableError, dynamodb_transport
from gateway import Call, Charge, GatewayError, Known, Status, Step
from gateway_access import Access, Bearer, signed
from gateway_client import HttpGateway
from payment_table import (
    PaymentChangedError,
    Seen,
    effects,
    read_payment,
    record_refusal,
    record_request,
)
from payments import Action, Decision, UnexpectedPaymentError
from persistent_gateway import HELD, PersistentGateway, Reservation

_DECISIONS: Final = 5
"""How often a run decides again because another one has changed the payment."""


class Settings(SagaSettings, frozen=True, kw_only=True):
    """The function's environment."""

    payment_table: str
    payment_gateway_url: str = ""
    # "carride" is that of docs/payment-gateway.md.
    payment_gateway_protocol: Literal["carride", "stripe"] = "carride"
    stripe_increments: bool = False
    # Whether it is a Lambda function URL, which takes signed requests only.
    payment_gateway_signed: bool = False
    payment_gateway_secret_arn: str = ""
    lease_seconds: float = 30.0


def make_handler(
    settings: Settings,
    gateway: PersistentGateway,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    table = settings.payment_table
    outbox = settings.outbox()
    transport = dynamodb_transport()
    client = DynamoDB(transport)
    policy = payments.payment_policy(settings.lease_seconds)
    consumer = ride_consumer("payment", settings, policy, transport)

    def decided_once(event: RideEvent, operation: Operation) -> tuple[Seen, Action, Decision]:
        """Ask the gateway for what an event needs, and decide what follows.

        Raises:
            PaymentChangedError: another run has changed the payment meanwhile.
        """
        seen = read_payment(client, table, event.subject)
        action = payments.plan(seen.payment, event.data)
        before = seen.payment
        if action is not Action.NOTHING:
            seen = record_request(client, table, event, seen, action=action, now=now())
        numbers = {step: asked.key_number for step, asked in seen.asked.items()}

        def note_refusal(reason: str) -> None:
            nonlocal seen
            seen = record_refusal(client, table, event, seen, reason)

        call = Call(operation.deadline_ms, lambda: operation.lost, numbers, note_refusal)
        try:
            found = carry_out(gateway, call, action, before, event.data)
            charge = payments.as_refused(found, action, seen.asked)
            unfinished = payments.is_unfinished(seen.asked.get(Step.RESERVE), now())
            decision = payments.conclude(before, event.data, action, charge, unfinished=unfinished)
        except (GatewayError, UnexpectedPaymentError) as error:
            if read_payment(client, table, event.subject).stored != seen.stored:
                raise PaymentChangedError(f"{event.subject}: {error}") from error
            raise
        return seen, action, decision

    def decided(event: RideEvent, operation: Operation) -> tuple[Seen, Action, Decision]:
        """Decide, and decide again if another run has changed the payment meanwhile."""
        for _ in range(_DECISIONS):
            try:
                return decided_once(event, operation)
            except PaymentChangedError:
                continue
        raise RetryableError(f"{event.subject} was changed {_DECISIONS} times meanwhile")

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        seen, action, decision = decided(event, operation)
        writes = effects(table, event, seen, action, decision, outbox=outbox, now=now())
        operation.write(*writes)

    return handler


def carry_out(
    gateway: PersistentGateway, call: Call, action: Action, seen: payments.Payment, ride: Ride
) -> Charge | None:
    """Ask the gateway for what is planned, and return the payment as it is afterwards.

    The result is None if nothing was asked for, or if there was nothing to undo. Asked again, the
    gateway answers the same.
    """
    match action:
        case Action.AUTHORIZE:
            return _authorize(gateway, call, seen, ride)
        case Action.AUTHORIZE_AND_CAPTURE:
            reserved = _authorize(gateway, call, seen, ride)
            return _capture(gateway, call, ride, reserved, payments.due(seen, ride))
        case Action.CAPTURE if seen.payment_id is not None:
            reserved = Charge(
                seen.payment_id, Status.AUTHORIZED, seen.amount or 0, currency=seen.currency
            )
            return _capture(gateway, call, ride, reserved, payments.due(seen, ride))
        case Action.REFUND if seen.payment_id is not None:
            known = Known(ride.order_id, seen.payment_id, seen.currency)
            return gateway.refund(call, known)
        case Action.UNDO:
            return _give_back(gateway, call, ride, HELD)
        case Action.RELEASE:
            return _give_back(gateway, call, ride, {Status.AUTHORIZED})
        case _:
            return None


def _authorize(
    gateway: PersistentGateway, call: Call, seen: payments.Payment, ride: Ride
) -> Charge:
    amount = payments.due(seen, ride)
    reservation = Reservation(ride.order_id, ride.customer_id, amount, ride.currency)
    return gateway.authorize(call, reservation)


def _give_back(
    gateway: PersistentGateway, call: Call, ride: Ride, held: Collection[Status]
) -> Charge | None:
    """Give back what the gateway has for a ride, if its status is among ``held``.

    It may change between the two requests: another event of the ride captures it.
    """
    found = gateway.find(call, ride.order_id, ride.customer_id)
    if found is None or found.payment_id is None:
        return found
    if found.status not in held:
        return found
    known = Known(ride.order_id, found.payment_id, found.currency)
    return gateway.refund(call, known, held)


def _capture(
    gateway: PersistentGateway, call: Call, ride: Ride, charge: Charge, amount: int
) -> Charge:
    """Take ``amount``, which is due, of what is reserved.

    A reservation that is too small is raised first. Where the gateway refuses, less is taken.
    """
    if charge.payment_id is None or charge.status is not Status.AUTHORIZED:
        return charge
    known = Known(ride.order_id, charge.payment_id, charge.currency)
    if amount > charge.amount:
        charge = gateway.adjust(call, known, amount)
    if charge.status is Status.AUTHORIZED:
        charge = gateway.capture(call, known, min(amount, charge.amount))
    if charge.status is Status.DECLINED:
        call.note_refusal(charge.reason or "declined")
        gateway.refund(call, known)  # no event will ask for the reservation again
    return charge


def gateway_of(settings: Settings) -> PersistentGateway:
    """Return the gateway of the settings, without asking for anything, not even for a secret."""
    access = _access_of(settings)
    if settings.payment_gateway_protocol == "stripe":
        from stripe_gateway import StripeGateway  # noqa: PLC0415 - most stacks have another gateway

        increments = settings.stripe_increments
        return StripeGateway(settings.payment_gateway_url, access, increments=increments)
    return HttpGateway(settings.payment_gateway_url, access)


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
