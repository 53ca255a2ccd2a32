"""An event that goes into the outbox and comes out of its pipe is the same event."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from carride.events import Attributes, ContractError, RideEvent, parse_event
from carride.facts import CarAssigned, CarRideCreated, Fact, PaymentAuthorized, PaymentCaptured, PaymentDeclined
from carride.outbox import KEPT, NEVER, outbox_item
from tests.carride.contract.test_events import assert_conforms
from tests.carride.pipe import PLACE, image, pipe, piped, template
from tests.carride.rides import booked, every_fact

NOW: Final = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def event(fact: Fact | None = None, **attributes: object) -> RideEvent:
    """Return an event, of a booked ride if nothing else is said."""
    told = RideEvent.of(fact or CarRideCreated.of(booked()), source="acr.com.car-ride", time=NOW)
    return replace(told, **attributes)


def through(told: RideEvent) -> RideEvent:
    """Return what a consumer reads of an event that was told by the outbox."""
    return parse_event({"detail": piped(outbox_item(told, region="us-east-1", now=NOW))})


@pytest.mark.parametrize("fact", every_fact(), ids=lambda fact: type(fact).__name__)
def test_every_event_comes_out_as_it_went_in(fact: Fact) -> None:
    """Nothing of an event that has all attributes is lost or changed on the way."""
    told = event(fact, traceparent=TRACE, causationid="cause", expirytime=NOW + timedelta(hours=1))
    assert through(told) == told
    assert_conforms(piped(outbox_item(told, region="us-east-1", now=NOW)))


@given(
    st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.sampled_from([UTC, timezone(timedelta(hours=5.5))])),  # noqa: DTZ001
    st.text(min_size=1, max_size=200).filter(str.isprintable),
)
def test_any_time_and_any_text_survive(time: datetime, correlation: str) -> None:
    """Times come out as the same moment, and texts with quotes, backslashes and whatever else as they were."""
    told = event(time=time, correlationid=correlation, traceparent=TRACE, causationid=correlation, expirytime=time)
    assert through(told) == told


def test_what_an_event_lacks_is_said_in_so_many_words() -> None:
    """No path of the template is ever missing: what is not there is written with the value that says the same."""
    told = event()
    assert None in (told.causationid, told.expirytime, told.traceparent)
    came = through(told)
    assert (came.causationid, came.expirytime) == (told.id, NEVER)
    assert came.traceparent is not None
    assert came.traceparent.endswith("-00")


def test_an_event_with_extensions_is_refused() -> None:
    """What the template has no place for is not dropped in silence."""
    with pytest.raises(ValueError, match="simulatedfault"):
        outbox_item(event(extensions={"simulatedfault": "crash"}), region="us-east-1", now=NOW)


@pytest.mark.parametrize(
    ("fact", "wrong"),
    [
        (PaymentDeclined, {"amount": 1250, "reason": "x" * 201}),
        (PaymentDeclined, {"amount": 1250, "reason": ""}),
        (PaymentDeclined, {"amount": 10_000_001, "reason": "no funds"}),
        (PaymentAuthorized, {"amount": 1250, "payment_id": "p" * 65}),
        (PaymentCaptured, {"amount": -1, "payment_id": "pay_1"}),
        (CarAssigned, {"car_id": "car_1\n"}),
    ],
)
def test_what_no_reader_would_accept_is_not_put_into_the_outbox(fact: type[Fact], wrong: dict[str, Any]) -> None:
    """Its attempt fails instead: once committed, every consumer would dead-letter it."""
    with pytest.raises(ContractError):
        outbox_item(event(fact.of(booked(), **wrong)), region="us-east-1", now=NOW)


def test_an_event_that_is_told_again_has_the_same_item() -> None:
    """Written twice, an event is one item, and the pipe carries new items of its own region only."""
    told = event()
    first, second = (outbox_item(told, region="us-east-1", now=NOW + timedelta(hours=hours)) for hours in (0, 1))
    assert first["id"] == second["id"]
    assert first["expiryTimestamp"] == int((NOW + KEPT).timestamp())
    [wanted] = pipe()["SourceParameters"]["FilterCriteria"]["Filters"]
    pattern = json.loads(wanted["Pattern"]["Fn::Sub"].replace("${AWS::Region}", "us-east-1"))
    assert pattern == {"eventName": ["INSERT"], "dynamodb": {"NewImage": {"region": {"S": [first["region"]]}}}}


def test_the_template_names_every_attribute_of_the_contract() -> None:
    """An attribute that is added to the contract has to be added to the item and to the template."""
    detail = json.loads(PLACE.sub('""', template()))
    assert set(detail) == {*Attributes.__struct_fields__, "data_base64"}
    attributes = image(outbox_item(event(), region="us-east-1", now=NOW))
    assert {(name, kind) for name, kind in PLACE.findall(template()) if kind not in attributes[name]} == set()
