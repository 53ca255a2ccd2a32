"""One run of the whole pipeline down every path on which its functions ask AWS for something."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from carride.overdue import shard, sortable_time
from local.local_aws import FAULTS, ROOT, LocalAws
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import fleet
from ops.simulation import simulate
from tests.functions.api.client import BOOKING, Api
from tests.functions.world import request
from tests.kit.rides import NOW
from tests.kit.rides import event as event_of
from tests.pipeline.saga.town import CARS, DECLINED, SEED, Town
from tools.transformed import source

SAMPLES: Final = sorted((ROOT / "events").glob("*.json"))
FUNCTIONS: Final = {
    Path(resource["Properties"]["CodeUri"]).name: name
    for name, resource in source()["Resources"].items()
    if resource["Type"] == "AWS::Serverless::Function"
}
"""The function that a sample is for, by the prefix of the sample's name."""


@pytest.fixture(scope="session")
def town() -> Iterator[Town]:
    """Return a stack, on an engine of its own, that has gone down every path."""
    troubles = Troubles(declined=DECLINED)
    with (
        GatewayServer(Books(troubles, seed=SEED)) as gateway,
        LocalAws("--retry-delays=0.02,0.02", *FAULTS) as cloud,
    ):
        cloud.build()
        stack = cloud.deploy_fast("every-path", PaymentGatewayUrl=gateway.url)
        fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], CARS)
        town = Town(cloud, stack, gateway)
        _ask_the_api(Api(cloud, stack))
        _list_as_an_owner(town)
        _simulate(town)
        _ride(town)
        _break(town)
        _reconcile(town)
        _hold_up_the_pipe(town)
        _invoke_samples(town)
        town.settle()
        yield town


def _ask_the_api(api: Api) -> None:
    booked, again = (api.send("POST", "/carrides", BOOKING, key="book").body for _ in range(2))
    assert booked == again
    ride = f"/carrides/{booked['orderID']}"
    api.send("PUT", ride, {"action": "accept", "version": booked["version"]}, key="accept")
    api.cloud.wait_until_quiet()
    for path in (ride, f"/carrides?customer={BOOKING['customerID']}", "/openapi.json"):
        assert api.send("GET", path).status == 200, path
    assert (
        api.send("POST", "/carrides/simulate", {"rides": 1, "seed": 7}, key="simulate").status
        == 202
    )
    assert api.send("POST", "/carrides", BOOKING | {"price": -1}, key="refused").status == 422


def _list_as_an_owner(town: Town) -> None:
    """List rides as the API of a stage in which not everyone is staff."""
    functions = town.cloud.client("lambda")
    function = town.stack.resources["CarRideApiFunction"]
    known = functions.get_function_configuration(FunctionName=function)["Environment"]["Variables"]
    for stage in ("dev", known["STAGE"]):
        functions.update_function_configuration(
            FunctionName=function, Environment={"Variables": known | {"STAGE": stage}}
        )
        asked = request(
            "GET",
            "/carrides",
            query={"customer": BOOKING["customerID"]},
            authorizer={"jwt": {"claims": {"sub": "somebody"}}},
        )
        answer = functions.invoke(FunctionName=function, Payload=json.dumps(asked))
        assert json.loads(answer["Payload"].read())["statusCode"] == 200


def _simulate(town: Town) -> None:
    """Publish duplicates, late, malformed and poisoned events, and some that the bus refuses."""
    request = {
        "rides": 4,
        "seed": 3,
        "duplicates": 0.5,
        "malformed": 12,
        "late": 2,
        "crashes": 1,
        "poison": 1,
    }
    list(simulate(town.stack, request))
    town.settle()


def _ride(town: Town) -> None:
    """Assign and free cars, also in the wrong order, and take and refund money."""
    paid = town.ride()
    backwards = town.ride()
    cancelled = town.ride()
    broke = town.ride(broke=True)
    town.hear(paid.accepted, paid.completed, backwards.completed, backwards.accepted)
    town.hear(cancelled.accepted, cancelled.cancelled, broke.accepted, broke.completed)


def _break(town: Town) -> None:
    """Publish events that each consumer acts on, late or broken."""
    for fact in (town.ride().accepted, town.ride().assigned):
        late = event_of(fact, expirytime=NOW - timedelta(days=1)).to_detail()
        town.put(late, event_of(fact).to_detail() | {"idempotencyid": None})
    town.settle()


def _reconcile(town: Town) -> None:
    """Cancel a booking, settle rides without one, set a broken one aside, dead-letter a run.

    One ride's event is ahead of the clock, so the history's record of it tells when it was heard.
    """
    ahead = datetime.now(UTC) + timedelta(days=3)
    town.hear(town.ride().accepted)
    town.put(event_of(town.ride().accepted).to_detail() | {"time": ahead.isoformat()})
    town.settle()
    _break_a_booking(town)
    town.reconcile()
    reconciler = town.stack.outputs["ReconcilerFunctionName"]
    town.cloud.client("lambda").invoke(
        FunctionName=reconciler, InvocationType="Event", Payload=b"{}"
    )
    town.settle()


def _break_a_booking(town: Town) -> None:
    """Write an overdue booking that holds no ride."""
    order_id = "unreadable"
    item = {"orderID": order_id, "openShard": shard(order_id), "openSince": sortable_time(NOW)}
    town.cloud.client("dynamodb").put_item(
        TableName=town.stack.outputs["BookingTableName"],
        Item={name: {"S": value} for name, value in item.items()},
    )


def _hold_up_the_pipe(town: Town) -> None:
    """Write an item of the outbox that no bus accepts, so that the pipe dead-letters it."""
    item = {"id": "nobody's", "region": town.cloud.region, "source": "", "time": NOW.isoformat()}
    town.cloud.client("dynamodb").put_item(
        TableName=town.stack.outputs["OutboxTableName"],
        Item={name: {"S": value} for name, value in item.items()},
    )


def _invoke_samples(town: Town) -> None:
    for sample in SAMPLES:
        function = next(
            name for prefix, name in FUNCTIONS.items() if sample.name.startswith(prefix)
        )
        town.cloud.client("lambda").invoke(
            FunctionName=town.stack.resources[function], Payload=sample.read_bytes()
        )
