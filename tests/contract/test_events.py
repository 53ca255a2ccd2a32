import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft4Validator, ValidationError

from carride.events import FACTS, ContractError, Fact, parse_event
from carride.samples import samples
from carride.schemas import file_name
from carride.simulation import Kind, Mode, Simulation, Spec
from idempotency.fingerprint import fingerprint
from tests.contract.cloudevents_rules import FORMATS, assert_cloud_event, data_of
from tests.unit.carride.rides import NOW, event, every_fact

ROOT: Final = Path(__file__).parents[2]
SCHEMAS: Final = ROOT / "events" / "schemas"
TOLD: Final = Path(__file__).parent / "told"
"""Events as they were told in the past. None of these files may ever change: archives hold their like."""


def assert_conforms(detail: Mapping[str, Any]) -> None:
    """Fail unless a detail is what its schema, and CloudEvents, say that it is."""
    schema = json.loads((SCHEMAS / file_name(FACTS[detail["type"]])).read_text())
    validator = Draft4Validator(schema, format_checker=FORMATS)
    validator.validate(detail)
    assert_cloud_event(detail)
    if "data_base64" in detail:
        attributes = {name: value for name, value in detail.items() if name != "data_base64"}
        validator.validate(attributes | {"data": data_of(detail)})


@pytest.mark.parametrize("fact", every_fact(), ids=lambda fact: type(fact).__name__)
def test_every_type_of_event_conforms(fact: Fact) -> None:
    """What the code emits is a CloudEvents event, and what its schema says."""
    cause = event(every_fact()[0], traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert_conforms(event(fact).to_detail())
    assert_conforms(event(fact, cause=cause, expirytime=NOW, extensions={"simulatedfault": "slow"}).to_detail())


@pytest.mark.parametrize("mode", Mode)
def test_every_simulated_event_conforms(mode: Mode) -> None:
    """The simulator emits what the schemas say, but where it was asked not to."""
    simulation = Simulation(Spec(mode=mode, rides=50, seed=7, duplicates=0.2, late=2, crashes=2), NOW)
    for simulated in simulation.entries():
        assert_conforms(json.loads(simulated.entry.detail))


@pytest.mark.parametrize("kind", [Kind.MISSING_ID, Kind.PARTIAL_ID, Kind.UNKNOWN_TYPE, Kind.BROKEN_SHAPE])
def test_schemas_and_reader_refuse_the_same(kind: Kind) -> None:
    """What the simulator spoils is refused by the schema too, so that the registry tells the truth."""
    for simulated in Simulation(Spec(rides=2, seed=7, malformed=12), NOW).entries():
        if simulated.kind is kind:
            detail = json.loads(simulated.entry.detail)
            with pytest.raises(ContractError):
                parse_event({"detail": detail})
            if kind is not Kind.UNKNOWN_TYPE:
                with pytest.raises(ValidationError):
                    assert_conforms(detail)


@pytest.mark.parametrize(
    ("name", "value"), [("time", "2026-11-21"), ("dataschema", "CarRideCreated"), ("source", "a b"), ("Tenant", "x")]
)
def test_the_rules_find_what_is_no_cloud_event(name: str, value: str) -> None:
    """The rules that the other tests rely on refuse a wrong time, URI and name."""
    with pytest.raises(ValidationError):
        assert_cloud_event(event().to_detail() | {name: value})


@pytest.mark.parametrize("path", sorted(TOLD.iterdir()), ids=lambda path: path.stem)
def test_events_of_the_past_can_be_read(path: Path) -> None:
    """An event that was told once is read as long as an archive may hold it, with all that it says."""
    detail = json.loads(path.read_text())
    read = parse_event({"detail": detail})
    assert read.type in path.stem
    assert detail["data"].items() <= read.payload.items()


def test_there_is_an_event_of_the_past_of_every_type_and_envelope() -> None:
    """No type can change without one of these tests having its say."""
    assert {path.stem for path in TOLD.iterdir()} == {
        *(f"{name}.v{fact.schema_version}" for name, fact in FACTS.items()),
        "CarRideCreated.older",
    }


def test_a_reader_that_learns_a_field_knows_older_events_again() -> None:
    """The fingerprint of an event is over what was sent, so that neither an upgrade nor an envelope changes it."""
    samples_ = samples()
    live = parse_event(samples_["ride_history_live.json"])
    again = parse_event(json.loads(json.dumps(samples_["ride_history_replayed.json"])))
    assert fingerprint(live.payload) == fingerprint(again.payload) == fingerprint(live.to_detail()["data"])
    newer, older = (
        json.loads((TOLD / name).read_text()) for name in ("CarRideCreated.v1.json", "CarRideCreated.older.json")
    )
    assert fingerprint(parse_event({"detail": newer}).payload) == fingerprint(parse_event({"detail": older}).payload)
