"""Invalid requests: the right status, the field by name, and nothing written."""

import json
from typing import Any, Final, cast

import pytest
from msgspec.structs import replace

from api.commands import Book
from api.routes import ROUTES, Route
from api.simulations import most_events
from carride.simulation_spec import Mode, Spec
from simulated_rides import Simulation
from tests.functions.world import BOOKING, DEV, STAFF, World, request
from tests.kit.rides import NOW

CHANGE: Final = {"action": "accept", "version": 1}
CANCEL: Final = {"action": "cancel", "version": 1}
ELSEWHERE: Final = {"action": "changeDestination", "version": 1}
SIMULATE: Final = "/carrides/simulate"
CUSTOMER: Final = {"customer": "customer_a"}
MISSING: Final = object()

type Json = dict[str, Any]


INVALID: Final[list[tuple[str, str, Json, str, tuple[Any, ...]]]] = [
    *(
        ("POST", "/carrides", BOOKING, name, (MISSING,))
        for name in ("pickup", "destination", "price")
    ),
    (
        "POST",
        "/carrides",
        BOOKING,
        "customerID",
        (MISSING, 7, None, "", "a'; DROP TABLE rides; --", "customer_a\n"),
    ),
    ("POST", "/carrides", BOOKING, "customerID", ("Zoë", "🚕", "a" * 65, {"$ne": None})),
    ("POST", "/carrides", BOOKING, "destination", ("../sector_01",)),
    ("POST", "/carrides", BOOKING, "passengers", (0, 9, 1.5, "2", True)),
    ("POST", "/carrides", BOOKING, "price", (0, 10_000_001, 12.5, 10**400)),
    *(("POST", "/carrides", BOOKING, unknown, ({},)) for unknown in ("orderID", "__proto__")),
    ("PUT", "/carrides/order_01", CHANGE, "action", (MISSING, None, ["accept"], "teleport")),
    ("PUT", "/carrides/order_01", CHANGE, "version", (MISSING, 0, "1", 10**20)),
    ("PUT", "/carrides/order_01", CANCEL, "reason", (MISSING, "", "x" * 201)),
    ("PUT", "/carrides/order_01", CHANGE, "reason", ("an unknown field",)),
    ("PUT", "/carrides/order_01", ELSEWHERE | {"price": 1}, "destination", (MISSING,)),
    ("PUT", "/carrides/order_01", ELSEWHERE | {"destination": "sector_02"}, "price", (MISSING,)),
    *(
        ("POST", SIMULATE, {}, name, (bad,))
        for name, bad in {"poison": 3, "seed": "x", "mode": "wild"}.items()
    ),
    ("POST", SIMULATE, {}, "rate", (0,)),
    ("POST", SIMULATE, {"rate": 1}, "duration", (0, 601)),
    ("POST", SIMULATE, {"duration": 60}, "rate", (MISSING,)),
    ("POST", SIMULATE, {"rides": 1, "rate": 1}, "duration", (60,)),  # two ends
    ("POST", SIMULATE, {"duplicates": 1}, "rides", (500, 501)),  # too many events
    ("POST", SIMULATE, {"rate": 50}, "duration", (600,)),
    # Too slow.
    *(("POST", SIMULATE, end, "rate", (0.001,)) for end in ({"rides": 150}, {"duration": 600})),
]


def test_an_invalid_field_is_named(world: World) -> None:
    """Missing and unknown fields, wrong types and values out of range are refused."""
    world.restart(DEV)
    cases = [(*case, value) for *case, values in INVALID for value in values]
    for number, (method, path, valid, field, value) in enumerate(cases):
        body = {
            name: content
            for name, content in (valid | {field: value}).items()
            if content is not MISSING
        }
        answer = world.ask(request(method, path, body, key=str(number), authorizer=STAFF))
        assert (answer.status, answer.problem, answer.body["field"]) == (
            422,
            "invalid-field",
            field,
        ), (body, answer)
    keys = {item["idempotencyKey"].split("#")[0] for item in world.items("idempotency")}
    assert keys == {"carride-api-simulate"}, (
        "an invalid request is not stored; a simulation that is too large is"
    )
    assert world.simulations == world.items("bookings") == world.items("outbox") == []


@pytest.mark.parametrize(
    ("query", "field", "values"),
    [
        ({}, "customer", (MISSING, "", "' OR 1=1 --", "customer_a,customer_b")),
        (CUSTOMER, "limit", ("0", "101", "many")),
        (
            CUSTOMER,
            "next",
            ("", "nonsense", "é", "W10", "x" * 257, "WyIyMDI2LTExLTIxIiwib3JkZXJfMDEiXQ"),
        ),
        (CUSTOMER, "next", ("WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzE0OjAwIiwib3JkZXJfMDEiXQ",)),
        (CUSTOMER, "sort", ("price",)),
    ],
)
def test_an_invalid_parameter_is_named(
    world: World, query: Json, field: str, values: tuple[Any, ...]
) -> None:
    """Parameters are validated, and unknown ones are refused."""
    for value in values:
        asked = query if value is MISSING else query | {field: value}
        answer = world.ask(request("GET", "/carrides", key=None, query=asked))
        assert (answer.status, answer.problem, answer.body["field"]) == (
            400,
            "invalid-request",
            field,
        ), value


JSON: Final = json.dumps(BOOKING).encode()
UNREADABLE: Final = [
    *(
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"price": NaN}',
        b"{'a': 1}",
        b'{"a": "\\ud800"}',
        b"[" * 10_000,
    )
]


@pytest.mark.parametrize(
    ("method", "path", "valid"),
    [("POST", "/carrides", BOOKING), ("PUT", "/carrides/order_01", CHANGE), ("POST", SIMULATE, {})],
)
def test_a_request_that_cannot_be_read(world: World, method: str, path: str, valid: Json) -> None:
    """A body is one JSON object of a limited size, and a key is one valid header."""
    base64 = request(method, path, b"") | {"body": "é", "isBase64Encoded": True}
    keys = (None, "", "a b", "a,b", "x" * 256, "é")
    types = ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "")
    invalid = [base64, *(request(method, path, body) for body in UNREADABLE)]
    invalid += [request(method, path, valid, key=key) for key in keys]
    large = [request(method, path, JSON.ljust(size)) for size in (16_385, 2_000_000)]
    other = [
        request(method, path, valid, headers={"content-type": media_type}) for media_type in types
    ]
    refused = {
        (400, "invalid-request"): invalid,
        (413, "too-large"): large,
        (415, "unsupported-media-type"): other,
    }
    for expected, events in refused.items():
        for event in events:
            answer = world.ask(event)
            assert (answer.status, answer.problem) == expected, event
    assert world.items("bookings") == world.items("outbox") == world.items("idempotency") == []


def test_json_by_its_other_names_is_accepted(world: World) -> None:
    """Every JSON media type is read."""
    for media_type in (
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/ld+json",
    ):
        headers = {"content-type": media_type}
        assert world.ask(request("POST", "/carrides", BOOKING, headers=headers)).status == 201


def test_an_unknown_ride(world: World) -> None:
    """A ride that does not exist cannot be read or changed, whatever its name."""
    for order_id in ("order_01", "no ride", "'; DROP TABLE rides", "x" * 10_000, "乗車", "\ud800"):
        assert (
            world.ask(request("GET", f"/carrides/{order_id}", key=None)).problem == "unknown-ride"
        )
        answer = world.ask(
            request("PUT", f"/carrides/{order_id}", CHANGE, key=str(len(ascii(order_id))))
        )
        assert (answer.status, answer.problem) == (404, "unknown-ride")
    assert world.items("bookings") == world.items("outbox") == []


@pytest.mark.parametrize(
    ("done", "change", "status", "problem", "field"),
    [
        ([], {"action": "start"}, 409, "illegal-transition", "action"),
        (
            ["accept", "start", "complete"],
            CANCEL | {"reason": "x"},
            409,
            "illegal-transition",
            "action",
        ),
        (["accept"], CANCEL | {"reason": "x", "version": 1}, 409, "stale-version", "version"),
        (
            [],
            ELSEWHERE | {"destination": "sector_03", "price": 1},
            422,
            "invalid-field",
            "destination",
        ),
        (
            [],
            ELSEWHERE | {"destination": "sector_01", "price": 1},
            422,
            "invalid-field",
            "destination",
        ),
    ],
)
def test_what_a_ride_refuses_changes_nothing(
    world: World, done: list[str], change: Json, status: int, problem: str, field: str
) -> None:
    """A refusal says which field it is about, and the version of the ride.

    The ride stays as it is.
    """
    order_id = world.booked(*done)
    before = world.items("bookings"), len(world.outbox())
    stale = {} if problem == "stale-version" else {"version": len(done) + 1}
    answer = world.ask(request("PUT", f"/carrides/{order_id}", change | stale, key="refused"))
    assert (answer.status, answer.problem, answer.body["field"]) == (status, problem, field)
    assert answer.body["version"] == len(done) + 1
    assert (world.items("bookings"), len(world.outbox())) == before
    assert world.book(key="circle", destination=BOOKING["pickup"]).body["field"] == "destination"


class LaterBook(Book, frozen=True, kw_only=True):
    """`Book` after it has gained an optional field."""

    payment_method: str | None = None


def test_a_retry_after_a_deployment_gets_its_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optional field that a command gains changes the fingerprint only where it is set."""
    before = world.book(key="a")
    key = "POST /carrides"
    later = ROUTES[key]._replace(request=LaterBook)
    monkeypatch.setitem(cast("dict[str, Route]", ROUTES), key, later)
    assert world.book(key="a").body == before.body
    assert world.book(key="a", paymentMethod="card").problem == "idempotency-key-reused"


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    "spec",
    [
        Spec(rides=1),
        Spec(rides=120),
        Spec(rides=60, duplicates=1.0),
        Spec(duration=0.5, rate=1),
        Spec(duration=20, rate=7, duplicates=1.0),
    ],
)
def test_the_api_never_underestimates_a_simulation(spec: Spec, mode: Mode) -> None:
    """No simulation has more events than the API's limit is compared with."""
    for seed in range(30):
        simulated = replace(spec, mode=mode, seed=seed)
        assert len(Simulation(simulated, NOW)) <= most_events(simulated)
