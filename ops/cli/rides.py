"""The verbs that book a ride and drive it over the API, as customers and staff do."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from carride_idempotency import marshalling
from ops import plans
from ops.api import Api, ApiAnswer, Authorize, NoAnswerError
from ops.cli.show import as_fields
from ops.stack import OperatorError, StackRef
from ops.verbs import POSITIVE, Plan, Session, Steps, acts

_BOOKED: Final = 201
_CHANGED: Final = 200
_UNKNOWN: Final = 500
"""From this status on, nobody knows whether the request had an effect."""


@as_fields
class Answered(NamedTuple):
    """The ride, as the API has answered."""

    ride: Mapping[str, Any]

    def to_json(self) -> Mapping[str, Any]:
        """Return the answer."""
        return self.ride


@acts("drive book", "--yes", "--pickup sector_02 --destination sector_10 --price 1450 --yes")
def book(
    session: Session,
    *,
    customer: str = "customer_a",
    pickup: str = "sector_01",
    destination: str = "sector_09",
    price: Annotated[int, POSITIVE] = 1250,
    key: str | None = None,
    token: str | None = None,
) -> Plan[Answered]:
    """Book a ride over the API, as a customer does.

    The request is signed with the credentials of AWS's tools, or carries --token. Whoever books a
    ride owns it. `./carride drive accept`, `start` and `complete` drive it, and payment then
    captures the price.

    Args:
        customer: Id of the customer.
        pickup: Sector where the ride begins.
        destination: Sector where it ends.
        price: The quoted price, in cents.
        key: Idempotency-Key of the request; by default a new one. The same key books no second
            ride.
        token: Token of your issuer, for a stack with JwtIssuer.
    """
    stack = session.stack
    chosen = key or f"book-{plans.new_id()}"
    order = {
        "customerID": customer,
        "pickup": pickup,
        "destination": destination,
        "price": price,
    }
    step = (
        f"book a ride of {customer} from {pickup} to {destination} for {price} cents, "
        f"under the Idempotency-Key {chosen}"
    )

    def send() -> Answered:
        api = Api(stack)
        authorize = api.customer(token)
        request = partial(api.request, "POST", "/carrides", order, key=chosen, authorize=authorize)
        return _sent(request, _BOOKED, f"Run it again with --key {chosen}: it books no second ride")

    return Plan(Steps((step,)), send, (stack,))


@acts("drive accept", "order_01 --yes")
def accept(session: Session, ride: str, /, *, token: str | None = None) -> Plan[Answered]:
    """Accept a ride over the API, as staff do: the company will drive it.

    You sign as the staff role of the stack, which your policies let you assume, or give --token.

    Args:
        ride: Id of the ride, as `./carride drive book` shows it.
        token: Token of a member of staff, for a stack with JwtIssuer.
    """
    return _change(session, ride, "accept", token)


@acts("drive start", "order_01 --yes")
def start(session: Session, ride: str, /, *, token: str | None = None) -> Plan[Answered]:
    """Start an accepted ride over the API, as staff do: the passengers are in the car.

    You sign as the staff role of the stack, which your policies let you assume, or give --token.

    Args:
        ride: Id of the ride.
        token: Token of a member of staff, for a stack with JwtIssuer.
    """
    return _change(session, ride, "start", token)


@acts("drive complete", "order_01 --yes")
def complete(session: Session, ride: str, /, *, token: str | None = None) -> Plan[Answered]:
    """Complete a started ride over the API, as staff do: the passengers have arrived.

    You sign as the staff role of the stack, which your policies let you assume, or give --token.

    Args:
        ride: Id of the ride.
        token: Token of a member of staff, for a stack with JwtIssuer.
    """
    return _change(session, ride, "complete", token)


@acts("drive cancel", "order_01 --reason 'the car broke down' --yes")
def cancel(
    session: Session, ride: str, /, *, reason: str, token: str | None = None
) -> Plan[Answered]:
    """Cancel a ride over the API, as staff do; its owner can only until it has started.

    Dispatch frees the car and payment gives the money back. You sign as the staff role of the
    stack, which your policies let you assume, or give --token.

    Args:
        ride: Id of the ride.
        reason: Why, for people: at most 200 characters. It is published with the event.
        token: Token of a member of staff, for a stack with JwtIssuer.
    """
    return _change(session, ride, "cancel", token, reason=reason)


def _change(
    session: Session, ride: str, action: str, token: str | None, **fields: str
) -> Plan[Answered]:
    """Plan a change of the version of a ride that is booked now; a repeated one has one effect."""
    stack = session.stack
    booking = _booking(stack, ride)
    version = booking["version"]
    key = f"{action}-{ride}-{version}"
    step = f"{action} {ride}, which is {booking['status']}, at version {version}"

    def send() -> Answered:
        api = Api(stack)
        authorize: Authorize = api.staff if token is None else api.customer(token)
        body = {"action": action, "version": version, **fields}
        path = f"/carrides/{ride}"
        request = partial(api.request, "PUT", path, body, key=key, authorize=authorize)
        return _sent(request, _CHANGED, "Run it again: the same change has one effect")

    return Plan(Steps((step,)), send, (stack,))


def _booking(stack: StackRef, ride: str) -> dict[str, Any]:
    """Return a booking as the API's own table has it, read consistently."""
    found = stack.client("dynamodb").get_item(
        TableName=stack.outputs["BookingTableName"],
        Key=marshalling.item({"orderID": ride}),
        ConsistentRead=True,
    )
    if "Item" not in found:
        raise OperatorError(
            f"no ride {ride} was booked over the API of {stack.name}: "
            "`./carride drive book` books one"
        )
    return marshalling.values(found["Item"])


def _sent(call: Callable[[], ApiAnswer], expected: int, again: str) -> Answered:
    """Send a request, and return the ride of its answer; ``again`` says how to repeat it safely."""
    try:
        answer = call()
    except NoAnswerError as error:
        raise OperatorError(f"{error}. {again}") from error
    if answer.status == expected:
        return Answered(answer.content)
    problem = f"the API answered {answer.status}: {answer.content}"
    if answer.status >= _UNKNOWN:
        problem = f"{problem}. {again}"
    raise OperatorError(problem)
