"""The desk's pages are rendered here; the browser asks again for the parts that change."""

import logging
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
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

from ops.desk import flow as _flow  # noqa: F401 - registers pages
from ops.desk import ledger as _ledger  # noqa: F401 - registers pages
from ops.desk import rides as _rides  # noqa: F401 - registers pages
from ops.desk.events import raw_event
from ops.desk.feed import Feed
from ops.desk.finding import SEARCHED, results_of
from ops.desk.letterbox import reason_text
from ops.desk.letters import raw_letter
from ops.desk.notices import Notices
from ops.desk.pictures import LOOKS, look
from ops.desk.registry import (
    ACTS,
    PAGES,
    PLACES,
    Act,
    Entry,
    NotThereError,
    Page,
    Said,
    Seen,
    page_number,
)
from ops.desk.words import (
    ago_text,
    clip,
    clock_text,
    finished,
    marked,
    moment,
    moment_text,
    part,
    shortened_id,
    size,
    status_text,
    until_text,
)
from ops.search import asked_for, is_name
from ops.sentences import says
from ops.stack import FAILURES, reason
from ops.text import counted, span, visible

_logger: Final = logging.getLogger(__name__)
_HERE: Final = Path(__file__).parent
_FADE_S: Final = 2
"""After this time the parts are rendered again although nothing has happened: rates fade, records
change."""
_NOTICE: Final = "notice"
"""The cookie with the name of what is to be said to this browser."""
_NOTICE_S: Final = 60
"""How long the browser has to ask for the page that says it."""
_OWN: Final = frozenset({"none", "same-origin"})
"""The values of `Sec-Fetch-Site` for what somebody opened and for what a page of the desk asks. A
server on another port of this machine is ``same-site``."""
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


class Badge(NamedTuple):
    """A count in the navigation."""

    text: str
    kind: str


class Desk(Seen):
    """The pages over a feed, served under a host's name and port."""

    def __init__(self, feed: Feed, host: str) -> None:
        super().__init__(feed)
        self._notices = Notices()
        self.token = secrets.token_hex(16)
        """What every form of a page sends: only who has read a page can change anything."""
        self._hosts = {host, host.replace("127.0.0.1", "localhost")}
        self._templates = _environment()
        self._templates.globals |= {"desk": self, "feed": feed, "stack": feed.stack}
        routes = [Route(path, self._act(act), methods=["POST"]) for path, act in ACTS.items()]
        routes += [Route(page.path, self._page(page)) for page in PAGES]
        routes.append(Route("/find", self._find))
        routes.append(Route("/raw/letter", lambda request: raw_letter(self, request)))
        routes.append(Route("/raw/event/{id}", self._raw_event))
        static = Mount("/static", StaticFiles(directory=_HERE / "static"))
        guard = Middleware(BaseHTTPMiddleware, dispatch=self._guard)
        self.app = Starlette(
            routes=[*routes, static],
            middleware=[guard],
            exception_handlers={404: self._no_page},
        )

    async def _guard(
        self, request: Request, call: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Refuse what another site could send.

        Requests under another host name, changes from another origin, and pages that another site
        has a browser read: each of them asks the stack.
        """
        if request.headers.get("host") not in self._hosts:
            return PlainTextResponse(f"This page is served as {min(self._hosts)} only.", 421)
        if request.headers.get("sec-fetch-site", "none") not in _OWN:
            return PlainTextResponse("Another site asked for this page: open it yourself.", 403)
        origins = {f"http://{host}" for host in self._hosts}
        if request.method not in {"GET", "HEAD"} and request.headers.get("origin") not in origins:
            return PlainTextResponse("Only this page may change anything.", 403)
        try:
            response = await call(request)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a page, the desk stands
            _logger.error("%s", visible(traceback.format_exc()))  # noqa: TRY400 - made visible
            response = await run_in_threadpool(self._broken, request, error)
        response.headers.update(_HEADERS)
        return response

    def _broken(self, request: Request, error: Exception) -> Response:
        """Return the page for a mistake of the desk itself."""
        name = type(error).__name__
        what = "this page" if request.method in {"GET", "HEAD"} else "what was asked for"
        sentence = (
            f"The desk itself has failed ({name}) at {what}: the stack has nothing to do with it. "
            "The log of the desk, in the terminal that serves it, says where."
        )
        context = {"title": "The desk has failed here", "sentence": sentence}
        try:
            return self._answer(request, "sentence.html", context, 500)
        except Exception:  # noqa: BLE001 - the frame of all pages is what fails
            _logger.error("%s", visible(traceback.format_exc()))  # noqa: TRY400 - as above
            return PlainTextResponse(sentence, 500)

    def _no_page(self, request: Request, _error: Exception) -> Response:
        """Return the page for an address that leads nowhere."""
        context = {
            "title": "No such page",
            "sentence": f"There is no page {request.url.path}. Choose a view, or search "
            "for a ride, an event or a key.",
        }
        return self._answer(request, "sentence.html", context, 404)

    def _find(self, request: Request) -> Response:
        """Lead to what somebody looks for, or list what it may be."""
        if _wants_parts(request):
            return JSONResponse(self._frame(request))
        text = asked_for(request.query_params.get("q", ""))
        if not text.strip("*"):
            return RedirectResponse("/", 303)
        number = page_number(request)
        try:
            found = results_of(self, text, number)
        except FAILURES as error:
            return self._no_answer(request, error)
        if found.total == 1 and found.shown and found.shown[0].path:
            return RedirectResponse(found.shown[0].path, 303)
        title = f"{clip(text, 60)}: {found.total:,} found"
        if not found.total:
            title = f"{clip(text, 60)}: nothing found"
        context = {
            **found._asdict(),
            "text": text,
            "searched": SEARCHED,
            "can_type": is_name(text) is not None,
            "older": str(request.url.include_query_params(page=number + 1).query),
            "newer": str(request.url.include_query_params(page=number - 1).query),
        }
        status = 200 if found.shown else 404
        return self._answer(request, "find.html", {"title": title, **context}, status)

    def _raw_event(self, request: Request) -> Response:
        """Return an event in full, as text."""
        try:
            return PlainTextResponse(raw_event(self, request.path_params["id"]))
        except NotThereError as error:
            return PlainTextResponse(str(error), 404)

    def _page(self, page: Page) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            tag = f'"{self.feed.index.version}-{time.monotonic() // _FADE_S}"'
            headers = {"etag": tag}
            if _wants_parts(request):
                if request.headers.get("if-none-match") == tag:
                    return Response(status_code=304)
                if page.still:
                    return JSONResponse(self._frame(request), headers=headers)
            try:
                context = page.view(self, request)
                answers = int(context.get("answers", 200))
                return self._answer(request, page.template, context, answers, headers)
            except NotThereError as error:  # an event may become known while one looks
                context = {"title": error.title, "sentence": str(error)}
                return self._answer(request, "sentence.html", context, 404, headers)
            except FAILURES as error:
                return self._no_answer(request, error, headers)

        return endpoint

    def _no_answer(
        self, request: Request, error: Exception, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return the page for a stack that does not answer."""
        sentence = f"{self.feed.stack.name} cannot be asked: {reason(error)}"
        context = {"title": "No answer", "sentence": sentence}
        return self._answer(request, "sentence.html", context, 503, headers)

    def _answer(
        self,
        request: Request,
        template: str,
        context: Mapping[str, Any],
        status: int,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return a page, or as JSON its parts, by the ids of their elements."""
        path = request.url.path
        name = request.cookies.get(_NOTICE, "")
        notice = None
        if request.method == "GET" and not _wants_parts(request):
            notice = self._notices.take(name, request.scope["path"])
        said = notice.said if notice else None
        parts = self._frame(request)
        own = {"here": path, "said": said, "back": _place_of(request)}
        taken = own.keys() & context.keys()
        if taken:
            raise ValueError(f"{template} cannot have names that every page has: {sorted(taken)}")
        parts["live"] = self._render(template, {**context, **own})
        title = str(finished(context["title"]))
        if _wants_parts(request):
            parts["title"] = f"{title} · CarRide desk"
            return JSONResponse(parts, headers=headers)
        parts["said"] = self._render("said.html", {"said": said})
        page = self._render("page.html", {"title": title, "here": path, **parts})
        response = HTMLResponse(page, status)
        if notice:
            response.delete_cookie(_NOTICE, httponly=True, samesite="strict")
        return response

    def _frame(self, request: Request) -> dict[str, str]:
        """Return the parts around each page."""
        context = {"here": request.url.path, "now": self.feed.standing(), "badges": self.badges()}
        return {
            name: self._render(f"{name}.html", context)
            for name in ("status", "nav", "bottom", "troubles")
        }

    def badges(self) -> dict[str, Badge]:
        """Return the counts in the navigation that are above zero, by the paths of their pages."""
        letters = self.feed.letters()
        found = dict[str, Badge]()
        if letters:
            found["/letters"] = Badge(f"{letters:,}", "dead")
        return found

    def _act(self, act: Act) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            form = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))
            if not secrets.compare_digest(form.pop("token", "").encode(), self.token.encode()):
                return PlainTextResponse("This page is an old one: load it again.", 403)
            said: Said | None
            try:
                where, said = await run_in_threadpool(act, self, form)
            except (*FAILURES, OSError, ValueError, LookupError) as error:
                where = _own_path(form.get("back", "/"))
                said = Said(f"Nothing was done: {reason(error)}.", is_refusal=True)
            response = RedirectResponse(where, 303)
            if said:
                name = self._notices.keep(where, said)
                response.set_cookie(
                    _NOTICE, name, max_age=_NOTICE_S, httponly=True, samesite="strict"
                )
            return response

        return endpoint

    def _render(self, template: str, context: Mapping[str, Any]) -> str:
        with self.feed.lock:
            return self._templates.get_template(template).render(context)


def _place_of(request: Request) -> Entry:
    """Return where a page that shows nothing leads: to its own place, or to Flow."""
    for place in PLACES:
        if request.url.path == place.path and request.url.query:
            return place
    return PLACES[0]


def _own_path(path: str) -> str:
    """Return a path of this desk; another site's address begins with two slashes."""
    return path if path.startswith("/") and not path.startswith("//") else "/"


def _wants_parts(request: Request) -> bool:
    return request.headers.get("accept") == "application/json"


def _environment() -> Environment:
    """Return the templates, whose values are escaped, and shown without control characters."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finished,
    )
    made.globals |= {"look": look, "looks": LOOKS, "places": PLACES}
    made.filters |= {
        "ago": lambda time_ms: marked(time_ms, ago_text(time_ms, time.time() * 1000)),
        "bytes": lambda text: size(len(text.encode(errors="replace"))),
        "capital": lambda text: text[:1].upper() + text[1:],
        "counted": counted,
        "clip": clip,
        "clock": lambda time_ms: marked(time_ms, clock_text(time_ms, time.time() * 1000)),
        "day": lambda time_ms: marked(time_ms, f"{moment(time_ms):%-d %b}"),
        "moment": lambda time_ms: marked(time_ms, moment_text(time_ms, time.time() * 1000)),
        "ms": lambda time: time.timestamp() * 1000,
        "n": "{:,}".format,
        "part": part,
        "place": "{:.2f}%".format,
        "reason": reason_text,
        "says": says,
        "short": shortened_id,
        "span": span,
        "status": status_text,
        "time": lambda time_ms: f"{moment(time_ms):%H:%M:%S}",
        "until": lambda time_ms: marked(time_ms, until_text(time_ms, time.time() * 1000)),
    }
    return made
