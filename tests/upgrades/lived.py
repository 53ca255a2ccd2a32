"""Rides that a release has served, and the samples that are kept of what it wrote for them.

`python -m tests.upgrades.write VERSION` writes those of this code. Do that with each release, and
keep the earlier ones.
"""

import base64
import json
from contextlib import suppress
from typing import Any, Final

from carride_idempotency.testing.worlds import CRASH_BEFORE, Fault
from gateway import GatewayUnavailableError
from tests.carride.pipe import piped
from tests.functions.world import TABLES, World
from tests.upgrades.samples import FOLDER, Samples

KEPT: Final = ("idempotency", *(table for table in TABLES if table != "points"))
DRIVEN: Final = "customer_a"
"""Their ride has ended and is paid."""
WAITING: Final = "customer_b"
"""Their ride is accepted, has a car and a reservation."""
FAILED: Final = "customer_c"
"""Payment has failed once: its record is FAILED."""
CRASHED: Final = "customer_d"
"""Payment was killed: its record is IN_PROGRESS."""
GIVEN_UP: Final = "customer_e"
"""Payment has used up its attempts: its record is QUARANTINED."""


def lived() -> World:
    """Return a world in which rides were booked, driven, paid, and struck by failures."""
    world = World()
    world.park("car_01", "car_02", "car_03", "car_04", "car_05")
    world.booked("accept", "start", "complete", customer=DRIVEN)
    world.flow()
    for customer in (WAITING, FAILED, CRASHED, GIVEN_UP):
        world.booked("accept", customer=customer)
        if customer == WAITING:
            world.flow()
        else:
            world.flow(lost=lambda consumer, _: consumer == "payment")
    for customer, attempts in ((FAILED, 1), (GIVEN_UP, 3)):
        world.gateway.away = True
        for attempt in range(1, attempts + 1):
            with suppress(GatewayUnavailableError):  # the last attempt is a quarantine
                world.deliver("payment", assigned(world, customer), attempt=attempt)
    world.gateway.away = False
    killed = Fault(CRASH_BEFORE, lambda _, what: what.startswith("TransactWriteItems"))
    world.invoke(
        world.handlers["payment"], assigned(world, CRASHED), delivery="killed", fault=killed
    )
    return world


def assigned(world: World, customer: str) -> dict[str, Any]:
    """Return the event of the car that a customer's ride got."""
    (ride,) = (item for item in world.items("bookings") if item["customerID"] == customer)
    (event,) = (
        each
        for each in world.outbox()
        if each.type == "CarAssigned" and each.subject == ride["orderID"]
    )
    return world.envelope(event)


def restored(samples: Samples) -> World:
    """Return a world whose tables are as a release left them, with today's functions.

    The gateway is not upgraded. It has the payments of the same rides.
    """
    world = World(lived().gateway)
    world.clock.advance((samples.clock_ms - world.clock()) / 1000)
    publish = world.dynamodb.inserted
    world.dynamodb.inserted = lambda _table, _item: None  # these events were published long ago
    for table, items in samples.tables.items():
        for item in items:
            world.dynamodb.put_item(TableName=table, Item=item)
    world.dynamodb.inserted = publish
    return world


def _as_text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def write(version: str) -> None:
    """Write what today's code writes."""
    world = lived()
    written = {
        "clock": world.clock(),
        "tables": {table: world.dynamodb.all(table) for table in KEPT},
        "events": [piped(item) for item in world.items("outbox")],
    }
    file = FOLDER / version / "written.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(written, default=_as_text, indent=1) + "\n", encoding="utf-8")
