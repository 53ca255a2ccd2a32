"""Rides over HTTP, from the request to the read model, on the deployed template."""

from concurrent.futures import ThreadPoolExecutor

from local.local_aws import LocalAws
from tests.functions.api.client import BOOKING, OWN, Api


def test_a_ride_is_booked_driven_and_read(api: Api) -> None:
    """Each request makes one event, which reaches the bus by the outbox and the read model by its consumer."""
    booked = api.send("POST", "/carrides", BOOKING, key="book")
    assert booked.status == 201
    path = booked.headers["Location"]
    for version, action in enumerate(("accept", "start", "complete"), start=1):
        changed = api.send("PUT", path, {"action": action, "version": version}, key=action)
        assert (changed.status, changed.body["version"]) == (200, version + 1)
    api.wait()
    read = api.send("GET", path)
    assert (read.status, read.body["status"]) == (200, "completed")
    assert [entry["type"] for entry in read.body["timeline"] if entry["type"].startswith(OWN)] == [
        "CarRideCreated",
        "CarRideAccepted",
        "CarRideStarted",
        "CarRideCompleted",
    ]
    listed = api.send("GET", "/carrides?customer=customer_a")
    assert [ride["orderID"] for ride in listed.body["rides"]] == [booked.body["orderID"]]


def test_ten_equal_requests_at_once_book_one_ride(api: Api) -> None:
    """Ten simultaneous copies of a request get one answer or a 409, and book one ride."""
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: api.insist("POST", "/carrides", BOOKING, key="same"), range(10)))
    booked = [answer for answer in answers if answer.status != 409]
    assert booked
    assert {answer.status for answer in booked} == {201}
    assert all(answer.body == booked[0].body for answer in booked)
    assert all("Retry-After" in answer.headers for answer in answers if answer.status == 409)
    api.wait()
    assert len(api.items("BookingTableName")) == len(api.outbox()) == 1
    assert len(api.published()) == 1


def test_ten_changes_at_once_make_one_of_them(api: Api) -> None:
    """Of ten clients that change a ride at the same version, one succeeds; the others get the present version."""
    path = api.send("POST", "/carrides", BOOKING, key="book").headers["Location"]
    change = {"action": "accept", "version": 1}
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda number: api.insist("PUT", path, change, key=f"client-{number}"), range(10)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 9
    assert {answer.body["version"] for answer in answers} == {2}
    api.wait()
    assert [event["detail"]["sequence"] for event in api.published()] == ["00000001", "00000002"]


def test_what_the_outbox_holds_is_published_once_and_whole(api: Api) -> None:
    """Fifty rides make fifty events on the bus, with the ids of their items."""
    for number in range(50):
        assert api.send("POST", "/carrides", BOOKING, key=f"ride-{number}").status == 201
    api.wait()
    published = api.published()
    assert sorted(event["detail"]["id"] for event in published) == sorted(str(item["id"]) for item in api.outbox())
    assert len(api.items("RideTableName")) == 50
    assert {(event["source"], event["detail-type"]) for event in published} == {("acr.com.car-ride", "CarRideEvent")}
    assert all(event["detail"]["time"].startswith(event["time"].removesuffix("Z")) for event in published)


def test_a_simulation_runs_after_its_answer(api: Api) -> None:
    """A simulation that was started over HTTP publishes its rides once for one key."""
    for _ in range(2):
        assert api.send("POST", "/carrides/simulate", {"rides": 5}, key="same").status == 202
    api.wait()
    assert len(api.items("RideTableName")) == 5
    ids = [event["detail"]["id"] for event in api.published()]
    assert len(ids) == len(set(ids))


def test_the_document_is_served(api: Api) -> None:
    """The API serves its description."""
    assert api.send("GET", "/openapi.json").body["info"]["title"] == "CarRide"


def test_nobody_is_let_in_unsigned_outside_stage_local(cloud: LocalAws, name: str) -> None:
    """In every stage but `local`, each route refuses a request that carries no signature."""
    api = Api(cloud, cloud.deploy_fast(name, Stage="dev"))
    routes = [("POST", "/carrides"), ("GET", "/carrides?customer=customer_a"), ("PUT", "/carrides/order_01")]
    routes += [("GET", "/carrides/order_01"), ("POST", "/carrides/simulate"), ("GET", "/openapi.json")]
    assert {api.send(method, path, BOOKING, key="key").status for method, path in routes} == {403}
    assert api.send("POST", "/carrides", BOOKING, key="key", sign=True).status == 201
    cloud.delete_stack(name)
