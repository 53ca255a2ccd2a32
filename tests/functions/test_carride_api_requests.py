"""Invalid requests: the right status, the field by name, and nothing written."""

import json
from typing import Any, Final

import pytest

from tests.functions.api_fixtures import *  # noqa: F403 - the fixtures
from tests.functions.api_world import BOOKING, DEV, STAFF, World, request

CHANGE: Final = {"action": "accept", "version": 1}
CANCEL: Final = {"action": "cancel", "version": 1}
ELSEWHERE: Final = {"action": "changeDestination", "version": 1}
SIMULATE: Final = "/carrides/simulate"
CUSTOMER: Final = {"customer": "customer_a"}
MISSING: Final = object()

type Json = dict[str, Any]


@pytest.mark.parametrize(
    ("method", "path", "valid", "field", "value"),
    [
        *(("POST", "/carrides", BOOKING, name, MISSING) for name in ("customerID", "pickup", "destination", "price")),
        *(
            ("POST", "/carrides", BOOKING, "customerID", value)
            for value in (7, None, "", "a'; DROP TABLE rides; --", "customer_a\n", "Zoë", "🚕", "a" * 65, {"$ne": None})
        ),
        ("POST", "/carrides", BOOKING, "destination", "../sector_01"),
        *(("POST", "/carrides", BOOKING, "passengers", value) for value in (0, 9, 1.5, "2", True)),
        *(("POST", "/carrides", BOOKING, "price", value) for value in (0, 10_000_001, 12.5, 10**400)),
        *(("POST", "/carrides", BOOKING, unknown, {}) for unknown in ("orderID", "__proto__")),
        *(("PUT", "/carrides/order_01", CHANGE, "action", value) for value in (MISSING, None, ["accept"], "teleport")),
        *(("PUT", "/carrides/order_01", CHANGE, "version", value) for value in (MISSING, 0, "1", 10**20)),
        *(("PUT", "/carrides/order_01", CANCEL, "reason", value) for value in (MISSING, "", "x" * 201)),
        ("PUT", "/carrides/order_01", CHANGE, "reason", "none is asked for"),
        ("PUT", "/carrides/order_01", ELSEWHERE | {"price": 1}, "destination", MISSING),
        ("PUT", "/carrides/order_01", ELSEWHERE | {"destination": "sector_02"}, "price", MISSING),
        *(("POST", SIMULATE, {}, *bad) for bad in {"poison": 3, "seed": "x", "mode": "wild", "rate": 0}.items()),
        *(("POST", SIMULATE, {"rate": 1}, "duration", value) for value in (0, 601)),
        ("POST", SIMULATE, {"duration": 60}, "rate", MISSING),
        ("POST", SIMULATE, {"rides": 1, "rate": 1}, "duration", 60),  # two ends
        *(("POST", SIMULATE, {"duplicates": 1}, "rides", value) for value in (500, 501)),  # too many events
        ("POST", SIMULATE, {"rate": 50}, "duration", 600),
        *(("POST", SIMULATE, end, "rate", 0.001) for end in ({"rides": 500}, {"duration": 600})),  # too slow
    ],
)
def test_an_invalid_field_is_named(
    world: World, method: str, path: str, valid: Json, field: str, value: object
) -> None:
    """Missing and unknown fields, wrong types, and values and simulations out of range are refused."""
    world.handler = world.process(DEV)
    body = {name: content for name, content in (valid | {field: value}).items() if content is not MISSING}
    answer = world.send(request(method, path, body, authorizer=STAFF))
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "invalid-field", field)
    assert world.simulations == world.items("bookings") == world.items("outbox") == []
    assert path == SIMULATE or world.items("idempotency") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "customer"),
        *(({"customer": value}, "customer") for value in ("", "' OR 1=1 --", "customer_a,customer_b")),
        *((CUSTOMER | {"limit": value}, "limit") for value in ("0", "101", "many")),
        *((CUSTOMER | {"next": value}, "next") for value in ("", "nonsense", "é", "W10", "x" * 257)),
        (CUSTOMER | {"next": "WyIyMDI2LTExLTIxIiwib3JkZXJfMDEiXQ"}, "next"),
        (CUSTOMER | {"next": "WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzE0OjAwIiwib3JkZXJfMDEiXQ"}, "next"),
        (CUSTOMER | {"sort": "price"}, "sort"),
    ],
)
def test_an_invalid_parameter_is_named(world: World, query: dict[str, str], field: str) -> None:
    """Parameters have their form, and there are no others."""
    answer = world.send(request("GET", "/carrides", key=None, query=query))
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)


JSON: Final = json.dumps(BOOKING).encode()
NO_BASE64: Final = b"sent as text that is not base64, though it is said to be"


@pytest.mark.parametrize(
    ("method", "path", "valid"),
    [("POST", "/carrides", BOOKING), ("PUT", "/carrides/order_01", CHANGE), ("POST", SIMULATE, {})],
)
@pytest.mark.parametrize(
    ("body", "headers", "problem"),
    [
        *(
            (body, {}, "invalid-request")
            for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"price": NaN}', b"{'a': 1}", b'{"a": "\\ud800"}')
        ),
        (b"[" * 10_000, {}, "invalid-request"),
        (NO_BASE64, {}, "invalid-request"),
        *((JSON + b" " * (size - len(JSON)), {}, "too-large") for size in (16_385, 2_000_000)),
        *(
            (None, {"content-type": media_type}, "unsupported-media-type")
            for media_type in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "")
        ),
        *((None, {"idempotency-key": key}, "invalid-request") for key in (None, "", "a b", "a,b", "x" * 256, "é")),
    ],
)
def test_a_request_that_cannot_be_read(
    world: World, method: str, path: str, valid: Json, body: object, headers: dict[str, str | None], problem: str
) -> None:
    """A body is one JSON object of a limited size, and a key is one valid header, whatever else the request says."""
    event = request(method, path, valid if body is None else body, headers=headers)
    answer = world.send(event | ({"body": "é", "isBase64Encoded": True} if body is NO_BASE64 else {}))
    status = {"invalid-request": 400, "too-large": 413, "unsupported-media-type": 415}[problem]
    assert (answer.status, answer.problem) == (status, problem)
    assert world.items("bookings") == world.items("outbox") == world.items("idempotency") == []


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON", "application/ld+json"])
def test_json_by_its_other_names_is_accepted(world: World, media_type: str) -> None:
    """Every JSON media type is read."""
    assert world.send(request("POST", "/carrides", BOOKING, headers={"content-type": media_type})).status == 201


@pytest.mark.parametrize("order_id", ["order_01", "no ride", "'; DROP TABLE rides", "x" * 10_000, "乗車", "\ud800"])
def test_an_unknown_ride(world: World, order_id: str) -> None:
    """A ride that does not exist cannot be read or changed, whatever its name."""
    assert world.send(request("GET", f"/carrides/{order_id}", key=None)).problem == "unknown-ride"
    answer = world.send(request("PUT", f"/carrides/{order_id}", CHANGE))
    assert (answer.status, answer.problem) == (404, "unknown-ride")
    assert world.items("bookings") == world.items("outbox") == []


@pytest.mark.parametrize(
    ("done", "change", "status", "problem", "field"),
    [
        ([], {"action": "start"}, 409, "illegal-transition", "action"),
        (["accept", "start", "complete"], CANCEL | {"reason": "x"}, 409, "illegal-transition", "action"),
        (["accept"], CANCEL | {"reason": "x", "version": 1}, 409, "stale-version", "version"),
        ([], ELSEWHERE | {"destination": "sector_03", "price": 1}, 422, "invalid-field", "destination"),
        ([], ELSEWHERE | {"destination": "sector_01", "price": 1}, 422, "invalid-field", "destination"),
    ],
)
def test_what_a_ride_refuses_changes_nothing(
    world: World, done: list[str], change: Json, status: int, problem: str, field: str
) -> None:
    """A refusal says which field it is about, and the version of the ride; the ride stays as it is."""
    order_id = world.booked()
    for version, step in enumerate(done, start=1):
        world.change(order_id, step, version)
    before = world.items("bookings"), len(world.published())
    stale = {} if problem == "stale-version" else {"version": len(done) + 1}
    answer = world.send(request("PUT", f"/carrides/{order_id}", change | stale, key="refused"))
    assert (answer.status, answer.problem, answer.body["field"]) == (status, problem, field)
    assert answer.body["version"] == len(done) + 1
    assert (world.items("bookings"), len(world.published())) == before
    assert world.book(key="circle", destination=BOOKING["pickup"]).body["field"] == "destination"
