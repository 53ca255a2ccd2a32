"""A stack whose events, letters, records and logs have text that somebody chose to do harm."""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import batched
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from carride.events import RideEvent
from carride_idempotency import observation
from carride_idempotency.record import FAILED, QUARANTINED, Record
from ops.audit.evidence import CONSUMERS
from ops.stack import StackRef
from ops.tests.desk_world import event_of
from ops.tests.world import NOW, empty_stack, put_record, stack
from tests.kit.rides import Life

REGION: Final = "us-east-1"
TEXTS: Final = (
    "\x1b[2J\x1b[31mred\x1b[0m",
    "\x1b]0;a title\x07\x1b]8;;http://example.com\x07link\x1b]8;;\x07",
    "\x9b31mred\x85line\u2028line",
    "back\b\b\b\rover\x00null\x7f",
    "\u202eright to left\u2066isolated\u200f",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)' x=\"</textarea></title></style>",
    "{{ 7 * 7 }}{% raw %}[bold red]rich[/bold red][link=http://example.com]l[/link]",
    "half of a pair \ud83d, the other half \ude00",
    "../../etc/passwd?q=1&r=2#three%1b%00%0d%0aset-cookie:a=b",
    "-x --yes --release; $(reboot) `reboot`\n\n\tnext line",
)
"""What a terminal, a page, a template, an encoder, an address or a command line would obey."""
LONG: Final = ("x" * 1_000_000, ("\x1b[31m" + "<b>" * 200) * 1_660)
"""What a reader would drown in."""

obeyed: Final = re.compile(
    "[^\n\t\x20-\x7e\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]"
).search
"""Finds control characters, those that turn the direction of text, and halves of pairs."""


class Payload(NamedTuple):
    """A text, and the part of a stack that has it."""

    place: str
    text: str
    number: int

    @property
    def event(self) -> RideEvent:
        """The event that has it, or whose letter, record or delivery does."""
        return event_of(Life(f"order_{self.number}").completed)

    @property
    def event_id(self) -> str:
        """EventBridge's id of the event."""
        return f"00000000-0000-4000-8000-{self.number:012}"

    @property
    def as_stored(self) -> str:
        """The text without what a service refuses to store."""
        return self.text.encode(errors="replace").decode().replace("\x00", "\ufffd")


class Stored(NamedTuple):
    """What a payload puts into the stack."""

    bus: tuple[str, ...] = ()
    """Lines of the bus's log."""
    log: tuple[str, ...] = ()
    """Lines of payment's log."""
    letters: tuple[Mapping[str, Any], ...] = ()
    """Requests of SQS, for payment's dead-letter queue."""
    records: tuple[Record, ...] = ()


def _envelope(payload: Payload, **changes: Any) -> dict[str, Any]:
    """Return an event as EventBridge delivers it."""
    detail = payload.event.to_detail()
    known = {
        "version": "0",
        "id": payload.event_id,
        "source": payload.event.source,
        "detail-type": "CarRideEvent",
    }
    return known | {"detail": detail} | changes


def _detail(payload: Payload, **changes: Any) -> Stored:
    """Return an event on the bus, parts of whose detail are changed."""
    envelope = _envelope(payload)
    envelope["detail"] |= changes
    return Stored(bus=(json.dumps(envelope),))


def _data(payload: Payload, **changes: Any) -> Stored:
    envelope = _envelope(payload)
    envelope["detail"]["data"] |= changes
    return Stored(bus=(json.dumps(envelope),))


def _delivery(payload: Payload, **changes: Any) -> Stored:
    """Return an event, and a failed delivery of it."""
    line = {
        "message": "delivery",
        "consumer": "payment",
        "outcome": observation.FAILED,
        "attempt": 1,
        "key": f"payment#{payload.event.idempotencyid}",
        "idempotencyid": payload.event.idempotencyid,
        "correlationid": payload.event.correlationid,
        "type": payload.event.type,
    }
    return Stored(bus=(json.dumps(_envelope(payload)),), log=(json.dumps(line | changes),))


def _letter(payload: Payload, **changes: Any) -> Stored:
    """Return an event, and its letter as the consumer sends one."""
    said = {"reason": "QUARANTINED", "consumer": "payment", "message": "ValueError: no"}
    body = json.dumps(said | {"event": _envelope(payload)} | changes)
    return Stored(bus=(json.dumps(_envelope(payload)),), letters=({"MessageBody": body},))


def _by_eventbridge(payload: Payload) -> Stored:
    """Return a letter as EventBridge sends one, whose attributes have the text."""
    told = {
        name: {"DataType": "String", "StringValue": payload.as_stored[:200_000]}
        for name in ("ERROR_CODE", "ERROR_MESSAGE")
    }
    body = json.dumps(_envelope(payload))
    return Stored(letters=({"MessageBody": body, "MessageAttributes": told},))


def _record(payload: Payload, **changes: Any) -> Stored:
    """Return an event and the record of a key that was given up."""
    made = Record(
        key=f"payment#{payload.event.idempotencyid}",
        status=QUARANTINED,
        owner="one",
        attempt=3,
        lease_ms=None,
        expiry=None,
        fingerprint=None,
        delivery="d",
        region=REGION,
        created_ms=1,
        updated_ms=1,
        error="ValueError: no",
        dead_lettered=True,
    )
    return Stored(bus=(json.dumps(_envelope(payload)),), records=(made._replace(**changes),))


def _nested(payload: Payload) -> Stored:
    """Return an event that has the text below a thousand lists."""
    deep = f"{'[' * 1_000}{json.dumps(payload.text)}{']' * 1_000}"
    line = json.dumps(_envelope(payload)).replace('"data":', f'"deep": {deep}, "data":', 1)
    return Stored(bus=(line,))


type _Place = Callable[[Payload], Stored]

PLACES: Final[Mapping[str, _Place]] = {
    "type": lambda one: _detail(one, type=one.text),
    "subject": lambda one: _detail(one, subject=one.text),
    "id of the fact": lambda one: _detail(one, idempotencyid=one.text, id=one.text),
    "extension": lambda one: _detail(one, note=one.text),
    "name of an extension": lambda one: _detail(one, **{one.text: 1}),
    "ride": lambda one: _data(one, orderID=one.text),
    "customer": lambda one: _data(one, customerID=one.text),
    "detail": lambda one: Stored(bus=(json.dumps(_envelope(one, detail=one.text)),)),
    "id of the event": lambda one: Stored(bus=(json.dumps(_envelope(one, id=one.text)),)),
    "line of the bus": lambda one: Stored(bus=(one.as_stored,)),
    "nesting": _nested,
    "reason of a delivery": lambda one: _delivery(one, reason=one.text),
    "type in a delivery": lambda one: _delivery(one, type=one.text, correlationid=one.text),
    "outcome of a delivery": lambda one: _delivery(one, outcome=one.text, delivery=one.text),
    "error of a letter": lambda one: _letter(one, message=one.text),
    "reason of a letter": lambda one: _letter(one, reason=one.text),
    "key in a letter": lambda one: _letter(one, event=None, key=one.text),
    "event of a letter": lambda one: _letter(one, event={"detail": {"type": one.text}}),
    "attributes of a letter": _by_eventbridge,
    "letter": lambda one: Stored(letters=({"MessageBody": one.as_stored},)),
    "error of a record": lambda one: _record(one, error=one.as_stored[:300_000]),
    "owner of a record": lambda one: _record(one, status=FAILED, owner=one.as_stored[:300_000]),
}
_HOLDS_MUCH: Final = ("type", "extension", "reason of a delivery", "error of a letter", "letter")


def payloads() -> list[Payload]:
    """Return every text at every place, and the long ones at some."""
    pairs = [(place, text) for place in PLACES for text in TEXTS]
    pairs += [(place, text) for place in _HOLDS_MUCH for text in LONG]
    return [Payload(place, text, number) for number, (place, text) in enumerate(pairs)]


def hostile_stack(found: Iterable[Payload], text: str = TEXTS[0]) -> StackRef:
    """Return a stack that holds payloads, whose services moto must stand for.

    Its replay, and the caller's name, have a text.
    """
    empty = empty_stack()
    outputs: dict[str, Any] = {**empty.outputs, **_OUTPUTS}
    fakes = _fakes(outputs, text)

    def client(service: str, _region: str) -> Any:
        return fakes.get(service) or empty.client(service)

    ref = stack(client, REGION, **outputs)
    del vars(ref)["by_type"]
    stored = [PLACES[each.place](each) for each in found]
    _log(ref, "CarRideEvents", [line for each in stored for line in each.bus])
    _log(ref, "Payment", [line for each in stored for line in each.log])
    sqs = ref.client("sqs")
    for each in stored:
        for request in each.letters:
            sqs.send_message(QueueUrl=ref.outputs["PaymentDlqUrl"], **_fitting(request))
        for record in each.records:
            put_record(ref, record)
    return ref


_OUTPUTS: Final = {
    "Role": "standalone",
    "CarTableName": "Car",
    "CarRideArchiveArn": "arn:aws:events:us-east-1:1:archive/archive",
    "CarRideBusName": "bus",
    "CarRideSimulatorFunctionName": "simulator",
    "PartnersTopicArn": "arn:aws:sns:us-east-1:1:partners",
}


def _fitting(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request whose body SQS takes: it refuses some characters, and an empty one."""
    body = request["MessageBody"]
    kept = "".join(each for each in body if each in "\t\n\r" or each >= " ")
    return {**request, "MessageBody": kept}


def _log(ref: StackRef, group: str, lines: Iterable[str]) -> None:
    now_ms = int(time.time() * 1000)
    written = [{"timestamp": now_ms, "message": line} for line in lines]
    where = {"logGroupName": group, "logStreamName": group}
    for some in batched(written, 100, strict=False):
        ref.client("logs").put_log_events(**where, logEvents=[*some])


class MissingError(Exception):
    """A service has no such thing."""


def _fakes(outputs: Mapping[str, str], text: str) -> dict[str, Any]:
    """Return the services that moto does not stand for here: they answer with just enough."""
    listed = [{"OutputKey": name, "OutputValue": value} for name, value in outputs.items()]
    described = {"Stacks": [{"StackStatus": "CREATE_COMPLETE", "Outputs": listed}]}
    no_pages = SimpleNamespace(paginate=lambda **_: [])
    rules = [
        {
            "ResourceType": "AWS::Events::Rule",
            "LogicalResourceId": f"{each.resources}Rule",
            "PhysicalResourceId": each.name,
        }
        for each in CONSUMERS
    ]
    resources = SimpleNamespace(paginate=lambda **_: [{"StackResourceSummaries": rules}])
    times = dict.fromkeys(("EventStartTime", "EventEndTime", "ReplayStartTime"), NOW)
    replayed: dict[str, Any] = {"ReplayName": text, "State": "FAILED", "StateReason": text, **times}
    replayed["EventSourceArn"] = outputs["CarRideArchiveArn"]
    target = {"Arn": "arn:aws:lambda:us-east-1:1:function:payment"}
    missing = SimpleNamespace(
        ParameterNotFound=MissingError, ResourceNotFoundException=MissingError
    )

    def nothing(**_: Any) -> Any:
        raise MissingError

    return {
        "cloudformation": SimpleNamespace(
            describe_stacks=lambda **_: described, get_paginator=lambda _: resources
        ),
        "events": SimpleNamespace(
            get_paginator=lambda _: no_pages,
            list_replays=lambda **_: {"Replays": [replayed]},
            describe_replay=lambda **_: replayed,
            describe_archive=lambda **_: {"RetentionDays": 0},
            describe_rule=lambda **_: {"State": "ENABLED"},
            list_targets_by_rule=lambda **_: {"Targets": [target]},
            describe_event_bus=lambda **_: {"Arn": "arn:aws:events:us-east-1:1:event-bus/bus"},
            exceptions=missing,
        ),
        "sns": SimpleNamespace(get_paginator=lambda _: no_pages),
        "ssm": SimpleNamespace(get_parameter=nothing, exceptions=missing),
        "sts": SimpleNamespace(get_caller_identity=lambda: {"Account": text, "Arn": text}),
    }


def thinned[T](cases: Sequence[T], *, one_in: int, rest: pytest.MarkDecorator) -> list[Any]:
    """Return cases as parameters: one in so many as it is, and the rest with a mark."""
    found = []
    for number, case in enumerate(cases):
        marks = () if number % one_in == 0 else rest
        found.append(pytest.param(case, marks=marks))
    return found
