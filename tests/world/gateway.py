"""The payment gateway, within docs/payment-gateway.md: each freedom that the page allows it."""

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from gateway import GatewayUnavailableError
from gateway_connection import HttpRequest, HttpResponse
from local.simulated_gateway import Books, GatewayRequest, Reply
from tests.world.cloud import Cloud
from tests.world.story import Tier

_READ_TIMEOUT_S: Final = 3.0
_WITHIN_S: Final = 3_500.0
"""A request is finished within an hour, or never."""
_UNSEEN: Final = 0.5
"""The share of late requests that no lookup shows before they are finished."""
_WITH_EFFECT: Final = 0.5
"""The share of errors kept under a key whose request took effect."""
_SOON_S: Final = 30.0
"""In a light story: before the last attempt of its event."""
_KILLED_LATE: Final = "killed, and finished late"
_CUT_OFF: Final = 0.8
"""The share of reservations whose run is killed, in a story that is about that."""
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
_OVERLAP_S: Final = 200.0
"""How long attempts may overlap, and some more: until then no key is forgotten."""
_OF_HOURS: Final = ("kept under its key",)
"""What may happen in heavy stories only: the event needs more than an hour, and an operator."""
_FINAL: Final = (400, 402, 404, 405, 406, 410, 422, 451)
"""The statuses by which a POST is refused for good."""
_OF_THE_BOOKS: Final = {
    "forgotten": "gateway: key forgotten",
    "pending": "gateway: pending",
    "declined": "gateway: declined",
    "refused": "gateway: declined",
    "capped": "gateway: raise refused",
}
"""The freedoms that a story gives to rides or keys, by the name of the trouble."""
_REFUSALS: Final = (400, 401, 402, 403, 404, 405, 408, 409, 410, 422, 425, 429, 451, 500, 503)
_PASSING: Final = (401, 403, 408, 409, 425, 429, 500, 502, 503)


class Gateway:
    """A connection to the gateway; its books are the evidence of charges.

    Attributes:
        refused: what it refused for good for each ride: ``payments`` (a reservation), ``capture``
            or ``adjust`` (a raise).
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.refused: dict[str, set[str]] = defaultdict(set)
        self._taken: set[str] = set()
        """The keys of requests that it has taken in."""
        self._kept: dict[str, HttpResponse] = {}
        """The errors that it repeats, by key."""
        self._finished: dict[str, tuple[float, GatewayRequest, Reply]] = {}
        """When each key's request was finished, that request, and its answer."""
        self.books = Books(cloud.story.troubles, seed=cloud.story.seed, clock=lambda: cloud.now_s)

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment."""
        found: list[dict[str, Any]] = self.books.look_up("/ledger", {}).body["payments"]
        return found

    def close(self) -> None:
        """Keep nothing open."""

    def exchange(self, request: HttpRequest) -> HttpResponse:
        """Answer a request of a function, or do as bad gateways do."""
        cloud = self._cloud
        what = f"gateway {request.method} {request.path}"
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
        if cloud.story.is_cut_off and request.path == "/payments":
            share = _CUT_OFF
        kind = cloud.fault("gateway", self._kinds(request), what, share)
        self._before(kind, request, who)
        refused = self._refused(kind, request, who)
        if refused is not None:
            return refused
        reply = self._reply(request)
        cloud.say(f"{what}: {reply.status}")
        if kind == "killed after":
            cloud.kill_here()
        if kind == "failed":
            return _problem(500)
        if kind == "answer lost":
            self._give_up("the answer is lost")
        return HttpResponse(reply.status, json.dumps(reply.body).encode())

    def _kinds(self, request: HttpRequest) -> Sequence[str]:
        """Return what may happen to a request."""
        if request.method == "GET":
            return _LOOKUPS
        if self._cloud.story.is_cut_off and request.path == "/payments":
            return (_KILLED_LATE,)
        if self._cloud.story.tier is Tier.HEAVY:
            return (*_POSTS, *_OF_HOURS)
        return _POSTS

    def _refused(self, kind: str, request: HttpRequest, who: str) -> HttpResponse | None:
        """Return the error that a request gets instead of its answer, if it gets one."""
        match kind:
            case "refused for good":
                return self._refusal(request, who)
            case "kept under its key":
                return self._failure(request, who)
            case "refused":
                return _problem(self._one_of(_REFUSALS, who))
            case "busy":
                return _problem(self._one_of(_PASSING, who))
        return None

    def _refusal(self, request: HttpRequest, who: str) -> HttpResponse:
        """Refuse a reservation, a capture or a raise for good; any other request for now.

        A second request with a key gets the first answer, so one that may still be finished is not
        refused for good.
        """
        key = request.headers["Idempotency-Key"]
        if request.path.endswith("/refund") or key in self._taken:
            return _problem(503)
        self.refused[self._ride_of(request)].add(request.path.rpartition("/")[2])
        self._kept[key] = _problem(self._one_of(_FINAL, who))
        return self._kept[key]

    def _ride_of(self, request: HttpRequest) -> str:
        """Return the ride whose money a request is about."""
        if request.path == "/payments":
            return str(_asked(request).body["reference"])
        payment, _, _ = request.path.rpartition("/")
        return str(self.books.look_up(payment, {}).body["reference"])

    def _failure(self, request: HttpRequest, who: str) -> HttpResponse:
        """Fail, and repeat that under the key; the request took effect, or did not."""
        if self._cloud.roll(f"effect {who}") < _WITH_EFFECT:
            self._carry_out(_asked(request))
        self._kept[request.headers["Idempotency-Key"]] = _problem(500)
        return _problem(500)

    def _one_of(self, statuses: Sequence[int], who: str) -> int:
        return statuses[int(self._cloud.roll(f"status {who}") * len(statuses))]

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

    def _reply(self, request: HttpRequest) -> Reply:
        url = urlsplit(request.path)
        if request.method == "GET":
            return self.books.look_up(url.path, parse_qs(url.query))
        return self._carry_out(_asked(request))

    def _take_in(self, request: HttpRequest, who: str) -> None:
        """Accept a request, and finish it within the hour.

        Until then lookups may show it as pending, or not at all: they include what was answered.
        """
        asked = _asked(request)
        self._taken.add(asked.key)
        is_light = self._cloud.story.tier is Tier.LIGHT
        within_s = _SOON_S if is_light else _WITHIN_S
        late_s = within_s * self._cloud.roll(f"finish {who}")
        # Two requests would take effect if the key were forgotten before the first is finished.
        forgets = self._cloud.story.troubles.forgotten > 0
        if not forgets and self._cloud.roll(f"unseen {who}") < _UNSEEN:
            self._cloud.simulation.after(late_s, partial(self._carry_out, asked))
        elif self._lately(asked) is None and self.books.begin(asked) is None:
            self._cloud.simulation.after(late_s, partial(self._finish, asked))

    def _carry_out(self, asked: GatewayRequest) -> Reply:
        self._taken.add(asked.key)
        reply = self._lately(asked) or self.books.begin(asked)
        return self._finish(asked) if reply is None else reply

    def _finish(self, asked: GatewayRequest) -> Reply:
        """Have a request take effect; count which of the story's troubles it met."""
        before = self.books.met.copy()
        reply = self.books.finish(asked)
        for trouble, freedom in _OF_THE_BOOKS.items():
            if self.books.met[trouble] > before[trouble]:
                self._cloud.use(freedom)
        self._finished[asked.key] = (self._cloud.now_s, asked, reply)
        return reply

    def _lately(self, asked: GatewayRequest) -> Reply | None:
        """Return the answer of a key that was used lately: overlapping attempts need the key."""
        if asked.key not in self._finished:
            return None
        finished_s, before, reply = self._finished[asked.key]
        is_late = self._cloud.now_s - finished_s >= _OVERLAP_S
        return None if is_late or before != asked else reply

    def _give_up(self, why: str) -> None:
        self._cloud.simulation.sleep(_READ_TIMEOUT_S)
        raise GatewayUnavailableError(why)


def _asked(request: HttpRequest) -> GatewayRequest:
    body = json.loads(request.content or b"{}")
    return GatewayRequest(request.path, request.headers["Idempotency-Key"], body)


def _problem(status: int) -> HttpResponse:
    return HttpResponse(status, b'{"code": "made_by_the_world"}')
