"""The payment gateway, within docs/payment-gateway.md: each freedom that the page allows it."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from gateway import GatewayUnavailableError
from gateway_connection import HttpRequest, HttpResponse
from gateway_rules import Account, Answer, Customer
from local.simulated_gateway import Books, GatewayRequest
from tests.world.cloud import Cloud
from tests.world.story import Tier

_READ_TIMEOUT_S: Final = 3.0
_WITHIN_S: Final = 3_500.0
"""How late a request may arrive, if it does not arrive days after everybody has given up."""
_DAYS_S: Final = 3 * 86_400.0
_SOON_S: Final = 30.0
"""In a light story: before the last attempt of its event."""
_DAYS_LATE: Final = 0.3
"""The share of late requests of heavy stories that arrive days later."""
_WITHOUT_KEY: Final = 0.5
"""The share of late requests that are not recognised by their key."""
_WITH_EFFECT: Final = 0.5
"""The share of errors kept under a key whose request took effect."""
_KILLED_LATE: Final = "killed, and finished late"
_CUT_OFF: Final = 0.8
"""The share of confirmations whose run is killed, in a story that is about that."""
_BY_HAND: Final = "canceled by hand"
_LOOKUPS: Final = ("killed before", "killed after", "refused", "failed", "no answer", "slow")
_POSTS: Final = (
    "killed before",
    "killed after",
    _KILLED_LATE,
    "busy",
    "failed",
    "no answer",
    "answer lost",
    "finished late",
    "finished late",
    "refused for good",
    "slow",
)
_OF_HOURS: Final = ("kept under its key",)
"""What may happen in heavy stories only: the event may need an operator."""
_PASSING: Final = (401, 403, 408, 409, 424, 425, 429, 500, 502, 503)
_REFUSALS: Final = (*_PASSING, 400, 402, 404, 405, 410, 422, 451)
"""With what else than Stripe's error in it, which nobody may take for one."""
_FOR_GOOD: Final[Mapping[str, Sequence[tuple[int, Mapping[str, str]]]]] = {
    "payment_intents": (
        (400, {"type": "invalid_request_error", "param": "customer", "code": "resource_missing"}),
        (400, {"type": "invalid_request_error", "param": "amount", "code": "amount_too_large"}),
        (400, {"type": "invalid_request_error", "param": "currency"}),
        (402, {"type": "card_error", "code": "card_declined"}),
    ),
    "confirm": (
        (400, {"type": "invalid_request_error", "param": "payment_method"}),
        (402, {"type": "card_error", "code": "card_declined"}),
    ),
    "capture": (
        (400, {"type": "invalid_request_error", "code": "charge_expired_for_capture"}),
        (402, {"type": "card_error", "code": "card_declined"}),
    ),
    "increment_authorization": (
        (400, {"type": "invalid_request_error"}),
        (402, {"type": "card_error", "code": "card_declined"}),
    ),
}
"""How a change is refused for good, by the end of its path."""
_OF_THE_BOOKS: Final = {
    "forgotten": "gateway: key forgotten",
    "pending": "gateway: pending",
    "declined": "gateway: declined",
    "refused": "gateway: detached card",
    "capped": "gateway: raise refused",
    "unknown": "gateway: unknown customer",
    "asked": "gateway: customer to be asked",
    "expired": "gateway: hold ended",
}
"""The freedoms that a story gives to rides, customers or keys, by the name of the trouble."""


class Gateway:
    """A connection to the gateway; its books are the evidence of charges.

    Attributes:
        refused: what it refused for good for each ride and customer: the end of the path, or
            "ended" for a payment that ended without being asked to.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.refused: dict[str, set[str]] = defaultdict(set)
        self._kept: dict[str, HttpResponse] = {}
        """The errors that it repeats, by key."""
        story = cloud.story
        account = Account(increments=story.can_raise, lists_unknown=story.seed % 2 == 0)
        self.books = Books(
            story.troubles, seed=story.seed, account=account, clock=lambda: cloud.now_s
        )

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment that was confirmed."""
        return self.books.ledger()

    def may_be_unpaid(self, customer: str, ride: str) -> bool:
        """Return whether this customer may leave this ride unpaid."""
        who: Customer = self.books.customer_of(customer, ride)
        cannot = not who.is_known or who.is_detached or who.asks or bool(who.declines)
        refused = self.refused[ride] - {"increment_authorization"}
        has_ended = any(
            each.ride == ride and each.reason == "automatic" for each in self.books.intents.values()
        )
        return cannot or bool(refused) or has_ended

    def may_be_less(self, customer: str, ride: str) -> bool:
        """Return whether less than the price may be captured."""
        is_capped = not self.books.customer_of(customer, ride).raises
        was_refused = "increment_authorization" in self.refused[ride]
        return is_capped or was_refused or not self._cloud.story.can_raise

    def close(self) -> None:
        """Keep nothing open."""

    def exchange(self, request: HttpRequest) -> HttpResponse:
        """Answer a request of a function, or do as bad gateways do."""
        cloud = self._cloud
        endpoint = request.path.partition("?")[0]
        what = f"gateway {request.method} {endpoint}"
        who = f"{cloud.doing()} {what}"
        cloud.simulation.sleep(0.05 + 0.5 * cloud.roll(f"gateway {who}") ** 4)
        if cloud.window("gateway", who):
            self._give_up("the gateway is down")
        if cloud.window("slow gateway", who):
            cloud.simulation.sleep(_READ_TIMEOUT_S * 0.9)
        kept = self._kept.get(request.headers.get("Idempotency-Key", ""))
        if kept is not None:
            return kept
        share = cloud.story.gateways_share
        if cloud.story.is_cut_off and endpoint.endswith("/confirm"):
            share = _CUT_OFF
        kind = cloud.fault("gateway", self._kinds(request, endpoint), what, share)
        self._before(kind, request, who)
        refused = self._refused(kind, request, endpoint, who)
        if refused is not None:
            return refused
        answer = self._carry_out(_asked(request), endpoint)
        cloud.say(f"{what}: {answer.status}")
        if kind == "killed after":
            cloud.kill_here()
        if kind == "failed":
            return _problem(500)
        if kind == "answer lost":
            self._give_up("the answer is lost")
        return HttpResponse(answer.status, json.dumps(answer.body).encode())

    def _kinds(self, request: HttpRequest, endpoint: str) -> Sequence[str]:
        """Return what may happen to a request."""
        if request.method == "GET":
            return _LOOKUPS
        if self._cloud.story.is_cut_off and endpoint.endswith("/confirm"):
            return (_KILLED_LATE,)
        if self._cloud.story.tier is Tier.HEAVY:
            return (*_POSTS, *_OF_HOURS)
        return _POSTS

    def _refused(
        self, kind: str, request: HttpRequest, endpoint: str, who: str
    ) -> HttpResponse | None:
        """Return the error that a request gets instead of its answer, if it gets one."""
        match kind:
            case "refused for good":
                return self._refusal(request, endpoint, who)
            case "kept under its key":
                return self._failure(request, endpoint, who)
            case "refused":
                return _problem(self._one_of(_REFUSALS, who))
            case "busy":
                return _problem(self._one_of(_PASSING, who))
        return None

    def _refusal(self, request: HttpRequest, endpoint: str, who: str) -> HttpResponse:
        """Refuse a change for good; one that gives money back for now only."""
        verb = endpoint.rpartition("/")[2]
        if verb not in _FOR_GOOD:
            return _problem(503)
        asked = _asked(request)
        self.refused[self._ride_of(asked, endpoint)].add(verb)
        status, error = self._one_of(_FOR_GOOD[verb], who)
        body = json.dumps({"error": {**error, "message": "made by the world"}})
        self._kept[asked.key] = HttpResponse(status, body.encode())
        return self._kept[asked.key]

    def _ride_of(self, asked: GatewayRequest, endpoint: str) -> str:
        """Return the ride whose money a change is about."""
        name = endpoint.split("/")[3] if endpoint.count("/") > 3 else ""
        if name in self.books.intents:
            return self.books.intents[name].ride
        return asked.key.partition("-prepare-")[0]

    def _failure(self, request: HttpRequest, endpoint: str, who: str) -> HttpResponse:
        """Fail, and repeat that under the key; the request took effect, or did not."""
        if self._cloud.roll(f"effect {who}") < _WITH_EFFECT:
            self._carry_out(_asked(request), endpoint)
        self._kept[request.headers["Idempotency-Key"]] = _problem(500)
        return _problem(500)

    def _one_of[T](self, several: Sequence[T], who: str) -> T:
        return several[int(self._cloud.roll(f"status {who}") * len(several))]

    def _before(self, kind: str, request: HttpRequest, who: str) -> None:
        """Do what keeps a request from being answered, or delays it."""
        if kind == "killed before":
            self._cloud.kill_here()
        if kind == "no answer":
            self._give_up("it hangs")
        if kind == "finished late":
            self._take_in(request, who)
            self._give_up("it is taken in")
        if kind == _KILLED_LATE:
            self._take_in(request, who)
            self._cloud.kill_here()
        if kind == "slow":
            self._cloud.simulation.sleep(_READ_TIMEOUT_S * 0.9)

    def _take_in(self, request: HttpRequest, who: str) -> None:
        """Have a request take effect later, perhaps days later, and perhaps without its key."""
        cloud = self._cloud
        asked = _asked(request)
        endpoint = request.path.partition("?")[0]
        within_s = _SOON_S if cloud.story.tier is Tier.LIGHT else _WITHIN_S
        is_heavy = cloud.story.tier is Tier.HEAVY
        if is_heavy and cloud.roll(f"days {who}") < _DAYS_LATE:
            within_s = _DAYS_S
            cloud.use("gateway: finished days later")
        late_s = within_s * cloud.roll(f"finish {who}")
        if cloud.roll(f"key {who}") < _WITHOUT_KEY:
            asked = asked._replace(key="")
        cloud.simulation.after(late_s, partial(self._carry_out, asked, endpoint))

    def _carry_out(self, asked: GatewayRequest, endpoint: str) -> Answer:
        """Have a request take effect; count which of the story's troubles it met."""
        before = self.books.met.copy()
        answer = self.books.answer(asked)
        for trouble, freedom in _OF_THE_BOOKS.items():
            if self.books.met[trouble] > before[trouble]:
                self._cloud.use(freedom)
        if endpoint.endswith("/confirm") and answer.status == 200:
            self._meddle(str(answer.body["id"]))
        return answer

    def _meddle(self, name: str) -> None:
        """Have somebody cancel a payment at the gateway, some time after it was reserved."""
        cloud = self._cloud
        if cloud.healed or cloud.roll(f"by hand {name}") >= cloud.story.by_hand:
            return
        after_s = 7_200.0 * cloud.roll(f"by hand after {name}")
        self.refused[self.books.intents[name].ride].add("ended")
        path = f"/v1/payment_intents/{name}/cancel"
        by_hand = GatewayRequest("POST", path)
        cloud.use(f"gateway: {_BY_HAND}")
        cloud.simulation.after(after_s, partial(self.books.answer, by_hand))

    def _give_up(self, why: str) -> None:
        self._cloud.simulation.sleep(_READ_TIMEOUT_S)
        raise GatewayUnavailableError(why)


def _asked(request: HttpRequest) -> GatewayRequest:
    content = (request.content or b"").decode()
    key = request.headers.get("Idempotency-Key", "")
    return GatewayRequest(request.method, request.path, key, content)


def _problem(status: int) -> HttpResponse:
    return HttpResponse(status, b'{"code": "made_by_the_world"}')
