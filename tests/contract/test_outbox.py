import base64
import json
import re
from typing import Any, Final

import pytest

from carride.events import (
    Attributes,
    CarAssigned,
    ContractError,
    Fact,
    PaymentAuthorized,
    PaymentCaptured,
    PaymentDeclined,
    RideEvent,
    parse_event,
)
from carride.outbox import KEPT, outbox_item
from idempotency.fingerprint import fingerprint
from tests.contract.test_events import assert_conforms
from tests.infrastructure.stack import source
from tests.unit.carride.rides import NOW, event, every_fact

TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def as_the_stream_tells_it(value: object) -> dict[str, str]:
    """Return a value of an item in the form of a stream record: numbers as text, binary as base64."""
    match value:
        case bytes():
            return {"B": base64.b64encode(value).decode()}
        case str():
            return {"S": value}
    return {"N": str(value)}


def carried(told: RideEvent) -> dict[str, Any]:
    """Return the detail that the pipe makes of an event in the outbox, by the template that is deployed."""
    item = outbox_item(told, region="us-east-1", now=NOW)
    record = {"dynamodb": {"NewImage": {name: as_the_stream_tells_it(value) for name, value in item.items()}}}

    def quoted(path: re.Match[str]) -> str:
        value: Any = record
        for name in path[1].split("."):
            value = value[name]
        return json.dumps(value)

    template = source()["Resources"]["OutboxPipe"]["Properties"]["TargetParameters"]["InputTemplate"]
    detail: dict[str, Any] = json.loads(re.sub(r"<\$\.([\w.]+)>", quoted, template))
    return detail


@pytest.mark.parametrize("fact", every_fact(), ids=lambda fact: type(fact).__name__)
def test_an_event_comes_out_of_the_outbox_as_it_went_in(fact: Fact) -> None:
    """The pipe's template makes of an item the event that was put there, with the same fingerprint, to the contract."""
    told = event(fact, cause=event(every_fact()[0], traceparent=TRACE), expirytime=NOW)
    detail = carried(told)
    assert_conforms(detail)
    read = parse_event({"detail": detail})
    assert read == told
    assert fingerprint(read.payload) == fingerprint(told.payload)


def test_what_an_event_lacks_is_told_by_what_says_the_same() -> None:
    """Without cause, trace and expiry the event still conforms, and means what it meant."""
    told = event()
    detail = carried(told)
    assert_conforms(detail)
    read = parse_event({"detail": detail})
    assert (read.causationid, read.idempotencyid, read.data) == (told.id, told.idempotencyid, told.data)
    assert read.expirytime is not None
    assert read.expirytime.year == 9999
    assert read.traceparent is not None
    assert read.traceparent.endswith("-00")


def test_the_outbox_leaves_no_attribute_out() -> None:
    """Whatever the contract writes, the pipe carries: a new attribute needs its line in item and template."""
    assert carried(event()).keys() == {*Attributes.__struct_fields__, "data_base64"}


def test_an_item_stays_for_as_long_as_it_says() -> None:
    """An item expires by itself when nobody needs it any more."""
    assert outbox_item(event(), region="us-east-1", now=NOW)["expiryTimestamp"] == (NOW + KEPT).timestamp()


def test_what_the_pipe_cannot_carry_is_refused() -> None:
    """An event with extensions of its own is not put into the outbox, where it would lose them."""
    with pytest.raises(ValueError, match="simulatedfault"):
        outbox_item(event(extensions={"simulatedfault": "fail"}), region="us-east-1", now=NOW)


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
    told = event(fact.of(every_fact()[0].ride(), **wrong))
    with pytest.raises(ContractError):
        outbox_item(told, region="us-east-1", now=NOW)
