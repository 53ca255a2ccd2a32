"""The effects of requests to the API: answer, ride and event."""

from datetime import timedelta
from typing import Any, Final

import pytest
from botocore.exceptions import EndpointConnectionError
from msgspec.structs import replace

import carride_simulator
from carride.decoding import shaped
from carride.region_fence import KNOWN_FOR, mark
from carride_idempotency import marshalling
from tests.functions.world import BOOKING, DEV, SETTINGS, STAFF, TABLES, Answer, World, request

TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STORED: Final = ["idempotency", *TABLES]
XRAY: Final = "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1"


def test_a_ride_runs_to_its_end(world: World) -> None:
    """Booking and each change return the ride afterwards, and publish the event of its version."""
    booked = world.book()
    order_id = booked.body["orderID"]
    assert (booked.status, booked.headers["Location"]) == (201, f"/carrides/{order_id}")
    assert booked.body.items() <= world.items("bookings")[0].items()
    assert world.change(order_id, "accept", 1).body["status"] == "accepted"
    changed = world.change(order_id, "changeDestination", 2, destination="sector_09", price=2000)
    assert (changed.body["destination"], changed.body["price"]) == ("sector_09", 2000)
    assert world.change(order_id, "start", 3).body["status"] == "started"
    assert world.change(order_id, "complete", 4).body == {
        **changed.body,
        "status": "completed",
        "version": 5,
    }
    events = world.outbox()
    types = ["Created", "Accepted", "DestinationChanged", "Started", "Completed"]
    assert [event.type for event in events] == [f"CarRide{each}" for each in types]
    assert (events[2].payload["previousDestination"], events[2].payload["previousPrice"]) == (
        "sector_03",
        1250,
    )


def test_a_ride_has_a_hundred_versions_and_its_end_is_among_them(world: World) -> None:
    """However often the destination has changed, the ride can still be completed."""
    order_id = world.booked()
    world.put("bookings", world.item("bookings", order_id) | {"version": 96})
    assert (
        world.change(order_id, "changeDestination", 96, destination="sector_09", price=1).status
        == 200
    )
    refused = world.change(order_id, "changeDestination", 97, destination="sector_08", price=1)
    assert (refused.status, refused.problem, refused.body["version"]) == (
        409,
        "too-many-changes",
        97,
    )
    for version, action in enumerate(("accept", "start", "complete"), start=97):
        assert world.change(order_id, action, version).status == 200
    assert world.items("bookings")[0]["version"] == 100


@pytest.mark.parametrize(
    ("header", "xray", "trace"),
    [
        (TRACE, XRAY[:-1] + "0", TRACE),
        ("", XRAY, TRACE),
        (TRACE.upper(), XRAY, TRACE),
        ("nonsense", "", None),
    ],
)
def test_events_carry_the_trace_of_the_request(
    world: World, monkeypatch: pytest.MonkeyPatch, header: str, xray: str, trace: str | None
) -> None:
    """An event has the client's trace, or else X-Ray's.

    An invalid trace does not keep it from being published.
    """
    monkeypatch.setenv("_X_AMZN_TRACE_ID", xray)
    first = world.ask(request("POST", "/carrides", BOOKING, headers={"traceparent": header}))
    [event] = world.outbox()
    assert event.traceparent == trace or trace is None
    assert world.book() == first.replayed()  # a retry under another trace is the same request


def test_a_request_costs_one_transaction_and_its_copies_get_its_answer(world: World) -> None:
    """Booking is one round trip, a change is a read and a round trip.

    A copy writes nothing, in any process.
    """
    booked = world.book()
    assert world.spent() == ["TransactWriteItems"]
    order_id = booked.body["orderID"]
    accepted = world.change(order_id, "accept", 1)
    assert world.spent() == ["consistent GetItem", "TransactWriteItems"]
    assert world.book() == booked.replayed()
    assert world.spent() == ["TransactWriteItems"]  # refused, with the stored answer
    world.change(order_id, "start", 2)
    world.restart()
    world.spent()
    assert world.book() == booked.replayed()
    assert world.spent() == ["TransactWriteItems"]
    # Though its version is stale by now.
    assert world.change(order_id, "accept", 1) == accepted.replayed()
    assert len(world.outbox()) == 3


def test_a_fenced_region_reads_and_writes_nothing(world: World) -> None:
    """Within five seconds of a fence every write is a 503 with Retry-After and stores nothing.

    Reads are answered.

    The fence is read once in five seconds, and never in a stack without a peer. A write that cannot
    read it is refused.
    """
    world.restart(replace(SETTINGS, stack_role="primary"))
    order_id = world.booked()
    assert world.spent() == ["consistent GetItem", "TransactWriteItems"]
    world.dynamodb.put_item(TableName="operator", Item=mark(SETTINGS.aws_region))
    assert world.change(order_id, "accept", 1).status == 200
    world.clock.advance(KNOWN_FOR.total_seconds())
    stored = [world.items(table) for table in STORED]
    simulation = request("POST", "/carrides/simulate", {"rides": 5}, key="other")
    for answer in (
        world.change(order_id, "start", 2),
        world.book(key="other"),
        world.ask(simulation),
    ):
        assert (answer.status, answer.problem, answer.headers["Retry-After"]) == (
            503,
            "unavailable",
            "30",
        )
    assert [world.items(table) for table in STORED] == stored
    listed = world.ask(request("GET", "/carrides", query={"customer": "customer_a"}))
    assert [ride["orderID"] for ride in listed.body["rides"]] == [order_id]

    world.dynamodb.delete_item(TableName="operator", Key=mark(SETTINGS.aws_region))
    world.clock.advance(KNOWN_FOR.total_seconds())
    world.transport.answer("AccessDeniedException")
    assert world.book(key="third").problem == "unavailable"
    assert world.change(order_id, "start", 2).status == 200


def test_a_refusal_is_stored_by_one_write(world: World) -> None:
    """A refusal is stored with its key; a retry gets it even if it would succeed by then."""
    order_id = world.booked()
    world.spent()
    refused = world.change(order_id, "start", 2, key="hasty")
    assert (refused.problem, world.spent()) == ("stale-version", ["consistent GetItem", "PutItem"])
    world.change(order_id, "accept", 1)
    assert world.change(order_id, "start", 2, key="hasty") == refused.replayed()
    assert world.change(order_id, "start", 2, key="patient").status == 200


def test_another_request_under_the_same_key_is_refused(world: World) -> None:
    """A key that was used is refused for another price, another action, or a change of the ride."""
    without = {name: value for name, value in BOOKING.items() if name != "passengers"}
    booked = world.ask(request("POST", "/carrides", without, key="same"))
    # The default is the same request.
    assert world.book(key="same", passengers=1) == booked.replayed()
    order_id = booked.body["orderID"]
    assert world.change(order_id, "accept", 1).status == 200
    # The fields of the change under that key.
    started = world.change(order_id, "start", 1, key=f"{order_id}-accept-1")
    others = [world.book(key="same"), world.change(order_id, "cancel", 2, key="same"), started]
    assert {other.problem for other in others} == {"idempotency-key-reused"}
    assert [ride["version"] for ride in world.items("bookings")] == [2]


def test_callers_do_not_share_keys(world: World) -> None:
    """Two callers that choose the same key book two rides; one role's sessions are one caller."""
    users = ("AROAEXAMPLE1:monday", "AROAEXAMPLE1:tuesday", "AROAEXAMPLE2:monday")
    pool = (
        {"userId": "AROAEXAMPLE3:C", "cognitoIdentity": {"identityId": identity}}
        for identity in ("a", "b")
    )
    callers: list[Any] = [{"iam": {"userId": user}} for user in users] + [
        {"iam": identity} for identity in pool
    ]
    callers.append({"jwt": {"claims": {"sub": "AROAEXAMPLE1"}}})
    rides = [world.book(authorizer=caller).body["orderID"] for caller in callers]
    assert rides[0] == rides[1]
    assert len(set(rides)) == 5


def test_a_forgotten_key_books_no_second_ride(world: World) -> None:
    """If the record of a key is gone, its ride refuses a second booking."""
    world.book()
    world.dynamodb.delete_item(
        TableName="idempotency", Key={"idempotencyKey": {"S": "carride-api#anyone#key-1"}}
    )
    world.restart()
    assert world.book().problem == "idempotency-key-forgotten"
    assert len(world.items("bookings")) == len(world.outbox()) == 1


def test_a_change_that_was_overtaken_is_stale(world: World) -> None:
    """If two changes meet at one version, the second is decided again on the changed ride."""
    order_id = world.booked()
    world.transport.meanwhile(lambda: world.change(order_id, "cancel", 1))
    answer = world.change(order_id, "accept", 1)
    assert (answer.problem, answer.body["version"]) == ("stale-version", 2)
    created, cancelled = world.outbox()
    assert (created.type, cancelled.type, cancelled.payload["reason"]) == (
        "CarRideCreated",
        "CarRideCancelled",
        "x",
    )


def test_without_an_answer_from_dynamodb_the_client_retries(world: World) -> None:
    """A retry finds out what a transaction without an answer did.

    A retry of a failed read succeeds.
    """
    for _ in range(6):
        world.transport.lose_answer()
    answer = world.book()
    assert (answer.status, answer.problem) == (503, "unavailable")
    booked = world.book()
    assert (booked.status, len(world.items("bookings")), len(world.outbox())) == (201, 1, 1)
    order_id = booked.body["orderID"]
    world.transport.answer("AccessDeniedException")
    assert world.change(order_id, "accept", 1).problem == "unavailable"
    world.transport.answer("AccessDeniedException")
    assert world.read(order_id).problem == "unavailable"
    assert world.change(order_id, "accept", 1).status == 200


def test_a_ride_is_read_from_the_read_model(world: World) -> None:
    """The answer is the ride after its latest event with a sorted timeline."""
    order_id = world.booked()
    world.change(order_id, "accept", 1)
    assert world.read(order_id).problem == "unknown-ride"
    world.flow()
    answer = world.read(order_id)
    assert (answer.status, answer.body["status"], answer.body["version"]) == (200, "accepted", 2)
    assert [entry["type"] for entry in answer.body["timeline"]][:2] == [
        "CarRideCreated",
        "CarRideAccepted",
    ]


def simulate(world: World, key: str = "key-1", **body: Any) -> Answer:
    """Ask for a simulation, as staff."""
    return world.ask(request("POST", "/carrides/simulate", body, key=key, authorizer=STAFF))


def test_a_simulation_is_started_once(world: World) -> None:
    """A copy starts nothing; while the first is being started, it is refused for the moment."""
    copies: list[Answer] = []
    world.transport.pass_on()
    world.transport.meanwhile(lambda: copies.append(simulate(world, rides=3, duplicates=0.5)))
    answer = simulate(world, rides=3, duplicates=0.5)
    assert (answer.status, answer.body["rides"], answer.body["duplicates"]) == (202, 3, 0.5)
    assert [copy.problem for copy in copies] == ["request-in-progress"]
    assert simulate(world, rides=3, duplicates=0.5) == answer.replayed()
    assert world.simulations == [answer.body]
    shaped(answer.body, carride_simulator.SimulationRequest)


def test_the_defaults_of_a_simulation_are_filled_in(world: World) -> None:
    """By default ten rides are simulated with a seed from the key; given settings are kept."""
    asked = {"mode": "predefined", "duration": 60.0, "rate": 5.0, "seed": 7}
    one, two, three = (
        simulate(world, key, **body).body for key, body in (("a", {}), ("b", {}), ("c", asked))
    )
    assert (one["rides"], one["duration"]) == (10, None)
    assert one["seed"] != two["seed"]
    assert three.items() >= {**asked, "rides": None}.items()


def test_one_simulation_runs_at_a_time(world: World) -> None:
    """While a simulation runs, only its own request can start it again after a failure.

    In production none starts.
    """
    world.restart(DEV)
    world.simulator_error = EndpointConnectionError(endpoint_url="https://lambda")
    assert simulate(world, "a").problem == "unavailable"
    world.simulator_error = None
    assert simulate(world, "b").problem == "simulation-running"
    assert simulate(world, "a").status == 202
    [lock] = [item for item in world.items("idempotency") if "lock" in item["idempotencyKey"]]
    window_s = timedelta(minutes=16).total_seconds()
    ended = lock | {"expiryTimestamp": lock["expiryTimestamp"] - int(window_s)}
    world.dynamodb.put_item(TableName="idempotency", Item=marshalling.item(ended))
    world.restart(DEV)
    assert simulate(world, "c").status == 202
    assert len(world.simulations) == 2
    world.restart(replace(DEV, stage="prod"))
    assert simulate(world, "d").problem == "forbidden"
