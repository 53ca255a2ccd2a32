import base64
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from carride.bus_entry import BusEntry
from carride.events import ContractError, RideEvent, idempotency_id, parse_event
from carride.facts import ALIASES, STATUS_AFTER, CarRideAccepted, CarRideCreated
from carride.ride import accept
from simulated_rides import older_envelope
from tests.kit.rides import NOW, booked, event, nested

DETAIL = event(
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", expirytime=NOW
).to_detail()
OLDER: Final = older_envelope(event())  # past_events.jsonl has the same


def parse(detail: object) -> RideEvent:
    """Read a detail as EventBridge delivers it."""
    return parse_event(
        {"source": "acr.com.car-ride", "detail-type": "CarRideEvent", "detail": detail}
    )


def field_at_fault(detail: object) -> str:
    """Return the field for which a detail is refused."""
    with pytest.raises(ContractError) as refusal:
        parse(detail)
    assert str(refusal.value).startswith(refusal.value.field)
    return refusal.value.field


def changed(detail: Mapping[str, Any], path: str, value: object = ...) -> dict[str, Any]:
    """Return a copy with another value, or with none, at a dotted path."""
    name, _, rest = path.partition(".")
    copy = dict(detail)
    if rest:
        copy[name] = changed(copy[name], rest, value)
    elif value is ...:
        del copy[name]
    else:
        copy[name] = value
    return copy


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────


def test_an_event_carries_on_what_its_cause_began() -> None:
    """An event names its cause, and has the trace and the correlation of its cause."""
    cause = replace(event(traceparent=DETAIL["traceparent"]), correlationid="request-1")
    effect = event(CarRideAccepted.of(accept(booked())), cause=cause)
    assert effect.causationid == cause.id
    assert effect.correlationid == cause.correlationid
    assert effect.traceparent == cause.traceparent


@pytest.mark.parametrize(
    "times",
    [{"time": NOW.replace(tzinfo=None)}, {"time": NOW, "expirytime": NOW.replace(tzinfo=None)}],
)
def test_a_time_without_a_zone_is_not_written(times: dict[str, Any]) -> None:
    """A producer cannot write a time that every consumer would refuse."""
    with pytest.raises(ValueError, match="no time zone"):
        RideEvent.of(CarRideCreated.of(booked()), source="acr.com.car-ride", **times)
    with pytest.raises(ValueError, match="no time zone"):
        BusEntry(source="a", detail="{}", time=NOW.replace(tzinfo=None))


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


NOT_WHOLE = DETAIL["idempotencyid"][:18]


def encoded(data: object) -> str:
    """Return data as JSON in base64."""
    return base64.b64encode(json.dumps(data).encode()).decode()


IN_BASE64: Final = changed(DETAIL, "data") | {"data_base64": encoded(DETAIL["data"])}
NOT_JSON: Final = [b"[" * 20_000 + b"]" * 20_000, b"9" * 5_000, b'"\xff"', b"NaN"]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("idempotencyid", [..., None, "", 17, NOT_WHOLE, DETAIL["idempotencyid"] + "\n"]),
        (
            "idempotencyid",
            [
                "2f1e4c1a-8c0f-4a55-9d0a-0a4f5b1f9a55",
                idempotency_id("order_02", "CarRideCreated", 1),
            ],
        ),
        (
            "idempotencyid",
            [
                idempotency_id("order_01", *of)
                for of in (("CarRideAccepted", 1), ("CarRideCreated", 2))
            ],
        ),
        ("type", [..., "CarRideTeleported", ["CarRideCreated"]]),
        ("specversion", ["0.3"]),
        ("id", [...]),
        ("source", [""]),
        ("subject", ["order_02"]),
        ("time", ["2026-11-21", "2026-11-21T08:30:00"]),
        ("sequence", ["1", "00000000", 1, "00000002"]),
        ("traceparent", ["carRideProcessing"]),
        ("expirytime", ["tomorrow"]),
        ("data", [..., []]),
        ("data.passengers", ["two", 0]),
        ("data.price", [5.5]),
        ("data.customerID", [...]),
        ("data.orderID", ["order/01"]),
        ("data.status", ["flying"]),
        (
            "data_base64",
            ["{}", "e30", "", "bm8ganNvbg==", 17, encoded({"orderID": "order_01"})[:-1] + "\n"],
        ),
        ("data_base64", [base64.b64encode(raw).decode() for raw in NOT_JSON]),
    ],
)
def test_an_event_that_breaks_the_contract_says_where(field: str, values: list[object]) -> None:
    """The error names the field that breaks the contract, such as data that is not JSON."""
    for value in values:
        assert (
            field_at_fault(changed(IN_BASE64 if field == "data_base64" else DETAIL, field, value))
            == field
        )


def test_what_is_no_event_at_all_is_refused_as_a_whole() -> None:
    """Unknown envelopes, impossible numbers, half surrogate pairs and deep nesting are refused."""
    values = (float("inf"), "\ud800", nested([], 62), nested([], 99_999))
    envelopes: list[object] = [
        None,
        "text",
        [],
        {},
        {"attributes": "none"},
        {"data": DETAIL["data"]},
    ]
    for detail in (*envelopes, *(changed(DETAIL, "data.note", value) for value in values)):
        assert field_at_fault(detail) == "detail"


@pytest.mark.parametrize(
    "name", ["subject", "datacontenttype", "dataschema", "partitionkey", "correlationid"]
)
@pytest.mark.parametrize("value", [..., None])
def test_attributes_that_repeat_others_may_be_missing(name: str, value: object) -> None:
    """A reader fills in absent attributes that repeat the data."""
    assert parse(changed(DETAIL, name, value)) == parse(DETAIL)


NULL_IN_ALIAS: Final = (
    ("idempotencyid", {"idempotencyId": "id-of-the-producer"}),
    ("idempotencyId", {"idempotencyid": "id-of-the-producer"}),
    ("sequence", {"idempotencyId": "id-of-the-producer"}),
    ("traceparent", {"idempotencyId": "id-of-the-producer"}),
    ("data_base64", {"idempotencyId": "id-of-the-producer"}),
)


@pytest.mark.parametrize(("name", "beside"), NULL_IN_ALIAS)
def test_an_attribute_that_is_null_is_absent(name: str, beside: dict[str, Any]) -> None:
    """CloudEvents says so: it hides nothing that stands beside it, whoever made the event."""
    without = {"idempotencyid", "sequence", "traceparent"}
    kept = {key: value for key, value in DETAIL.items() if key not in without}
    foreign = kept | {"type": "acme.acr.CarRiderCreatedEvent"} | beside
    assert parse(foreign | {name: None}) == parse(foreign)


def test_a_null_id_hides_no_other_spelling_of_it() -> None:
    """Either spelling may be null; if both are, the event has no id."""
    given = DETAIL["idempotencyid"]
    assert parse(DETAIL | {"idempotencyid": None, "idempotencyId": given}) == parse(DETAIL)
    assert parse(DETAIL | {"idempotencyId": None}) == parse(DETAIL)
    neither = DETAIL | {"idempotencyid": None, "idempotencyId": None}
    assert field_at_fault(neither) == "idempotencyid"
    assert parse(OLDER | {"specversion": None}) == parse(OLDER)


def test_unknown_fields_are_accepted() -> None:
    """A reader accepts unknown fields.

    It keeps valid extensions, and unknown data in the payload.
    """
    extended = changed(changed(DETAIL, "tenant", "acr"), "data.childSeats", 1)
    read = parse(changed(extended, "notAnExtension", {"a": 1}))
    assert read.extensions == {"tenant": "acr"}
    assert read.payload["childSeats"] == 1
    assert read.data == parse(DETAIL).data
    assert read.to_detail() == extended


def test_data_in_base64_says_the_same() -> None:
    """An event with its data in base64, as the outbox writes it, is the same event."""
    assert parse(IN_BASE64) == parse(IN_BASE64 | {"data": None}) == parse(DETAIL)
    assert field_at_fault(IN_BASE64 | DETAIL) == "data_base64"


# ── The older envelope ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        *(
            ("attributes.idempotencyId", value, "attributes.idempotencyId")
            for value in (..., "", None)
        ),
        *(
            ("attributes.idempotencyId", value, "idempotencyid")
            for value in ("order_01#", "order_01#CarRideCreated")
        ),
        ("attributes.type", "CarRideTeleported", "type"),
        ("attributes.type", ..., "attributes.type"),
        ("attributes.eventCount", 0, "attributes.eventCount"),
        ("attributes.eventCount", 2, "idempotencyid"),
        ("attributes.eventTime", "then", "attributes.eventTime"),
        ("data", ..., "data"),
        ("data.price", "550", "data.price"),
    ],
)
def test_the_older_envelope_is_held_to_the_contract_too(
    path: str, value: object, field: str
) -> None:
    """An older event that breaks the contract is refused, with the field at fault."""
    assert field_at_fault(changed(OLDER, path, value)) == field


def test_every_source_derives_its_ids() -> None:
    """No source, whatever the envelope says, may give a fact another id."""
    for detail, path in ((DETAIL, "idempotencyid"), (OLDER, "attributes.idempotencyId")):
        foreign = changed(detail, path, idempotency_id("order_02", "CarRideCreated", 1)) | {
            "source": "somebody.else"
        }
        with pytest.raises(ContractError, match="idempotencyid"):
            parse_event({"source": "somebody.else", "detail": foreign})


# ── Other producers ───────────────────────────────────────────────────────────────────────────────


def of_another_producer(given: str, change: str = "Created", **data: Any) -> dict[str, Any]:
    """Return an event of a producer with names and random ids of its own, which counts nothing."""
    named = {"type": f"acme.acr.CarRider{change}Event", "idempotencyId": given, "eventCount": 1}
    return {"attributes": {**OLDER["attributes"], **named}, "data": {**OLDER["data"], **data}}


RANDOM: Final = "0b9d7c4e-1f4b-4c80-9d5a-2f6f0a1b3c4d"


def test_another_producers_event_is_read_under_this_contracts_name() -> None:
    """Its type has an alias, and its id becomes the contract's, the same in either envelope."""
    read = parse(of_another_producer(RANDOM))
    older = of_another_producer(RANDOM)["attributes"]
    cloud_event = {
        **{name: DETAIL[name] for name in ("specversion", "id", "source", "time", "data")},
        **{name: older[name] for name in ("type", "idempotencyId")},
    }
    assert read.type == "CarRideCreated"
    assert read.idempotencyid == parse(cloud_event).idempotencyid
    assert UUID(read.idempotencyid).version == 5


@pytest.mark.parametrize("alias", ALIASES)
def test_another_producers_type_says_the_status(alias: str) -> None:
    """An event without a status has the one that its type gives the ride, in either envelope."""
    older = of_another_producer(RANDOM)
    data = changed(older["data"], "status")
    attributes = older["attributes"] | {"type": alias}
    cloud_event = {
        **{name: DETAIL[name] for name in ("specversion", "id", "source")},
        "type": alias,
        "time": "2026-11-21T08:30:00",
        "idempotencyId": RANDOM,
    }
    fact_type = ALIASES[alias]
    for detail in ({"attributes": attributes}, cloud_event):
        read = parse(detail | {"data": data})
        assert (read.type, read.data.status) == (fact_type, STATUS_AFTER[fact_type])
        assert read.time.utcoffset() == timedelta(0)
        said = parse(detail | {"data": data | {"status": "started"}})
        assert said.data.status == "started", "what the event says counts"


@given(st.text(min_size=1, max_size=256), st.text(min_size=1, max_size=256))
def test_ids_of_another_producer_stay_apart(one: str, other: str) -> None:
    """Two of its ids are two facts, and neither is a fact of this project.

    Whoever knows an id can silence nothing.
    """
    try:
        ids = [parse(of_another_producer(each)).idempotencyid for each in (one, other)]
    except ContractError:  # half of a surrogate pair
        return
    assert (ids[0] == ids[1]) is (one == other)
    assert parse(OLDER).idempotencyid not in ids
    assert (
        parse(of_another_producer(OLDER["attributes"]["idempotencyId"])).idempotencyid
        != parse(OLDER).idempotencyid
    )


def test_one_id_of_another_producer_names_a_fact_of_each_ride_and_type() -> None:
    """Its ids may be unique for a ride only, or for a ride's step: no fact silences another's."""
    given = [
        of_another_producer(RANDOM),
        of_another_producer(RANDOM, orderID="order_02"),
        of_another_producer(RANDOM, "Accepted"),
    ]
    assert len({parse(each).idempotencyid for each in given}) == len(given)


@pytest.mark.parametrize("detail", [DETAIL, of_another_producer(RANDOM) | {"specversion": "1.0"}])
def test_an_event_without_any_id_is_refused(detail: dict[str, Any]) -> None:
    """No event takes effect without an id, whoever made it."""
    without = {name: value for name, value in detail.items() if name != "idempotencyid"}
    assert field_at_fault(without | {"type": "acme.acr.CarRiderCreatedEvent"}) == "idempotencyid"


def test_an_extension_in_camel_case_is_the_same_extension() -> None:
    """CloudEvents allows lower case only.

    A reader accepts ``idempotencyId`` too, and compares it as strictly.
    """
    camel = changed(DETAIL, "idempotencyid") | {"idempotencyId": DETAIL["idempotencyid"]}
    assert parse(camel).idempotencyid == DETAIL["idempotencyid"]
    assert field_at_fault(camel | {"idempotencyId": RANDOM}) == "idempotencyid"
