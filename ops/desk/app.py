"""The desk's pages are rendered here; the browser asks again for the parts that change."""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ops.desk import views
from ops.desk.feed import Feed
from ops.desk.pictures import LOOKS, look
from ops.stack import FAILURES, reason

_HERE: Final = Path(__file__).parent
_FADE_S: Final = 2
"""After this time the parts are rendered again although nothing has happened: rates fade, records
change."""
_SAID_S: Final = 20.0
"""How long the page says what the last button did."""
_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Desk(views.Seen):
    """The pages over a feed, served under a host's name and port."""

    def __init__(self, feed: Feed, host: str) -> None:
        super().__init__(feed)
        self._said: tuple[float, str | None] = (0.0, None)
        self.token = secrets.token_hex(16)
        """What every form of a page sends: only who has read a page can change anything."""
        self._hosts = {host, host.replace("127.0.0.1", "localhost")}
        loader = FileSystemLoader(_HERE / "templates")
        self._templates = Environment(
            loader=loader,
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {"desk": self, "feed": feed, "stack": feed.stack}
        self._templates.globals |= {"look": look, "looks": LOOKS, "views": views.VIEWS}
        self._templates.filters |= {"clock": clock, "span": span, "n": "{:,}".format, "age": age}
        routes = [Route(path, self._act(act), methods=["POST"]) for path, act in views.ACTS.items()]
        routes += [Route(path, self._page(template, view)) for path, template, view in views.PAGES]
        static = Mount("/static", StaticFiles(directory=_HERE / "static"))
        guard = Middleware(BaseHTTPMiddleware, dispatch=self._guard)
        self.app = Starlette(
            routes=[*routes, static],
            middleware=[guard],
            exception_handlers={404: self._no_page},
        )

    @property
    def said(self) -> str | None:
        """What the last button did, in a sentence, for a while."""
        at, sentence = self._said
        return sentence if time.monotonic() - at < _SAID_S else None

    async def _guard(
        self, request: Request, call: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Refuse what another site could send.

        Requests under another host name, and changes from another origin.
        """
        if request.headers.get("host") not in self._hosts:
            return PlainTextResponse(f"This page is served as {min(self._hosts)} only.", 421)
        origins = {f"http://{host}" for host in self._hosts}
        if request.method not in {"GET", "HEAD"} and request.headers.get("origin") not in origins:
            return PlainTextResponse("Only this page may change anything.", 403)
        response = await call(request)
        response.headers.update(_HEADERS)
        return response

    def _no_page(self, request: Request, _error: Exception) -> Response:
        """Return the page for an address that leads nowhere."""
        context = {
            "path": request.url.path,
            "title": "No such page",
            "sentence": f"There is no page {request.url.path}. The views are above.",
        }
        parts = {
            "status": self._render("status.html", {}),
            "live": self._render("sentence.html", context),
        }
        if request.headers.get("accept") == "application/json":
            return JSONResponse(parts)
        return HTMLResponse(self._render("page.html", context | parts), 404)

    def _page(self, template: str, view: views.View) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            tag = f'"{self.feed.index.version}-{time.monotonic() // _FADE_S}"'
            wants_parts = request.headers.get("accept") == "application/json"
            if wants_parts and request.headers.get("if-none-match") == tag:
                return Response(status_code=304)
            parts = {"status": self._render("status.html", {})}
            if wants_parts and template in views.STILL:
                return JSONResponse(parts, headers={"etag": tag})
            status = 200
            body = template
            context = {"path": request.url.path}
            try:
                context |= view(self, request)
            except views.NotThereError as error:  # an event may become known while one looks
                body = "sentence.html"
                context = context | {"title": "Not known", "sentence": str(error)}
            except FAILURES as error:
                sentence = f"{self.feed.stack.name} cannot be asked: {reason(error)}"
                status = 503
                body = "sentence.html"
                context = context | {"title": "No answer", "sentence": sentence}
            parts["live"] = self._render(body, context)
            if wants_parts:
                return JSONResponse(parts, headers={"etag": tag})
            return HTMLResponse(self._render("page.html", context | parts), status)

        return endpoint

    def _act(self, act: views.Act) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            form = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))
            if not secrets.compare_digest(form.pop("token", "").encode(), self.token.encode()):
                return PlainTextResponse("This page is an old one: load it again.", 403)
            try:
                where, said = await run_in_threadpool(act, self, form)
            except (*FAILURES, OSError, ValueError) as error:
                where = str(form.get("back", "/"))
                said = f"Nothing was done: {reason(error)}."
            self._said = (time.monotonic(), said)
            return RedirectResponse(where if where.startswith("/") else "/", 303)

        return endpoint

    def _render(self, template: str, context: Mapping[str, Any]) -> str:
        with self.feed.lock:
            return self._templates.get_template(template).render(context)


def age(since: datetime) -> str:
    """Return how long ago a time was."""
    return span((datetime.now(UTC) - since).total_seconds() * 1000)


def clock(time_ms: float | None) -> str:
    """Return a time of day to the millisecond, in UTC."""
    return (
        "none"
        if time_ms is None
        else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%H:%M:%S.%f}"[:-3]
    )


def span(milliseconds: float) -> str:
    """Return a span of time with its unit."""
    for unit, size, digits in (("min", 60_000.0, 1), ("s", 1000.0, 2)):
        if abs(milliseconds) >= size:
            return f"{milliseconds / size:.{digits}f} {unit}"
    return f"{milliseconds:.0f} ms"
