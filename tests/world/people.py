"""The customers and the staff: tasks that book rides, change them, and ask again until answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tests.world.cloud import Cloud
from tests.world.story import Life, Step
from tests.world.wiring import STAFF_GROUP

STAFF: Final = {"sub": "staff", "cognito:groups": f"[riders {STAFF_GROUP}]"}
_AGAIN: Final = frozenset({429, *range(500, 600)})
_IN_PROGRESS: Final = "request-in-progress"
_LONGEST_PAUSE_S: Final = 60.0
_TRIES: Final = 100


@dataclass
class Lived:
    """What became of a life."""

    life: Life
    order_id: str = ""
    """Empty if nobody knows whether it was booked."""
    status: str = ""
    price: int = 0
    """The last price that was agreed."""
    refused: str = ""
    """What the API refused for good."""


class Asked(Protocol):
    """What answers requests."""

    def ask(
        self, method: str, path: str, body: object, key: str, claims: Mapping[str, str], /
    ) -> tuple[int, Any]:
        """Return a status and a body."""


class Person:
    """Lives one ride.

    Args:
        cloud: the world.
        api: what is asked.
        life: how the ride is meant to go.
    """

    def __init__(self, cloud: Cloud, api: Asked, life: Life) -> None:
        self._cloud = cloud
        self._api = api
        self._life = life
        self.lived = Lived(life)

    def live(self) -> None:
        ride = self._book()
        if ride is not None:
            self._go_on(ride)

    def book_again(self) -> str:
        """Send the booking once more, days later; return the kind of the answer.

        Its answer is kept for a day. Then the ride refuses a second booking.
        """
        body, customer = self._booking()
        key = f"ride-{self._life.number}-booking"
        status, answer = self._api.ask("POST", "/carrides", body, key, customer)
        if status in range(200, 300) and answer["orderID"] == self.lived.order_id:
            return "the same ride"
        return str(answer.get("type", status)).rpartition(":")[2]

    def _booking(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the body of the booking, and the claims of the customer."""
        life = self._life
        body = {
            "customerID": f"customer_{life.number}",
            "pickup": life.pickup,
            "destination": "sector_64",
            "passengers": 1,
            "price": life.price,
        }
        return body, {"sub": f"customer_{life.number}"}

    def _book(self) -> dict[str, Any] | None:
        body, customer = self._booking()
        return self._ask("POST", "/carrides", body, "booking", customer, again=False)

    def _go_on(self, ride: Mapping[str, Any]) -> None:
        self._note(ride)
        for number, step in enumerate(self._life.steps):
            self._cloud.simulation.sleep(step.after_s)
            path = f"/carrides/{self.lived.order_id}"
            asked = _change(step, ride)
            changed = self._ask("PUT", path, asked, f"{step.action}-{number}", STAFF, step.again)
            if changed is None:
                return
            ride = changed
            self._note(ride)

    def _note(self, ride: Mapping[str, Any]) -> None:
        self.lived.order_id = ride["orderID"]
        self.lived.status = ride["status"]
        self.lived.price = ride["price"]

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any],
        name: str,
        claims: dict[str, str],
        again: bool,
    ) -> dict[str, Any] | None:
        """Ask until there is an answer; None if it is a refusal, or never comes."""
        key = f"ride-{self._life.number}-{name}"
        pause_s = 0.5
        for _ in range(_TRIES):
            status, answer = self._api.ask(method, path, body, key, claims)
            in_progress = status == 409 and str(answer.get("type")).endswith(_IN_PROGRESS)
            if status not in _AGAIN and not in_progress:
                break
            self._cloud.simulation.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
        else:
            self.lived.refused = "no answer"
            return None
        if again:
            second = self._api.ask(method, path, body, key, claims)
            assert second[0] in {status, 429, *_AGAIN}, (status, second)
        if status not in range(200, 300):
            self.lived.refused = f"{status} {answer}"
            self._cloud.say(f"is refused {name}: {self.lived.refused}", f"person {key}")
            return None
        found: dict[str, Any] = answer
        return found


def _change(step: Step, ride: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {"action": step.action, "version": ride["version"]}
    match step.action:
        case "cancel":
            asked["reason"] = "changed plans"
        case "changeDestination":
            elsewhere = "sector_63" if ride["destination"] == "sector_64" else "sector_64"
            asked |= {"destination": elsewhere, "price": step.price}
    return asked
