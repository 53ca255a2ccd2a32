"""What becomes of a request to the API: its answer, the ride, and the event that tells of it."""

from typing import Any, Final

import pytest
from botocore.exceptions import EndpointConnectionError
from msgspec.structs import replace

import carride_simulator
from carride.decoding import shaped
from carride.events import (
    CarRideAccepted,
    CarRideCancelled,
    CarRideCompleted,
    CarRideCreated,
    CarRideDestinationChanged,
    CarRideStarted,
)
from tests.unit.functions.api_fixtures import *  # noqa: F403 - the fixtures
from tests.unit.functions.api_world import BOOKING, DEV, STAFF, Answer, World, request


def test_booking_makes_ride_and_event(world: World) -> None:
    """A booked ride is at version 1, and the outbox tells of it."""
    answer = world.book()
    assert answer.status == 201
    assert answer.body["status"] == "requested"
    assert answer.headers["Location"] == f"/carrides/{answer.body['orderID']}"
    assert world.bookings() == [answer.body]
    [event] = world.told()
    assert isinstance(event.data, CarRideCreated)
    assert (event.subject, event.data.version, event.data.price) == (answer.body["orderID"], 1, 1250)


def test_a_ride_runs_to_its_end(world: World) -> None:
    """Each change is answered with the ride as it is then, and told by the event of its version."""
    order_id = world.book().body["orderID"]
    assert world.change(order_id, "accept", 1).body["status"] == "accepted"
    changed = world.change(order_id, "changeDestination", 2, destination="sector_09", price=2000)
    assert (changed.body["destination"], changed.body["price"]) == ("sector_09", 2000)
    assert world.change(order_id, "start", 3).body["status"] == "started"
    assert world.change(order_id, "complete", 4).body == {**changed.body, "status": "completed", "version": 5}
    assert [type(event.data) for event in world.told()] == [
        CarRideCreated,
        CarRideAccepted,
        CarRideDestinationChanged,
        CarRideStarted,
        CarRideCompleted,
    ]
    redirected = world.told()[2].data
    assert isinstance(redirected, CarRideDestinationChanged)
    assert (redirected.previous_destination, redirected.previous_price) == ("sector_03", 1250)


@pytest.mark.parametrize("end", [("accept", "start", "complete"), ("cancel",)])
def test_a_ride_has_a_hundred_versions_and_its_end_is_among_them(world: World, end: tuple[str, ...]) -> None:
    """However often the destination has changed, the ride can still be driven to its end, or cancelled."""
    order_id = world.book().body["orderID"]
    world.dynamodb.update_item(
        TableName="Bookings",
        Key={"orderID": {"S": order_id}},
        UpdateExpression="SET version = :many",
        ExpressionAttributeValues={":many": {"N": "96"}},
    )
    assert world.change(order_id, "changeDestination", 96, destination="sector_09", price=1).status == 200
    refused = world.change(order_id, "changeDestination", 97, destination="sector_08", price=1)
    assert (refused.status, refused.problem, refused.body["version"]) == (409, "too-many-changes", 97)
    for version, action in enumerate(end, start=97):
        reason: dict[str, Any] = {"reason": "x"} if action == "cancel" else {}
        assert world.change(order_id, action, version, **reason).status == 200
    [ride] = world.bookings()
    assert ride["version"] == 97 + len(end) <= 100


def test_cancelling_tells_the_reason(world: World) -> None:
    """The event of a cancelled ride says why."""
    order_id = world.book().body["orderID"]
    assert world.change(order_id, "cancel", 1, reason="changed plans").status == 200
    cancelled = world.told()[-1].data
    assert isinstance(cancelled, CarRideCancelled)
    assert cancelled.reason == "changed plans"


TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_events_carry_the_trace_of_the_request(world: World) -> None:
    """An event is part of the trace that asked for it; a retry under another trace is still the same request."""
    first = world.send(request("POST", "/carrides", BOOKING, headers={"traceparent": TRACE}))
    assert (
        world.send(request("POST", "/carrides", BOOKING, headers={"traceparent": TRACE[:-2] + "00"}))
        == first.replayed()
    )
    [event] = world.told()
    assert event.traceparent == TRACE


def test_a_request_without_a_trace_is_part_of_the_invocations(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the client has no trace, the events continue the one that X-Ray began at the API."""
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1")
    world.send(request("POST", "/carrides", BOOKING))
    assert world.told()[0].traceparent == TRACE


@pytest.mark.parametrize("header", ["", "nonsense", TRACE.upper(), TRACE.replace("4", "0").replace("bf92f", "\n")])
def test_a_trace_that_is_none_does_not_cost_the_event(world: World, header: str) -> None:
    """A header that is no trace is passed over."""
    assert world.send(request("POST", "/carrides", BOOKING, headers={"traceparent": header})).status == 201
    assert world.told()[0].traceparent != header


# ── Once ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_request_again_gets_the_same_answer(world: World) -> None:
    """A retry, in this process or another, makes no second ride."""
    first = world.book()
    assert world.book() == first.replayed()
    world.handler = world.process()
    assert world.book() == first.replayed()
    assert len(world.bookings()) == len(world.told()) == 1


def test_a_change_takes_effect_once(world: World) -> None:
    """A retry of a change is answered with the ride as the change left it, though its version is stale by then."""
    order_id = world.book().body["orderID"]
    first = world.change(order_id, "accept", 1)
    world.change(order_id, "start", 2)
    world.handler = world.process()
    assert world.change(order_id, "accept", 1) == first.replayed()
    assert len(world.told()) == 3


def test_what_was_refused_stays_refused(world: World) -> None:
    """A refusal is remembered with its key: the retry meets it too, even where it would succeed by then."""
    order_id = world.book().body["orderID"]
    refused = world.change(order_id, "start", 2, key="hasty")
    world.change(order_id, "accept", 1)
    assert refused.problem == "stale-version"
    assert world.change(order_id, "start", 2, key="hasty") == refused.replayed()
    assert world.change(order_id, "start", 2, key="patient").status == 200


def test_another_request_under_the_same_key_is_refused(world: World) -> None:
    """One key names one request: another price, a change of the ride, and another action are told so."""
    order_id = world.book(key="same").body["orderID"]
    assert world.change(order_id, "accept", 1).status == 200
    others = [world.book(key="same", price=1), world.change(order_id, "cancel", 2, key="same", reason="x")]
    others.append(world.change(order_id, "start", 1, key="accept-1"))  # has the fields of the change under that key
    assert {other.problem for other in others} == {"idempotency-key-reused"}
    assert [ride["version"] for ride in world.bookings()] == [2]


def test_a_default_that_is_spelled_out_is_the_same_request(world: World) -> None:
    """One passenger, said or not, is one passenger."""
    without = {name: value for name, value in BOOKING.items() if name != "passengers"}
    first = world.send(request("POST", "/carrides", without))
    assert world.book(passengers=1) == first.replayed()


def test_callers_do_not_share_keys(world: World) -> None:
    """Two callers that happen to choose the same key book two rides; one role's sessions are one caller."""
    callers: list[dict[str, Any]] = [
        {"iam": {"userId": "AROAEXAMPLE1:monday"}},
        {"iam": {"userId": "AROAEXAMPLE1:tuesday"}},
        {"iam": {"userId": "AROAEXAMPLE2:monday"}},
        {"iam": {"userId": "AROAEXAMPLE3:Cognito", "cognitoIdentity": {"identityId": "us-east-1:1"}}},
        {"iam": {"userId": "AROAEXAMPLE3:Cognito", "cognitoIdentity": {"identityId": "us-east-1:2"}}},
        {"jwt": {"claims": {"sub": "AROAEXAMPLE1"}, "scopes": None}},
    ]
    answers = [world.send(request("POST", "/carrides", BOOKING, authorizer=caller)) for caller in callers]
    rides = [answer.body["orderID"] for answer in answers]
    assert rides[0] == rides[1]
    assert len(set(rides)) == 5


def test_a_forgotten_key_books_no_second_ride(world: World) -> None:
    """Once the record of a key is gone, the ride that was booked with it is still in the way."""
    world.book()
    world.dynamodb.delete_item(TableName="Idempotency", Key={"idempotencyKey": {"S": "carride-api#anyone#key-1"}})
    world.handler = world.process()
    assert world.book().problem == "idempotency-key-forgotten"
    assert len(world.bookings()) == len(world.told()) == 1


def test_a_copy_of_a_request_that_runs_is_told_to_wait(world: World) -> None:
    """While a simulation is being started, its copy gets 409 and when to ask again."""
    copies: list[Answer] = []
    event = request("POST", "/carrides/simulate", {"rides": 3})
    world.transport.pass_on()
    world.transport.meanwhile(lambda: copies.append(world.send(event, world.process())))
    assert (world.send(event).status, copies[0].problem, len(world.simulations)) == (202, "request-in-progress", 1)


# ── What it costs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_costs_one_transaction(world: World) -> None:
    """Booking is one round trip to DynamoDB, a change is a consistent read and one; a copy writes nothing."""
    order_id = world.book().body["orderID"]
    assert world.spent() == ["TransactWriteItems"]
    world.change(order_id, "accept", 1)
    assert world.spent() == ["consistent GetItem", "TransactWriteItems"]
    world.book()
    assert world.spent() == []  # this process has seen the answer a moment ago
    world.handler = world.process()
    world.book()
    assert world.spent() == ["TransactWriteItems"]


def test_a_refusal_costs_one_write(world: World) -> None:
    """What a ride refuses is remembered by a single write, and needs no transaction."""
    world.change("nowhere", "accept", 1)
    assert world.spent() == ["consistent GetItem", "PutItem"]


# ── What is in the way ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_change_that_was_overtaken_is_stale(world: World) -> None:
    """Where two changes meet at one version, the second is decided again on what the first has made of the ride."""
    order_id = world.book().body["orderID"]
    world.transport.meanwhile(lambda: world.change(order_id, "cancel", 1, reason="changed plans"))
    answer = world.change(order_id, "accept", 1)
    assert (answer.problem, answer.body["version"]) == ("stale-version", 2)
    assert [type(event.data) for event in world.told()] == [CarRideCreated, CarRideCancelled]


def test_where_dynamodb_gives_no_answer_the_client_is_to_ask_again(world: World) -> None:
    """A transaction without an answer is told as such; the retry finds out what became of it."""
    for _ in range(6):
        world.transport.lose_answer()
    answer = world.book()
    assert (answer.status, answer.problem) == (503, "unavailable")
    assert world.book().status == 201
    assert len(world.bookings()) == len(world.told()) == 1


def test_a_read_that_fails_is_unavailable_and_can_be_repeated(world: World) -> None:
    """A change that could not read its ride has not happened, and its retry happens."""
    order_id = world.book().body["orderID"]
    world.fail_reads("ThrottlingException")
    assert world.change(order_id, "accept", 1).problem == "unavailable"
    assert world.send(request("GET", f"/carrides/{order_id}")).problem == "unavailable"
    world.fail_reads(None)
    assert world.change(order_id, "accept", 1).status == 200


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ride_is_read_from_the_read_model(world: World) -> None:
    """The answer is the ride after its latest event, and what happened in order, whatever order it arrived in."""
    order_id = world.book().body["orderID"]
    world.change(order_id, "accept", 1)
    assert world.send(request("GET", f"/carrides/{order_id}")).problem == "unknown-ride"
    world.tell()
    answer = world.send(request("GET", f"/carrides/{order_id}"))
    assert (answer.status, answer.body["status"], answer.body["version"]) == (200, "accepted", 2)
    assert [entry["type"] for entry in answer.body["timeline"]] == ["CarRideCreated", "CarRideAccepted"]


def test_a_page_token_leads_to_no_other_customer(world: World) -> None:
    """A token says where a page ends, not whose it is."""
    for number in range(3):
        world.book(key=f"a-{number}")
        world.book(key=f"b-{number}", customerID="customer_b")
    token = world.send(request("GET", "/carrides", query={"customer": "customer_a", "limit": "1"})).body["next"]
    answer = world.send(request("GET", "/carrides", query={"customer": "customer_b", "next": token}))
    assert answer.body["rides"]
    assert {ride["customerID"] for ride in answer.body["rides"]} == {"customer_b"}


# ── Simulations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_simulation_is_started_once(world: World) -> None:
    """A copy of the request starts nothing; the answer says with which seed it can be repeated."""
    event = request("POST", "/carrides/simulate", {"rides": 3, "duplicates": 0.5})
    answer = world.send(event)
    assert world.send(event) == answer.replayed()
    assert (answer.status, answer.body["rides"], answer.body["duplicates"]) == (202, 3, 0.5)
    assert world.simulations == [answer.body]
    shaped(answer.body, carride_simulator.Request)


def test_what_a_simulation_leaves_open_is_settled(world: World) -> None:
    """Two keys simulate two cities, of ten rides each; a seed, a mode and a duration that are given are kept."""
    asked = {"mode": "predefined", "duration": 60.0, "rate": 5.0, "seed": 7}
    for key, body in (("a", {}), ("b", {}), ("c", asked)):
        world.send(request("POST", "/carrides/simulate", body, key=key))
    one, two, three = world.simulations
    assert (one["rides"], one["duration"]) == (10, None)
    assert one["seed"] != two["seed"]
    assert three.items() >= {**asked, "rides": None}.items()


class UnreachableOnce(list[Any]):
    """Simulations, of which the first cannot be started."""

    tried = False

    def append(self, simulation: Any) -> None:
        """Start a simulation."""
        if not self.tried:
            self.tried = True
            raise EndpointConnectionError(endpoint_url="https://lambda")
        super().append(simulation)


def test_simulations_take_turns(world: World) -> None:
    """While one runs, no other begins; its own request, sent again after a failure, is not in its own way."""
    world.simulations = UnreachableOnce()
    world.handler = world.process(DEV)

    def simulate(key: str) -> Answer:
        return world.send(request("POST", "/carrides/simulate", {}, key=key, authorizer=STAFF))

    assert simulate("a").problem == "unavailable"
    assert simulate("b").problem == "simulation-running"
    assert simulate("a").status == 202
    [turn] = [item["idempotencyKey"] for item in world.items("Idempotency") if "lock" in item["idempotencyKey"]]
    world.dynamodb.update_item(
        TableName="Idempotency",
        Key={"idempotencyKey": {"S": turn}},
        UpdateExpression="SET expiryTimestamp = expiryTimestamp - :turn",
        ExpressionAttributeValues={":turn": {"N": "910"}},
    )
    world.handler = world.process(DEV)
    assert simulate("c").status == 202
    assert len(world.simulations) == 2


def test_nothing_is_simulated_in_production(world: World) -> None:
    """Simulated rides never stand among real ones."""
    world.handler = world.process(replace(DEV, stage="prod"))
    assert world.send(request("POST", "/carrides/simulate", {}, authorizer=STAFF)).problem == "forbidden"
    assert world.simulations == []
