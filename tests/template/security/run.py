"""Everything that the functions can be made to do: each path that asks AWS for something is taken at least once."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from carride.facts import Fact
from local.demo import publish
from local.local_aws import ROOT
from tests.functions.api.client import BOOKING, Api
from tests.functions.saga import NOW, event_of
from tests.pipeline.saga.town import Town
from tests.template.stack import source

SAMPLES: Final = sorted((ROOT / "events").glob("*.json"))
FUNCTIONS: Final = {
    Path(resource["Properties"]["CodeUri"]).name: name
    for name, resource in source()["Resources"].items()
    if resource["Type"] == "AWS::Serverless::Function"
}
"""The function that a sample is for, by the beginning of the sample's name."""

_LONG_AGO: Final = NOW - timedelta(days=1)


def go_down_every_path(town: Town) -> None:
    """Have the stack do everything that it can."""
    _ask_the_api(Api(town.laptop, town.stack))
    _simulate(town)
    _ride(town)
    _break(town)
    _reconcile(town)
    _hold_up_the_pipe(town)
    _invoke_samples(town)
    town.settle()


def _ask_the_api(api: Api) -> None:
    """Every operation, and a copy of one request."""
    booked, again = (api.send("POST", "/carrides", BOOKING, key="book").body for _ in range(2))
    assert booked == again
    ride = f"/carrides/{booked['orderID']}"
    api.send("PUT", ride, {"action": "accept", "version": booked["version"]}, key="accept")
    api.laptop.wait_until_quiet()
    for path in (ride, f"/carrides?customer={BOOKING['customerID']}", "/openapi.json"):
        assert api.send("GET", path).status == 200, path
    assert api.send("POST", "/carrides/simulate", {"rides": 1, "seed": 7}, key="simulate").status == 202
    assert api.send("POST", "/carrides", BOOKING | {"price": -1}, key="refused").status == 422


def _simulate(town: Town) -> None:
    """Duplicates, late, malformed and poisoned events; some that the bus refuses."""
    request = {"rides": 4, "seed": 3, "duplicates": 0.5, "malformed": 12, "late": 2, "crashes": 1, "poison": 1}
    for _ in publish(town.laptop, town.stack, request):
        pass
    town.settle()


def _ride(town: Town) -> None:
    """A car is assigned and freed, is taken and given back at once, and is never found; money is taken and refunded."""
    paid, backwards, cancelled, broke = town.ride(), town.ride(), town.ride(), town.ride(broke=True)
    town.hear(paid.accepted, paid.completed, backwards.completed, backwards.accepted)
    town.hear(cancelled.accepted, cancelled.cancelled, broke.accepted, broke.completed)


def _break(town: Town) -> None:
    """Events that each consumer acts on, too late for it, or broken."""
    for fact in (town.ride().accepted, town.ride().assigned):
        town.put_details(_late(fact), _broken(fact))
    town.settle()


def _late(fact: Fact) -> dict[str, Any]:
    return event_of(fact, expirytime=_LONG_AGO).to_detail()


def _broken(fact: Fact) -> dict[str, Any]:
    return event_of(fact).to_detail() | {"idempotencyid": None}


def _reconcile(town: Town) -> None:
    """A booking is cancelled, a ride that was not booked is settled, and a run is given up."""
    town.hear(town.ride().accepted)
    town.reconcile()
    reconciler = town.stack.outputs["ReconcilerFunctionName"]
    town.laptop.client("lambda").invoke(FunctionName=reconciler, InvocationType="Event", Payload=b"{}")
    town.settle()


def _hold_up_the_pipe(town: Town) -> None:
    """An item of the outbox that no bus takes: the pipe gives it up in the end."""
    item = {"id": "nobody's", "region": town.laptop.region, "source": "", "time": NOW.isoformat()}
    town.laptop.client("dynamodb").put_item(
        TableName=town.stack.outputs["OutboxTableName"], Item={name: {"S": value} for name, value in item.items()}
    )


def _invoke_samples(town: Town) -> None:
    """Every sample, by the function that it is for."""
    for sample in SAMPLES:
        function = next(name for beginning, name in FUNCTIONS.items() if sample.name.startswith(beginning))
        town.laptop.client("lambda").invoke(FunctionName=town.stack.resources[function], Payload=_payload(sample))


def _payload(sample: Path) -> bytes:
    return json.dumps(json.loads(sample.read_text(encoding="utf-8"))).encode()
