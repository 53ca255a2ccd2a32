"""Producers of other teams: they put the events of their rides on the bus, as the article's does.

Such a producer books nothing here. It counts no versions: each of its events has the first one. An
acceptance may come after the end of its ride, and its clock may be days ahead.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_DNS, uuid5

from carride.events import DETAIL_TYPE, SIMULATOR_SOURCE
from carride.ride import Status
from tests.world.people import STAFF, Lived
from tests.world.story import Life

if TYPE_CHECKING:
    from tests.world.bus import Api, Bus
    from tests.world.cloud import Cloud

_CHANGES: Final[Mapping[str, tuple[str, Status]]] = {
    "accept": ("Accepted", Status.ACCEPTED),
    "start": ("Started", Status.STARTED),
    "complete": ("Completed", Status.COMPLETED),
    "cancel": ("Cancelled", Status.CANCELLED),
}
_PROGRESS: Final = (*Status,)
"""In the order in which a ride passes through them."""
_FOUND: Final = 200
_TRIES: Final = 100


class Producer:
    """Has one ride live.

    Attributes:
        lived: what became of it; its status is the furthest that was published.
    """

    def __init__(self, cloud: "Cloud", bus: "Bus", life: Life) -> None:
        self._cloud = cloud
        self._bus = bus
        self._life = life
        self.lived = Lived(life, price=life.price)

    def live(self) -> None:
        self.lived.order_id = f"ride_of_a_producer_{self._life.number}"
        self._publish("Created", Status.REQUESTED)
        for step in self._life.steps:
            self._cloud.simulation.sleep(step.after_s)
            for _ in range(1 + step.again):
                self._publish(*_CHANGES[step.action])

    def _publish(self, change: str, status: Status) -> None:
        lived = self.lived
        if not lived.status or _PROGRESS.index(status) > _PROGRESS.index(Status(lived.status)):
            lived.status = status
        now = datetime.now(UTC)
        time = now + timedelta(days=self._life.days_ahead)
        attributes = {
            "type": f"acme.acr.CarRider{change}Event",
            "source": SIMULATOR_SOURCE,
            "idempotencyId": str(uuid5(NAMESPACE_DNS, f"{lived.order_id} {change}")),
            "eventTime": time.isoformat(),
            "eventCount": 1,
        }
        data = {
            "orderID": lived.order_id,
            "customerID": f"customer_{self._life.number}",
            "pickup": self._life.pickup,
            "destination": "sector_64",
            "passengers": 1,
            "price": self._life.price,
            "status": status.value,
        }
        detail = {"attributes": attributes, "data": data}
        sent = now.isoformat(timespec="seconds").replace("+00:00", "Z")
        self._cloud.use("events of another producer")
        self._bus.put(detail, SIMULATOR_SOURCE, DETAIL_TYPE, sent)

    def booking(self) -> dict[str, Any]:
        """Return the ride in the form of a booking."""
        lived = self.lived
        return {
            "orderID": lived.order_id,
            "customerID": f"customer_{self._life.number}",
            "status": lived.status,
            "price": lived.price,
        }

    def wrong_view(self, api: "Api") -> str:
        """Ask the API how the ride stands; return what is wrong with the answer, or nothing."""
        lived = self.lived
        for number in range(_TRIES):
            key = f"view {lived.order_id} {number}"
            status, ride = api.ask("GET", f"/carrides/{lived.order_id}", None, key, STAFF)
            if status == _FOUND:
                break
            self._cloud.simulation.sleep(60.0)
        else:
            return f"nobody could see {lived.order_id}"
        if ride["status"] != lived.status:
            return f"{lived.order_id} is {lived.status}, and is shown as {ride['status']}"
        return ""
