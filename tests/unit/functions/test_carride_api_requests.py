"""Requests that are not as they should be: the right status, the field by name, and nothing written."""

import json
from typing import Any, Final

import pytest

from tests.unit.functions.api_fixtures import *  # noqa: F403 - the fixtures
from tests.unit.functions.api_world import BOOKING, DEV, STAFF, World, request

CHANGE: Final = {"action": "accept", "version": 1}


def assert_nothing_was_written(world: World) -> None:
    """No ride, no event, and no key that would be remembered."""
    assert world.bookings() == world.items("Outbox") == world.items("Idempotency") == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"customerID": "customer_a"',
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"price": NaN}',
        b"{'price': 1}",
        b'{"customerID": "\\ud800"}',
        b"[" * 10_000,
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/carrides"), ("PUT", "/carrides/order_01")])
def test_a_body_that_is_no_json_object(world: World, method: str, path: str, body: bytes) -> None:
    """What is no JSON object cannot be read."""
    answer = world.send(request(method, path, body))
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert_nothing_was_written(world)


@pytest.mark.parametrize("field", ["customerID", "pickup", "destination", "price"])
def test_a_missing_field_is_named(world: World, field: str) -> None:
    """Each field without a default has to be there."""
    body = {name: value for name, value in BOOKING.items() if name != field}
    answer = world.send(request("POST", "/carrides", body))
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "invalid-field", field)
    assert_nothing_was_written(world)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("customerID", 7),
        ("customerID", None),
        ("customerID", ""),
        ("customerID", "customer_a'; DROP TABLE rides; --"),
        ("customerID", "customer_a\n"),
        ("customerID", "Zoë"),
        ("customerID", "乗客"),
        ("customerID", "🚕"),
        ("customerID", "a" * 65),
        ("customerID", {"$ne": None}),
        ("pickup", ["sector_01"]),
        ("destination", "../sector_01"),
        ("destination", BOOKING["pickup"]),
        ("passengers", 0),
        ("passengers", 9),
        ("passengers", 1.5),
        ("passengers", "2"),
        ("passengers", True),
        ("price", -1),
        ("price", 10_000_001),
        ("price", 12.5),
        ("price", 10**400),
        ("orderID", "order_01"),
        ("__proto__", {}),
    ],
)
def test_a_field_that_is_not_as_it_has_to_be_is_named(world: World, field: str, value: Any) -> None:
    """Wrong types, values out of range, markup of other languages, and fields that nobody asked for."""
    answer = world.send(request("POST", "/carrides", BOOKING | {field: value}))
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "invalid-field", field)
    assert world.bookings() == world.items("Outbox") == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"version": 1}, "action"),
        ({"action": None, "version": 1}, "action"),
        ({"action": ["accept"], "version": 1}, "action"),
        ({"action": "teleport", "version": 1}, "action"),
        ({"action": "accept"}, "version"),
        ({"action": "accept", "version": 0}, "version"),
        ({"action": "accept", "version": "1"}, "version"),
        ({"action": "accept", "version": 10**20}, "version"),
        ({"action": "accept", "version": 1, "reason": "none is asked for"}, "reason"),
        ({"action": "cancel", "version": 1}, "reason"),
        ({"action": "cancel", "version": 1, "reason": "x" * 201}, "reason"),
        ({"action": "changeDestination", "version": 1, "price": 1}, "destination"),
        ({"action": "changeDestination", "version": 1, "destination": "sector_02"}, "price"),
    ],
)
def test_a_change_that_is_not_as_it_has_to_be_names_the_field(world: World, body: dict[str, Any], field: str) -> None:
    """Each action has fields of its own."""
    answer = world.send(request("PUT", "/carrides/order_01", body))
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "invalid-field", field)
    assert_nothing_was_written(world)


@pytest.mark.parametrize("size", [16_385, 2_000_000])
def test_a_large_body_is_refused_unread(world: World, size: int) -> None:
    """No request needs a body of more than 16 KB, and none of 2 MB is parsed."""
    body = json.dumps(BOOKING | {"note": "x"}).encode()
    answer = world.send(request("POST", "/carrides", body + b" " * (size - len(body))))
    assert (answer.status, answer.problem) == (413, "too-large")
    assert_nothing_was_written(world)


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
def test_another_media_type_is_refused(world: World, media_type: str) -> None:
    """A body is JSON, and says so if it says anything."""
    answer = world.send(request("POST", "/carrides", BOOKING, headers={"content-type": media_type}))
    assert (answer.status, answer.problem, answer.body["field"]) == (415, "unsupported-media-type", "Content-Type")
    assert_nothing_was_written(world)


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON", "application/ld+json"])
def test_json_by_its_other_names_is_accepted(world: World, media_type: str) -> None:
    """What is JSON is read."""
    assert world.send(request("POST", "/carrides", BOOKING, headers={"content-type": media_type})).status == 201


@pytest.mark.parametrize("key", [None, "a b"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "/carrides", BOOKING), ("PUT", "/carrides/order_01", CHANGE), ("POST", "/carrides/simulate", {})],
)
def test_every_change_needs_a_key(world: World, method: str, path: str, body: dict[str, Any], key: str | None) -> None:
    """A request that changes something is refused without an idempotency key, whatever else it says."""
    answer = world.send(request(method, path, body, key=key))
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "Idempotency-Key")
    assert_nothing_was_written(world)


@pytest.mark.parametrize("order_id", ["order_01", "no ride", "'; DROP TABLE rides", "x" * 65, "乗車"])
def test_an_unknown_ride(world: World, order_id: str) -> None:
    """A ride that is not there cannot be read or changed, whatever it is called."""
    assert world.send(request("GET", f"/carrides/{order_id}", key=None)).problem == "unknown-ride"
    answer = world.send(request("PUT", f"/carrides/{order_id}", CHANGE))
    assert (answer.status, answer.problem) == (404, "unknown-ride")
    assert world.bookings() == world.items("Outbox") == []


@pytest.mark.parametrize(
    ("done", "action"),
    [
        ([], "start"),
        ([], "complete"),
        (["accept"], "accept"),
        (["accept"], "complete"),
        (["accept", "start"], "accept"),
        (["accept", "start", "complete"], "cancel"),
        (["accept", "start", "complete"], "changeDestination"),
        (["cancel"], "accept"),
    ],
)
def test_an_illegal_transition(world: World, done: list[str], action: str) -> None:
    """What a ride's status does not allow is refused, and the ride stays as it is."""
    more: dict[str, dict[str, Any]] = {
        "cancel": {"reason": "changed plans"},
        "changeDestination": {"destination": "sector_09", "price": 1},
    }
    order_id = world.book().body["orderID"]
    for version, step in enumerate(done, start=1):
        world.change(order_id, step, version, **more.get(step, {}))
    before = world.bookings(), len(world.told())
    answer = world.change(order_id, action, len(done) + 1, **more.get(action, {}))
    assert (answer.status, answer.problem, answer.body["field"]) == (409, "illegal-transition", "action")
    assert (world.bookings(), len(world.told())) == before


def test_a_stale_version(world: World) -> None:
    """A change that was decided on an old version says which one is the present one."""
    order_id = world.book().body["orderID"]
    world.change(order_id, "accept", 1)
    answer = world.change(order_id, "cancel", 1, reason="changed plans")
    assert (answer.status, answer.problem, answer.body["version"]) == (409, "stale-version", 2)
    assert len(world.told()) == 2


@pytest.mark.parametrize("destination", ["sector_03", "sector_01"])
def test_a_destination_that_is_none(world: World, destination: str) -> None:
    """A ride cannot be redirected to where it goes already, or to where it began."""
    order_id = world.book().body["orderID"]
    answer = world.change(order_id, "changeDestination", 1, destination=destination, price=1)
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "invalid-field", "destination")
    assert len(world.told()) == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "customer"),
        ({"customer": ""}, "customer"),
        ({"customer": "' OR 1=1 --"}, "customer"),
        ({"customer": "customer_a", "limit": "0"}, "limit"),
        ({"customer": "customer_a", "limit": "101"}, "limit"),
        ({"customer": "customer_a", "limit": "many"}, "limit"),
        ({"customer": "customer_a", "next": ""}, "next"),
        ({"customer": "customer_a", "next": "nonsense"}, "next"),
        ({"customer": "customer_a", "next": "é"}, "next"),
        ({"customer": "customer_a", "next": "W10"}, "next"),
        ({"customer": "customer_a", "next": "WyIyMDI2LTExLTIxIiwib3JkZXJfMDEiXQ"}, "next"),
        ({"customer": "customer_a", "next": "WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzE0OjAwIiwib3JkZXJfMDEiXQ"}, "next"),
        ({"customer": "customer_a", "sort": "price"}, "sort"),
    ],
)
def test_a_query_that_is_not_as_it_has_to_be_names_the_parameter(
    world: World, query: dict[str, str], field: str
) -> None:
    """Parameters have their form, and there are no others."""
    answer = world.send(request("GET", "/carrides", key=None, query=query))
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"rides": 501}, "rides"),
        ({"duplicates": 2}, "duplicates"),
        ({"poison": 3}, "poison"),
        ({"seed": "x"}, "seed"),
        ({"mode": "wild"}, "mode"),
        ({"rate": 0}, "rate"),
        ({"duration": 601, "rate": 1}, "duration"),
        ({"duration": 60}, "rate"),
        ({"duration": 60, "rate": 1, "rides": 1}, "duration"),
        ({"rides": 500, "rate": 0.001}, "rate"),
        ({"rides": 500, "duplicates": 1}, "rides"),
        ({"duration": 600, "rate": 0.001}, "rate"),
        ({"duration": 600, "rate": 50}, "duration"),
    ],
)
def test_a_simulation_that_cannot_be_names_the_field(world: World, body: dict[str, Any], field: str) -> None:
    """A simulation is small enough for its stage and for one call, and asks no consumer to fail."""
    world.handler = world.process(DEV)
    answer = world.send(request("POST", "/carrides/simulate", body, authorizer=STAFF))
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "invalid-field", field)
    assert world.simulations == []
