"""A gateway in this process, which does what it is told to go wrong."""

from collections import deque
from collections.abc import Callable
from typing import Any

from gateway import Call, Charge, GatewayUnavailableError, Status
from local.gateway import Books, Request, Troubles


class KilledError(BaseException):
    """Ends a run as Lambda does when it stops a process: nothing can be done about it any more."""


class FakeGateway:
    """The simulated gateway behind the port, without a network; it is asked as the HTTP adapter would ask it.

    Args:
        declined: share of the rides that cannot be paid.
        forgotten: share of the keys that are forgotten as soon as they are used.

    Attributes:
        asked: the methods that were called.
    """

    def __init__(self, *, declined: float = 0.0, forgotten: float = 0.0) -> None:
        self.books = Books(Troubles(declined=declined, forgotten=forgotten))
        self.asked: list[str] = []
        self._after: deque[Callable[[], object]] = deque()

    def then(self, happen: Callable[[], object]) -> None:
        """Have something happen after the next request took effect, before it is answered."""
        self._after.append(happen)

    def then_die(self) -> None:
        """Have the process killed after the next request took effect."""

        def die() -> None:
            raise KilledError

        self.then(die)

    def then_drop(self) -> None:
        """Have the answer to the next request get lost."""

        def drop() -> None:
            raise GatewayUnavailableError("the answer was lost")

        self.then(drop)

    def authorize(self, call: Call, *, order_id: str, customer_id: str, amount: int) -> Charge:
        """Reserve money."""
        if call.repeated and (found := self.find(call, order_id=order_id)) is not None:
            return found
        body = {"reference": order_id, "customer": customer_id, "amount": amount}
        return self._send("authorize", Request("/payments", f"{call.key}-authorize", body))

    def capture(self, call: Call, *, payment_id: str, amount: int) -> Charge:
        """Take it."""
        known = self._look(payment_id)
        if call.repeated and known.status is not Status.AUTHORIZED:
            return known
        request = Request(f"/payments/{payment_id}/capture", f"{call.key}-capture", {"amount": amount})
        return self._send("capture", request)

    def refund(self, call: Call, *, payment_id: str) -> Charge:
        """Give it back."""
        known = self._look(payment_id)
        if call.repeated and known.status is Status.REFUNDED:
            return known
        return self._send("refund", Request(f"/payments/{payment_id}/refund", f"{call.key}-refund", {}))

    def find(self, call: Call, *, order_id: str) -> Charge | None:
        """Return the ride's payment."""
        self.asked.append("find")
        found = self.books.look_up("/payments", {"reference": [order_id]}).body["payments"]
        return _charge(found[0]) if found else None

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment."""
        payments: list[dict[str, Any]] = self.books.look_up("/ledger", {}).body["payments"]
        return payments

    def _look(self, payment_id: str) -> Charge:
        return _charge(self.books.look_up(f"/payments/{payment_id}", {}).body)

    def _send(self, method: str, request: Request) -> Charge:
        self.asked.append(method)
        reply = self.books.begin(request) or self.books.finish(request)
        if self._after:
            self._after.popleft()()
        return _charge(reply.body)


def _charge(payment: Any) -> Charge:
    return Charge(payment["id"], Status(payment["status"]), payment["amount"], payment.get("reason"))
