"""A desk without a server: its log lines are written by hand, and its pages are called directly."""

import asyncio
import base64
import json
import re
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from carride import telemetry
from carride.events import DETAIL_TYPE, SOURCE, RideEvent
from carride.facts import Fact
from carride.overdue import LIMIT
from carride_idempotency import observation
from ops.desk.app import Desk
from ops.desk.feed import Feed
from ops.desk.index import Index
from ops.stack import StackRef
from tests.kit.rides import NOW

HOST: Final = "127.0.0.1:8765"
BEGIN_MS: Final = 1_763_899_331_000


def event_of(fact: Fact, cause: RideEvent | None = None) -> RideEvent:
    """Return the event of a fact, which follows from another one if that caused it."""
    return RideEvent.of(fact, source="acr.com.car-ride", time=NOW, cause=cause)


def line(text: str, time_ms: float, stream: str = "stream") -> dict[str, Any]:
    """Return a line of a log."""
    return {"message": text, "timestamp": int(time_ms), "logStreamName": stream}


def published_detail(event: RideEvent) -> dict[str, Any]:
    """Return an event as the outbox's pipe puts it on the bus: its data in base64."""
    detail = event.to_detail()
    data = json.dumps(detail.pop("data")).encode()
    return detail | {"data_base64": base64.b64encode(data).decode()}


def publish(index: Index, event: RideEvent, at_ms: float, *, replayed: bool = False) -> None:
    """Add an event to what the bus has logged."""
    content = {
        "id": f"{event.id[:-4]}{int(at_ms) % 10_000:04d}",
        "source": event.source,
        "detail-type": DETAIL_TYPE,
        "detail": published_detail(event),
    }
    if replayed:
        content["replay-name"] = "replay"
    index.add_published(line(json.dumps(content), at_ms))


def publish_broken(index: Index, event_id: str, at_ms: float) -> None:
    """Add an event that breaks the contract to what the bus has logged."""
    detail = {"type": "CarRideTeleported"}
    content = {"id": event_id, "source": SOURCE, "detail-type": DETAIL_TYPE, "detail": detail}
    index.add_published(line(json.dumps(content), at_ms))


def deliver(
    index: Index,
    event: RideEvent,
    consumer: str,
    at_ms: float,
    outcome: str = observation.NEW,
    **more: Any,
) -> None:
    """Add a delivery that ended at a time, and took ``took`` milliseconds, 10 by default."""
    took = more.pop("took", 10)
    told = {
        "message": telemetry.DELIVERY,
        "consumer": consumer,
        "outcome": outcome,
        "attempt": 1,
        "key": f"{consumer}#{event.idempotencyid}",
        **more,
    }
    index.add_line(line("START RequestId: 1", at_ms - took, consumer))
    index.add_line(line(json.dumps(told), at_ms, consumer))
    index.add_line(line(f"REPORT RequestId: 1 Duration: {took} ms", at_ms, consumer))


class Answer(NamedTuple):
    """What a page answers."""

    status: int
    text: str
    headers: dict[str, str]


def desk_of(stack: StackRef) -> Desk:
    """Return the desk of a stack, whose feed does not poll."""
    desk = Desk(Feed(stack), HOST)
    vars(desk)["overdue_limit"] = LIMIT  # which a deployed stack has as a parameter
    return desk


def get(desk: Desk, path: str, **headers: str) -> Answer:
    """Ask for a page."""
    return _call(desk, "GET", path, b"", headers)


def post(desk: Desk, path: str, **form: str) -> Answer:
    """Press a button of a page."""
    body = urlencode({"token": desk.token, **form}, errors="surrogatepass").encode()
    return _call(desk, "POST", path, body, {"origin": f"http://{HOST}"})


def shown_after(desk: Desk, answer: Answer) -> Answer:
    """Follow a button's answer as the browser that pressed it does."""
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return get(desk, answer.headers["location"], cookie=cookie)


def _call(desk: Desk, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    where, _, query = path.partition("?")
    given = {"host": HOST, **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": where,
        "raw_path": where.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8765),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(desk.app(scope, receive, send))
    begin = sent[0]
    content = b"".join(each.get("body", b"") for each in sent[1:])
    found = {name.decode(): value.decode() for name, value in begin["headers"]}
    text = content.decode()
    if found.get("content-type", "").startswith("text/html"):
        text = _without_layout(text)
    return Answer(begin["status"], text, found)


def _without_layout(text: str) -> str:
    """Return a page without the line breaks and the indentation of its template.

    Those at the edges of an element, between the cells of a table, and before a closing mark are
    left out. Where a line ends in a sentence or between other elements, one space stays.
    """
    text = re.sub(r"(<[a-z][^<>]*>)\n\s*", r"\1", text)
    text = re.sub(r"\s{2,}(</)", r"\1", text)
    text = re.sub(r"(</t[dhr]>)\s+", r"\1", text)
    text = re.sub(r"\n\s*>", ">", text)
    return re.sub(r"\n\s*", " ", text)
