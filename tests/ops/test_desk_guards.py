"""What another page, another site or a local process may not do to the desk."""

from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from ops.desk.app import Desk
from tests.ops.desk_world import HOST, _call, desk_of, get, post
from tests.ops.world import empty_stack


@pytest.fixture
def desk() -> Iterator[Desk]:
    """The desk of an empty stack."""
    with mock_aws():
        yield desk_of(empty_stack())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands that the desk has started."""
    found = list[Any]()
    monkeypatch.setattr("ops.desk.jobs.Popen", lambda command, **_: found.append(command))
    return found


def test_a_change_needs_the_token_of_a_page(desk: Desk, started: list[Any]) -> None:
    """A local process that has read no page cannot start anything."""
    for token in ("", "0" * 32, desk.token[:-1]):
        assert post(desk, "/start", verb="replay plan", token=token).status == 403
    assert started == []


def test_another_name_of_the_host_is_refused(desk: Desk) -> None:
    """DNS rebinding would use it."""
    assert get(desk, "/more").status == 200
    assert get(desk, "/more", host="desk.example:8765").status == 421


@pytest.mark.parametrize("headers", [{}, {"origin": "http://desk.example"}, {"origin": "null"}])
def test_a_change_from_another_origin_is_refused(desk: Desk, headers: dict[str, str]) -> None:
    """Also one that knows the token."""
    body = f"token={desk.token}".encode()
    assert _call(desk, "POST", "/audit", body, headers).status == 403
    assert _call(desk, "POST", "/audit", body, {"origin": f"http://{HOST}"}).status == 303


def test_a_plan_that_nobody_previewed_is_not_carried_out(desk: Desk, started: list[Any]) -> None:
    """Its id alone, or a verb that the desk does not offer, starts nothing."""
    for path, form in (
        ("/confirm", {"job": "0a1b2c3d"}),
        ("/again", {"job": "0a1b2c3d"}),
        ("/start", {"verb": "failover run --yes"}),
        ("/start", {"verb": "redrive", "argument": "--yes"}),
        ("/start", {"verb": "redrive", "argumentplan": "0a1b2c3d"}),
    ):
        assert post(desk, path, **form).status == 303
        assert "Nothing was done" in get(desk, "/more").text
    assert started == []
