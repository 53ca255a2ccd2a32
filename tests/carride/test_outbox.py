"""An event that goes into the outbox and comes out of its pipe is the same event."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from carride.events import Attributes, ContractError, RideEvent, parse_event
from carride.facts import CarAssigned, Fact, PaymentAuthorized, PaymentCaptured, PaymentDeclined
from carride.outbox import KEPT, NEVER, outbox_item
from tests.carride.contract.test_events import assert_conforms
from tests.carride.properties.test_events import facts
from tests.kit.pipe import PIPE, PLACE, TEMPLATE, image, piped, resource
from tests.kit.rides import NOW, booked, event

TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def through(emitted: RideEvent) -> RideEvent:
    """Return the event as a consumer reads it behind the outbox and the pipe."""
    return parse_event({"detail": piped(outbox_item(emitted, region="us-east-1", now=NOW))})


TIMES: Final = st.datetimes(
    datetime(2000, 1, 1),  # noqa: DTZ001 - a bound
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5.5))]),
)


@given(facts(), TIMES, st.text(min_size=1, max_size=200).filter(str.isprintable))
def test_every_event_comes_out_as_it_went_in(fact: Fact, time: datetime, correlation: str) -> None:
    """An event with all attributes comes out unchanged.

    Times are the same moment, texts have the same characters.
    """
    texts = {"correlationid": correlation, "causationid": correlation}
    emitted = replace(event(fact), time=time, expirytime=time, traceparent=TRACE, **texts)
    assert through(emitted) == emitted
    assert_conforms(piped(outbox_item(emitted, region="us-east-1", now=NOW)))


def test_a_missing_attribute_is_written_with_its_meaning() -> None:
    """Every path of the template exists.

    A missing attribute is written with a value of the same meaning.
    """
    emitted = event()
    assert None in (emitted.causationid, emitted.expirytime, emitted.traceparent)
    came = through(emitted)
    assert (came.causationid, came.expirytime) == (emitted.id, NEVER)
    assert came.traceparent is not None
    assert came.traceparent.endswith("-00")


def test_an_event_with_extensions_is_refused() -> None:
    """Attributes for which the template has no place are not dropped silently."""
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
def test_what_no_reader_would_accept_is_not_put_into_the_outbox(
    fact: type[Fact], wrong: dict[str, Any]
) -> None:
    """The attempt fails instead: every consumer would dead-letter the committed event."""
    with pytest.raises(ContractError):
        outbox_item(event(fact.of(booked(), **wrong)), region="us-east-1", now=NOW)


def test_an_event_that_is_emitted_again_has_the_same_item() -> None:
    """Written twice, an event is one item; the pipe carries new items of its own region only."""
    emitted = event()
    first, second = (
        outbox_item(emitted, region="us-east-1", now=NOW + timedelta(hours=hours))
        for hours in (0, 1)
    )
    assert first["id"] == second["id"]
    assert first["expiryTimestamp"] == int((NOW + KEPT).timestamp())
    [wanted] = PIPE["SourceParameters"]["FilterCriteria"]["Filters"]
    pattern = json.loads(wanted["Pattern"]["Fn::Sub"].replace("${AWS::Region}", "us-east-1"))
    assert pattern == {
        "eventName": ["INSERT"],
        "dynamodb": {"NewImage": {"region": {"S": [first["region"]]}}},
    }


def test_both_roads_name_the_stack_that_published() -> None:
    """Entries of the pipe and of the simulator have the same resource."""
    stack_id = {"Ref": "AWS::StackId"}
    assert PIPE["TargetParameters"]["EventBridgeEventBusParameters"]["Resources"] == [stack_id]
    assert (
        resource("CarRideSimulatorFunction")["Environment"]["Variables"]["EVENT_PRODUCER"]
        == stack_id
    )


def test_the_template_names_every_attribute_of_the_contract() -> None:
    """An attribute that is added to the contract must be added to the item and the template."""
    detail = json.loads(PLACE.sub('""', TEMPLATE))
    assert set(detail) == {*Attributes.__struct_fields__, "data_base64"}
    attributes = image(outbox_item(event(), region="us-east-1", now=NOW))
    assert {
        (name, kind) for name, kind in PLACE.findall(TEMPLATE) if kind not in attributes[name]
    } == set()
