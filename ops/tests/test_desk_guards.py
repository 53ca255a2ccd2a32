"""What another page, another site or a local process may not do to the desk."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

import ops.desk
from ops.desk.app import Desk
from ops.desk.notices import Notices
from ops.desk.registry import ACTS, PAGES, Said
from ops.tests.desk_world import HOST, _call, desk_of, get, post
from ops.tests.world import empty_stack


@pytest.fixture
def desk() -> Iterator[Desk]:
    """The desk of an empty stack."""
    with mock_aws():
        yield desk_of(empty_stack())


def test_a_change_needs_the_token_of_a_page(desk: Desk) -> None:
    """A local process that has read no page cannot start anything."""
    for token in ("", "0" * 32, desk.token[:-1]):
        assert post(desk, "/audit", token=token).status == 403
    assert not desk.feed.audit_wanted.is_set()
    assert post(desk, "/audit").status == 303
    assert desk.feed.audit_wanted.is_set()


def test_another_name_of_the_host_is_refused(desk: Desk) -> None:
    """DNS rebinding would use it."""
    assert get(desk, "/").status == 200
    assert get(desk, "/", host="desk.example:8765").status == 421


@pytest.mark.parametrize("path", ["/", "/find?q=order_01", "/raw/event/1"])
def test_a_page_that_another_site_asks_for_is_refused(desk: Desk, path: str) -> None:
    """Any page of the web could start reads of the stack; browsers say who has asked."""
    for site in ("cross-site", "same-site"):
        assert _call(desk, "GET", path, b"", {"sec-fetch-site": site}).status == 403
    for headers in ({}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}):
        assert _call(desk, "GET", path, b"", headers).status != 403


@pytest.mark.parametrize("headers", [{}, {"origin": "http://desk.example"}, {"origin": "null"}])
def test_a_change_from_another_origin_is_refused(desk: Desk, headers: dict[str, str]) -> None:
    """Also one that knows the token."""
    body = f"token={desk.token}".encode()
    assert _call(desk, "POST", "/audit", body, headers).status == 403
    assert _call(desk, "POST", "/audit", body, {"origin": f"http://{HOST}"}).status == 303


def test_only_the_browser_that_asked_is_told_and_once(desk: Desk) -> None:
    """On the page that follows; another page, a page's parts and another browser leave it."""
    answer = post(desk, "/inject", fault="none", back="/ledger?only=<b>#end")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    told = "Nothing was done"
    assert told not in get(desk, "/ledger").text
    assert told not in get(desk, "/ledger", cookie="notice=" + "0" * 32).text
    assert told not in get(desk, "/", cookie=cookie).text
    assert told not in get(desk, "/ledger", cookie=cookie, accept="application/json").text
    shown = get(desk, "/ledger", cookie=cookie)
    assert told in shown.text
    assert "Max-Age=0" in shown.headers["set-cookie"]
    assert told not in get(desk, "/ledger", cookie=cookie).text


@given(text=st.text(max_size=300))
def test_a_cookie_says_nothing_by_itself(text: str) -> None:
    """It is the name of a notice: what somebody writes into it is never shown."""
    notices = Notices()
    name = notices.keep("/ledger", Said("Told."))
    assert notices.take(text, "/ledger") is None
    taken = notices.take(name, "/ledger")
    assert taken is not None
    assert taken.said.sentence == "Told."


def test_notices_that_nobody_reads_do_not_add_up() -> None:
    """The oldest are forgotten."""
    notices = Notices()
    names = [notices.keep("/ledger", Said(f"{number}")) for number in range(1_000)]
    assert notices.take(names[0], "/ledger") is None
    assert notices.take(names[-1], "/ledger") is not None
    left = [name for name in names if notices.take(name, "/ledger")]
    assert len(left) < 100


def test_the_desk_has_the_pages_of_all_its_modules() -> None:
    """A module of views that nothing else imports would be missing, and its address lead nowhere.

    In a process of its own, because tests import modules of their own.
    """
    code = "import sys, ops.desk.app; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    modules = {f"ops.desk.{each.stem}" for each in Path(ops.desk.__file__).parent.glob("*.py")}
    assert modules - {"ops.desk.__init__"} <= set(ran.stdout.split())


@pytest.mark.parametrize("place", ["view", "template", "act"])
def test_a_mistake_of_the_desk_is_answered_inside_its_frame(
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Navigation and a way back stay, and the traceback is in the desk's log, not on the page."""

    def fails(*_: Any) -> Any:
        raise RuntimeError("effects\x1b[2J")

    pages = [each._replace(view=fails) for each in PAGES]
    if place == "template":
        pages = [each._replace(view=lambda *_: {"title": "T"}) for each in PAGES]
    monkeypatch.setattr("ops.desk.app.PAGES", pages)
    monkeypatch.setitem(ACTS, "/audit", fails)
    with mock_aws():
        desk = desk_of(empty_stack())
        paths = ["/audit"] if place == "act" else ["/letters", "/ride/1", "/event/1"]
        for path in paths:
            caplog.clear()
            answer = post(desk, path) if place == "act" else get(desk, path)
            assert answer.status == 500
            assert 'href="/letters"' in answer.text
            assert 'class="button" href="/' in answer.text
            assert "Traceback" not in answer.text
            assert answer.headers["content-security-policy"]
            assert "Traceback" in caplog.text
            assert "\x1b" not in caplog.text
            if place != "act":
                parts = get(desk, path, accept="application/json")
                assert {"nav", "status"} <= json.loads(parts.text).keys()
