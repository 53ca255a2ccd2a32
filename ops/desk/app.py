"""The desk's pages: each is rendered here, and the browser replaces the changing part as it changes."""

import json
import time
from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from botocore.exceptions import BotoCoreError, ClientError
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ops.desk import views
from ops.desk.feed import Feed
from ops.desk.jobs import Jobs
from ops.desk.pictures import LOOKS, look
from ops.desk.views import NotThereError
from ops.stack import OperatorError

_HERE: Final = Path(__file__).parent
_LOOK_S: Final = 0.2
"""How often a stream looks for changes."""
_FADE_S: Final = 2.0
"""After this time a stream renders again although nothing has changed: rates fade, records change."""
_SAID_S: Final = 20.0
"""How long the page says what the last button did."""
_EVENT_STREAM: Final = "text/event-stream"
_POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


type View = Callable[["Desk", Request], Mapping[str, Any]]
"""Returns the variables of a page's template."""


class Guard:
    """Refuses what another site could send: requests under another host name, and changes from another origin.

    Args:
        app: what is guarded.
        host: the name and port under which the page is served.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._hosts = {host, host.replace("127.0.0.1", "localhost")}
        self._origins = {f"http://{each}" for each in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = Headers(scope=scope)
        refusal = None
        if headers.get("host") not in self._hosts:
            refusal = PlainTextResponse(f"This page is served as {min(self._hosts)} only.", 421)
        elif scope["method"] not in {"GET", "HEAD"} and headers.get("origin") not in self._origins:
            refusal = PlainTextResponse("Only this page may change anything.", 403)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)


class Desk:
    """The pages over a feed.

    Args:
        feed: knows the stack.
        host: the name and port under which the page is served.
    """

    def __init__(self, feed: Feed, host: str) -> None:
        self.feed = feed
        self._said: tuple[float, str | None] = (0.0, None)
        self.watched = views.Watched()
        self.jobs = Jobs(feed.stack)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {"look": look, "looks": LOOKS, "views": views.VIEWS}
        self._templates.filters |= {"clock": clock, "span": span, "n": "{:,}".format, "age": age}
        pages = [Route(path, self._page(template, view)) for path, template, view in views.PAGES]
        acts = [Route(path, self._act(act), methods=["POST"]) for path, act in views.ACTS]
        static = Mount("/static", StaticFiles(directory=_HERE / "static"))
        self.app = Starlette(routes=[*acts, *pages, static], middleware=[Middleware(Guard, host=host)])

    @property
    def said(self) -> str | None:
        """What the last button did, in a sentence, for a while."""
        at, sentence = self._said
        return sentence if time.monotonic() - at < _SAID_S else None

    def _page(self, template: str, view: View) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if _EVENT_STREAM in request.headers.get("accept", ""):
                return StreamingResponse(self._stream(template, view, request), media_type=_EVENT_STREAM)
            status, parts, context = await run_in_threadpool(self._render, template, view, request)
            page = self._templates.get_template("page.html").render(context | parts)
            return HTMLResponse(page, status)

        return endpoint

    def _act(self, act: Callable[["Desk", Mapping[str, str]], tuple[str, str | None]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            form = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))
            try:
                where, said = await run_in_threadpool(act, self, form)
            except (OperatorError, BotoCoreError, ClientError, OSError, ValueError) as error:
                where, said = str(form.get("back", "/")), f"Nothing was done: {error}."
            self._said = (time.monotonic(), said)
            return RedirectResponse(where if where.startswith("/") else "/", 303)

        return endpoint

    def _context(self, template: str, view: View, request: Request) -> tuple[int, str, dict[str, Any]]:
        """Return the status, the template and the variables of a page."""
        base: dict[str, Any] = {"desk": self, "feed": self.feed, "path": request.url.path, "stack": self.feed.stack}
        try:
            return 200, template, base | dict(view(self, request))
        except NotThereError as error:
            return 200, "sentence.html", base | {"title": "Not known", "sentence": str(error)}
        except (OperatorError, BotoCoreError, ClientError) as error:
            sentence = f"{self.feed.stack.name} cannot be asked: {error}"
            return 503, "sentence.html", base | {"title": "No answer", "sentence": sentence}

    def _render(self, template: str, view: View, request: Request) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Return the status, the parts of the page that change, and the variables."""
        status, template, context = self._context(template, view, request)
        with self.feed.lock:
            parts = {"status": "status.html", "live": template}
            return (
                status,
                {name: self._templates.get_template(file).render(context) for name, file in parts.items()},
                context,
            )

    async def _stream(self, template: str, view: View, request: Request) -> AsyncIterator[str]:
        """Yield the parts that have changed, again and again."""
        sent: dict[str, str] = {}
        if is_still := template in views.STILL:  # what takes long to read, or hides messages, is read once for a page
            template, view = "sentence.html", _nothing
        version, rendered_at = -1, 0.0
        while not self.feed.stopping:
            if version != self.feed.index.version or time.monotonic() - rendered_at > _FADE_S:
                version, began = self.feed.index.version, time.monotonic()
                _, parts, _ = await run_in_threadpool(self._render, template, view, request)
                if is_still:
                    del parts["live"]
                changed = {name: html for name, html in parts.items() if sent.get(name) != html}
                yield f"data: {json.dumps(changed)}\n\n" if changed else ": nothing new\n\n"
                sent, rendered_at = parts, time.monotonic()
                await sleep(rendered_at - began)  # half of the time belongs to others
            await sleep(_LOOK_S)


def _nothing(_desk: Desk, _request: Request) -> Mapping[str, Any]:
    return {"title": "", "sentence": ""}


def age(since: datetime) -> str:
    """Return how long ago a time was."""
    return span((datetime.now(UTC) - since).total_seconds() * 1000)


def clock(time_ms: float | None) -> str:
    """Return a time of day to the millisecond, in UTC."""
    return "none" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%H:%M:%S.%f}"[:-3]


def span(milliseconds: float) -> str:
    """Return a span of time with its unit."""
    for unit, size, digits in (("min", 60_000.0, 1), ("s", 1000.0, 2)):
        if abs(milliseconds) >= size:
            return f"{milliseconds / size:.{digits}f} {unit}"
    return f"{milliseconds:.0f} ms"
