import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from jsonschema import Draft4Validator, FormatChecker, ValidationError

from carride.events import ContractError, parse_event
from carride.facts import FACTS
from carride.simulation_spec import Mode, Spec
from carride_idempotency.fingerprint import fingerprint
from simulated_rides import Kind, Simulation
from tests.kit.rides import NOW
from tools.contract.schemas import schema

PAST: Final = [
    json.loads(line)
    for line in (Path(__file__).parent / "past_events.jsonl").read_text().splitlines()
]
"""Details that were published in the past. Lines are added and never changed: archives hold their
like."""
EVENTS: Final = Path(__file__).parents[3] / "events"
FORMATS: Final = FormatChecker(())


@FORMATS.checks("date-time", ValueError)
def _is_date_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).utcoffset() is not None


VALIDATORS: Final = {
    name: Draft4Validator(schema(fact), format_checker=FORMATS) for name, fact in FACTS.items()
}


def assert_conforms(detail: Mapping[str, Any]) -> None:
    """A detail is valid by its schema, and the CloudEvents SDK reads and writes it unchanged."""
    VALIDATORS[detail["type"]].validate(detail)
    read = JSONFormat().read(CloudEvent, json.dumps(detail))
    assert (read.get_id(), read.get_type()) == (detail["id"], detail["type"])
    assert (
        JSONFormat().read(CloudEvent, JSONFormat().write(read)).get_attributes()
        == read.get_attributes()
    )
    content = read.get_data()
    data = json.loads(content) if isinstance(content, bytes) else content
    attributes = {
        name: value for name, value in detail.items() if name not in {"data", "data_base64"}
    }
    VALIDATORS[detail["type"]].validate(attributes | {"data": data})


@pytest.mark.parametrize("mode", Mode)
def test_every_simulated_event_conforms(mode: Mode) -> None:
    """The simulator emits what the schemas say, unless it was asked not to."""
    simulation = Simulation(
        Spec(mode=mode, rides=50, seed=7, duplicates=0.2, late=2, crashes=2), NOW
    )
    for simulated in simulation.entries():
        assert_conforms(json.loads(simulated.entry.detail))


@pytest.mark.parametrize(
    "kind", [Kind.MISSING_ID, Kind.PARTIAL_ID, Kind.UNKNOWN_TYPE, Kind.BROKEN_SHAPE]
)
def test_schemas_and_reader_refuse_the_same(kind: Kind) -> None:
    """The schema refuses the events that the simulator breaks."""
    for simulated in Simulation(Spec(rides=2, seed=7, malformed=12), NOW).entries():
        if simulated.kind is kind:
            detail = json.loads(simulated.entry.detail)
            with pytest.raises(ContractError):
                parse_event({"detail": detail})
            with pytest.raises((ValidationError, KeyError)):
                assert_conforms(detail)


@pytest.mark.parametrize("detail", PAST, ids=lambda detail: detail.get("type", "older envelope"))
def test_events_of_the_past_can_be_read(detail: dict[str, Any]) -> None:
    """An event that was published stays readable with all its data, because archives hold it."""
    read = parse_event({"detail": detail})
    assert read.type == detail.get("attributes", detail)["type"]
    assert detail["data"].items() <= read.to_detail()["data"].items()
    assert_conforms(read.to_detail())


def test_there_is_an_event_of_the_past_of_every_type_and_envelope() -> None:
    """The past events cover every type and envelope."""
    names = {f"urn:acr:car-ride:{name}:{fact.schema_version}" for name, fact in FACTS.items()}
    assert {detail.get("dataschema", "older envelope") for detail in PAST} == names | {
        "older envelope"
    }


def test_a_copy_has_the_fingerprint_of_the_first() -> None:
    """A replay, the older envelope and a later field with a default keep the fingerprint."""
    live, again = (
        parse_event(json.loads((EVENTS / f"ride_history_{name}.json").read_text()))
        for name in ("live", "replayed")
    )
    assert fingerprint(live.payload) == fingerprint(again.payload)
    created = [
        parse_event({"detail": detail}) for detail in PAST if "CarRideCreated" in json.dumps(detail)
    ]
    assert [
        "currency" in detail["data"] for detail in PAST if "CarRideCreated" in json.dumps(detail)
    ] == [0, 0, 1]
    assert (
        len({fingerprint(each.payload) for each in created})
        == len({each.idempotencyid for each in created})
        == 1
    )
    dollars = parse_event({"detail": PAST[-1] | {"data": PAST[-1]["data"] | {"currency": "USD"}}})
    assert fingerprint(dollars.payload) != fingerprint(created[0].payload)
    assert dollars.to_detail()["data"]["currency"] == "USD"
