"""A customer is erased, days after their last ride, or too early: then the operator is refused."""

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from ops.erasure import ERASED, erase
from ops.stack import OperatorError
from tests.world.aws import stack_of
from tests.world.engine.scheduler import Machine

if TYPE_CHECKING:
    from tests.world.run import World

_HALF: Final = 0.5
_TABLES: Final = (
    "BookingTable",
    "AssignmentTable",
    "PaymentTable",
    "OutboxTable",
    "IdempotencyTable",
    "RideHistoryTable",
    "OperatorTable",
)
_NAMES: Final = ("customerID", "responseData", "error", "event", "entry", "owner", "ownerCustomer")
"""The attributes that may name a customer. A key may: it is what is left."""


def erase_some(world: "World") -> None:
    """Have an operator erase about half of the customers."""
    for person in world.people:
        number = person.lived.life.number
        if not person.lived.life.is_inherited and world.cloud.roll(f"erased {number}") < _HALF:
            work = partial(_erase, world, f"customer_{number}")
            world.cloud.simulation.spawn(Machine(f"operator-erases-{number}"), work)


def _erase(world: "World", customer: str) -> None:
    if erased(world, customer):
        world.cloud.use("operator: erase")


def erased(world: "World", customer: str) -> bool:
    """Erase a customer; return False if that is refused, or there was nothing to erase."""
    try:
        erasure = erase(stack_of(world), customer).do()
    except OperatorError as error:
        world.cloud.say(f"erases nothing: {error}")
        return False
    world.cloud.say(f"erases {customer}: {erasure.rides}")
    world.erased |= dict.fromkeys(erasure.rides, customer)
    return bool(erasure.rides)


def keys(world: "World") -> set[str]:
    """Return the keys of the records that an erasure completed: their events never take effect."""
    records = [*world.table("IdempotencyTable"), *world.table("RideHistoryTable")]
    return {str(each["idempotencyKey"]) for each in records if each.get("owner") == ERASED}


def problems(world: "World") -> Iterator[str]:
    """Yield what still names an erased customer, after everything was replayed and redriven."""
    for ride, customer in world.erased.items():
        name = json.dumps(customer)
        for table in _TABLES:
            for item in world.table(table):
                values = [item[each] for each in _NAMES if each in item]
                if name in json.dumps(values, default=str).replace("\\", ""):
                    yield f"{customer} of {ride} was erased, and {table} names them"
        for queue in world.queues.by_name.values():
            if any(name in message.body.replace("\\", "") for message in queue.messages):
                yield f"{customer} of {ride} was erased, and {queue.spec.name} names them"
