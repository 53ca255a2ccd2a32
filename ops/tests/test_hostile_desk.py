"""Whatever text a stack holds or an address has: the desk shows it, and obeys none of it."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Final
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from ops.desk.app import Desk
from ops.desk.registry import ACTS, PAGES
from ops.stack import StackRef
from ops.tests.desk_world import Answer, desk_of, get, post, shown_after
from ops.tests.hostile_world import LONG, TEXTS, Payload, hostile_stack, obeyed, payloads, thinned

pytestmark = pytest.mark.proof

PAYLOADS: Final = payloads()
MOST_OF_A_PAGE: Final = 600_000
"""Characters."""


@pytest.fixture(scope="module")
def ref() -> Iterator[StackRef]:
    """A stack with every payload."""
    with mock_aws():
        yield hostile_stack(PAYLOADS)


@pytest.fixture(scope="module")
def desk(ref: StackRef) -> Desk:
    """The desk of that stack, which has read its logs, counted its letters and audited it."""
    made = desk_of(ref)
    for work in (made.feed._read_logs, made.feed._count_queues):  # noqa: SLF001 - no threads
        work()
    made.feed.audit_wanted.set()
    made.feed._audit()  # noqa: SLF001
    return made


def test_there_are_enough_payloads() -> None:
    """Escapes, markup, surrogates and megabytes, at each place that a stranger can write to."""
    assert len(PAYLOADS) >= 200
    assert sum(len(each.text) >= 1_000_000 for each in PAYLOADS) >= 10


# ── The desk ──────────────────────────────────────────────────────────────────────────────────────


class Markup(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.odd: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note scripts, and whatever no template writes."""
        if tag == "script":
            self.scripts.append(dict(attrs))
        if tag == "img" and dict(attrs).get("src") != "/static/icon.svg":
            self.odd.append(tag)
        for name, value in attrs:
            is_foreign = name in {"href", "src", "action"} and not (value or "").startswith(
                ("/", "#", "?")
            )
            if name.startswith("on") or is_foreign:
                self.odd.append(f"{tag} {name}={value}")


def check_page(answer: Answer, path: str) -> None:
    """Assert that a page has the desk's own markup only, nothing that steers, and an end."""
    assert answer.status in {200, 404}, path
    text = answer.text
    assert len(text) <= MOST_OF_A_PAGE, path
    assert obeyed(text) is None, path
    scripts = check_markup(text, path)
    assert scripts == [{"src": "/static/desk.js", "defer": None}], path
    assert text.count("</html>") == 1, path


def check_markup(text: str, path: str) -> list[dict[str, str | None]]:
    """Assert that markup has nothing but what templates write, and return its scripts."""
    page = Markup()
    page.feed(text)
    assert page.odd == [], path
    return page.scripts


def test_every_page_shows_whatever_a_stack_holds(desk: Desk) -> None:
    """Those without a name in their address."""
    for page in PAGES:
        if "{" not in page.path:
            for query in ("", "?range=all", "?again=1"):
                check_page(get(desk, page.path + query), page.path + query)


@pytest.mark.parametrize(
    "payload",
    thinned(PAYLOADS[::4], one_in=16, rest=pytest.mark.thorough),
    ids=lambda each: f"{each.place} {each.number}",
)
def test_the_pages_of_a_payload_show_it(desk: Desk, payload: Payload) -> None:
    """Its ride, its event, its letter and its key; and as parts that the browser puts in place."""
    event = payload.event
    for path in (
        f"/ride/{event.subject}",
        f"/event/{event.idempotencyid}",
        f"/event/{payload.event_id}",
        f"/letters?event={event.idempotencyid}",
        f"/letters?event={payload.event_id}&at=payment",
    ):
        check_page(get(desk, path), path)
        parts = get(desk, path, accept="application/json")
        assert len(parts.text) <= MOST_OF_A_PAGE
        for name, markup in json.loads(parts.text).items():
            if name != "title":  # which the browser shows as text
                check_markup(markup, path)


def test_every_event_of_the_index_has_its_pages(desk: Desk) -> None:
    """Under whatever id it is known, and as text."""
    for name in [*desk.feed.index.facts]:
        if len(name) < 5_000:  # a longer address is refused by the server
            check_page(get(desk, f"/event/{quote(name, safe='', errors='replace')}"), name)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_address_is_obeyed(desk: Desk, text: str) -> None:
    """Whatever stands in it, and wherever."""
    word = quote(text, safe="", errors="replace")
    for page in PAGES:
        path = re.sub(r"\{\w+\}", word, page.path)
        answer = get(desk, path)
        assert answer.status in {200, 404}
        check_page(answer, path)
    for path in (
        "/letters?letter=",
        "/letters?event=",
        "/nope/",
    ):
        check_page(get(desk, f"{path}{word}"), path)
    found = get(desk, f"/find?q={word}")
    if found.status == 303:
        location = found.headers["location"]
        assert location == "/" or location.startswith(("/ride/", "/event/", "/letters?"))
    else:
        assert found.status in {200, 404}
        check_page(found, "/find")
    assert "set-cookie" not in found.headers
    raw = get(desk, f"/raw/event/{word}")
    assert raw.headers["content-type"].startswith("text/plain")
    assert obeyed(raw.text) is None


@pytest.mark.parametrize("text", [*TEXTS, LONG[1]], ids=range(len(TEXTS) + 1))
def test_no_form_is_obeyed(desk: Desk, text: str) -> None:
    """A button that is given something else refuses it in a sentence, on the desk's own pages."""
    form = dict.fromkeys(("back", "id", "how", "consumer", "fault", "detail"), text)
    for path in ACTS:
        answer = post(desk, path, **form)
        assert answer.status == 303, path
        assert re.fullmatch(r"/[^/].*|/", answer.headers["location"], re.ASCII), path
        cookie = answer.headers.get("set-cookie", "")
        assert re.fullmatch(r"(notice=[0-9a-f]{32}; [\w\-=;/ ]+)?", cookie), path
        check_page(get(desk, "/"), path)
        if cookie:
            check_page(shown_after(desk, answer), path)


_ASKED: Final = {
    "/": ("range",),
    "/ride/order_01": ("show",),
    "/letters": ("letter", "event", "at", "contract", "group", "again"),
    "/raw/letter": ("letter", "event", "at"),
    "/find": ("q", "page"),
    "/ledger": ("at",),
}
"""The parameters of the pages."""
_ODD: Final = (
    st.text(max_size=40)
    | st.sampled_from(
        ["#", "payment#", "#1", "…", "a…b", "*", "0", "-1", "1e9", "9" * 40, "any", "\x00", "moon"]
    )
    | st.builds(lambda text, times: text * times, st.sampled_from("a1é#"), st.integers(500, 5_000))
)


@given(asked=st.sampled_from([(path, name) for path in _ASKED for name in _ASKED[path]]), text=_ODD)
def test_no_parameter_is_too_odd(desk: Desk, asked: tuple[str, str], text: str) -> None:
    """Whatever its value is, its page answers: it is neither the desk's mistake nor the stack's."""
    path, name = asked
    answer = get(desk, f"{path}?{name}={quote(text, safe='', errors='replace')}")
    assert answer.status < 500
