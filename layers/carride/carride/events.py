"""The event contract: how the events of the CarRide bus are written and read. Pure: no I/O, no AWS.

An event is an EventBridge event whose ``detail`` is a CloudEvents 1.0 event in structured JSON. Two
of its extensions carry the guarantee: ``idempotencyid`` is the same for every copy of a fact, and
``sequence`` numbers the changes of a ride, because the bus keeps no order.

Readers accept more than writers write: the older envelope ``{"attributes": …, "data": …}``, data as
``data_base64``, unknown fields, and events without the attributes that repeat others (``subject``,
``partitionkey``, ``correlationid``). They also accept the types in `carride.facts.ALIASES`, whose
producers give ids of their own, and ``idempotencyId``.
"""

import binascii
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta, Struct

from carride.decoding import FieldError, shaped
from carride.facts import ALIASES, FACTS, STATUS_AFTER, CarRideCancelled, Fact

DETAIL_TYPE: Final = "CarRideEvent"
SOURCE: Final = "acr.com.car-ride"
SIMULATOR_SOURCE: Final = "acr.com.car-ride-simulator"
SOURCES: Final = frozenset({SOURCE, SIMULATOR_SOURCE})

NAMESPACE: Final = UUID("e2335e19-0957-596c-8f0a-bc68334f6ed1")
"""The namespace of idempotency ids: uuid5 of the DNS name car-ride.acr.com. Never change it: every
id would change."""

_SEQUENCE_DIGITS: Final = 8
MOST_LEVELS: Final = 64  # how deeply an event may be nested. Code that handles it later recurses.
_is_sequence: Final = re.compile(rf"[0-9]{{{_SEQUENCE_DIGITS}}}").fullmatch
_is_extension_name: Final = re.compile(r"[a-z0-9]{1,20}").fullmatch


def idempotency_id(order_id: str, fact_type: str, version: int) -> str:
    """Return the id of a fact at a ride's version. Every copy of the fact has the same id.

    ``order_id`` cannot contain the ``/`` that separates the parts.
    """
    return str(uuid5(NAMESPACE, f"{order_id}/{fact_type}/{version}"))


def sequence(version: int) -> str:
    """Return a ride's version zero-padded, so that it sorts as text."""
    return f"{version:0{_SEQUENCE_DIGITS}d}"


type _Text = Annotated[str, Meta(min_length=1, max_length=256)]
type _Timestamp = Annotated[datetime, Meta(tz=True)]
type _DerivedId = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$(?!\n)",
        description="The same for every copy of a fact: derived from it, never random.",
    ),
]
type _Sequence = Annotated[
    str,
    Meta(
        pattern=rf"^(?!0+$)[0-9]{{{_SEQUENCE_DIGITS}}}$(?!\n)",
        description="The ride's version that the fact belongs to, counted from 1.",
    ),
]
type _Traceparent = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$(?!\n)",
        description="The event's trace, in the format of W3C Trace Context.",
    ),
]


class Attributes(Struct, frozen=True, kw_only=True):
    """The attributes of an event."""

    specversion: Literal["1.0"]
    id: Annotated[_Text, Meta(description="Identifies the event, together with the source.")]
    source: Annotated[_Text, Meta(description="The application that emitted the event.")]
    type: Annotated[_Text, Meta(description="What happened.")]
    subject: Annotated[_Text, Meta(description="The ride's orderID.")]
    time: Annotated[_Timestamp, Meta(description="When it happened.")]
    datacontenttype: Literal["application/json"]
    dataschema: Annotated[_Text, Meta(description="Names the schema of the data.")]
    idempotencyid: _DerivedId
    sequence: _Sequence
    partitionkey: Annotated[_Text, Meta(description="The same for all events of a ride.")]
    correlationid: Annotated[
        _Text, Meta(description="The same for all events that follow from one request.")
    ]
    causationid: (
        Annotated[_Text, Meta(description="The id of the event that this one follows from.")] | None
    ) = None
    traceparent: _Traceparent | None = None
    expirytime: (
        Annotated[_Timestamp, Meta(description="When the event is no longer worth processing.")]
        | None
    ) = None


class RideEvent(Attributes, frozen=True, kw_only=True):
    """An event of the bus, in whichever envelope it came."""

    data: Fact
    payload: Mapping[str, Any]
    """The data as received, with unknown fields and without fields that equal their default.

    Fingerprint this: a new field with a default leaves the payload of older events unchanged.
    """
    # CloudEvents extensions that the contract does not define.
    extensions: Mapping[str, str | int | bool] = {}

    @classmethod
    def of(
        cls,
        data: Fact,
        *,
        source: str,
        time: datetime,
        cause: "RideEvent | None" = None,
        traceparent: str | None = None,
        expirytime: datetime | None = None,
        extensions: Mapping[str, str | int | bool] | None = None,
    ) -> Self:
        """Return the event of a fact. Its ids depend on nothing but the fact.

        It shares the correlation of its cause and, by default, the trace. The names of extensions
        are lower-case letters and digits.

        Raises:
            ValueError: a time has no time zone, so no consumer would accept the event.
        """
        _require_time_zone(time)
        if expirytime is not None:
            _require_time_zone(expirytime)
        fact_id = idempotency_id(data.order_id, type(data).__name__, data.version)
        repeated = _repeated(data)
        if cause is not None:
            repeated["correlationid"] = cause.correlationid
            traceparent = traceparent or cause.traceparent
        return cls(
            specversion="1.0",
            id=fact_id,
            source=source,
            type=type(data).__name__,
            time=time,
            idempotencyid=fact_id,
            sequence=sequence(data.version),
            **repeated,
            causationid=None if cause is None else cause.id,
            traceparent=traceparent or None,
            expirytime=expirytime,
            data=data,
            payload=_without_defaults(type(data), msgspec.to_builtins(data)),
            extensions=extensions or {},
        )

    def to_detail(self) -> dict[str, Any]:
        """Return the event as CloudEvents structured JSON, in JSON's own types."""
        detail: dict[str, Any] = {}
        for name in Attributes.__struct_fields__:
            value = getattr(self, name)
            if value is not None:
                detail[name] = msgspec.to_builtins(value)
        detail |= self.extensions
        detail["data"] = msgspec.to_builtins(self.data) | self.payload
        return detail


def _require_time_zone(time: datetime) -> None:
    if time.utcoffset() is None:
        raise ValueError(f"{time} has no time zone")


def _repeated(data: Fact) -> dict[str, Any]:
    return {
        "subject": data.order_id,
        "datacontenttype": "application/json",
        "dataschema": data.dataschema(),
        "partitionkey": data.order_id,
        "correlationid": data.order_id,
    }


def _without_defaults(fact: type[Fact], payload: Mapping[str, Any]) -> dict[str, Any]:
    defaults = _defaults(fact)
    return {
        name: value
        for name, value in payload.items()
        if name not in defaults or value != defaults[name]
    }


@cache
def _defaults(fact: type[Fact]) -> dict[str, Any]:
    fields = msgspec.structs.fields(fact)
    return {field.encode_name: field.default for field in fields if not field.required}


_KNOWN: Final = frozenset({*Attributes.__struct_fields__, "data", "data_base64"})


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


class ContractError(FieldError):
    """Raised for an event that breaks the contract; retries cannot help."""


class _OlderAttributes(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "idempotency_id": "idempotencyId",
        "event_time": "eventTime",
        "event_count": "eventCount",
    },
):
    """The attributes of the envelope that producers wrote before CloudEvents."""

    type: _Text
    source: _Text
    idempotency_id: _Text
    event_time: datetime  # in UTC if it has no time zone
    event_count: Annotated[int, Meta(ge=1, lt=10**_SEQUENCE_DIGITS)]


def read_json(content: str | bytes, field: str, *, levels: int = MOST_LEVELS) -> Any:
    """Return the value that a JSON text holds.

    Raises:
        ContractError: the text, which the error calls ``field``, is not JSON, is nested too deeply,
            or holds a value that cannot be written as JSON in UTF-8.
    """
    try:
        value = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise ContractError(field, f"not JSON: {error}") from error
    _require_plain(value, field, levels)
    return value


def _require_plain(value: object, field: str, levels: int = MOST_LEVELS) -> None:
    """Refuse a value that JSON writers, hashes or logs would fail on.

    The function does not recurse, because the value may be very deep.
    """
    level: list[Any] = [value]
    for _ in range(levels):
        below: list[Any] = []
        for each in level:
            if type(each) is str and each.isascii():
                continue  # the shortest way for what most values are
            if not _is_plain(each):
                raise ContractError(
                    field, f"a {type(each).__name__} in it cannot be written as JSON in UTF-8"
                )
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return
        level = below
    raise ContractError(field, f"nested more than {levels} levels deep")


def _is_plain(value: object) -> bool:
    try:
        match value:
            case str():
                return value.isascii() or bool(value.encode())
            case dict():
                return _is_plain("".join(value))
            case int() | float():
                return -sys.float_info.max <= value <= sys.float_info.max
            case _:
                return value is None or isinstance(value, list)
    except (TypeError, UnicodeEncodeError):  # a key that is not text, or half of a surrogate pair
        return False


def parse_event(event: Mapping[str, Any]) -> RideEvent:
    """Read an EventBridge event, of which only ``detail`` counts.

    Raises:
        ContractError: the event breaks the contract. No event makes it raise another error.
    """
    detail = event.get("detail") if isinstance(event, Mapping) else None
    if not isinstance(detail, dict):
        raise ContractError("detail", "not a JSON object")
    _require_plain(detail, "detail")
    # In CloudEvents, an attribute that is null is absent.
    detail = {name: value for name, value in detail.items() if value is not None}
    if "specversion" not in detail:
        detail = _upgraded(detail)
    if "idempotencyId" in detail:  # what the extension is called in other producers' code
        detail = {"idempotencyid": detail["idempotencyId"]} | detail
    is_adopted = _has_alias(detail)
    if is_adopted:
        detail = _adopted(detail)
    data, payload = _parse_data(detail.get("type"), _payload_of(detail))
    attributes = _shaped(_repeated(data) | detail, Attributes)
    _require_equal("subject", attributes.subject, data.order_id)
    _require_equal("sequence", attributes.sequence, sequence(data.version))
    if not is_adopted:
        derived = idempotency_id(data.order_id, attributes.type, data.version)
        _require_equal("idempotencyid", attributes.idempotencyid, derived)
    fields = {name: getattr(attributes, name) for name in Attributes.__struct_fields__}
    return RideEvent(**fields, data=data, payload=payload, extensions=_extensions_of(detail))


def _has_alias(detail: Mapping[str, Any]) -> bool:
    """Return whether another producer's name is the event's type."""
    fact_type = detail.get("type")
    return isinstance(fact_type, str) and fact_type in ALIASES


def _require_equal(name: str, found: str, derived: str) -> None:
    if found != derived:
        raise ContractError(
            name, f"{found!r} contradicts the type or the data, which make it {derived!r}"
        )


def _extensions_of(detail: Mapping[str, Any]) -> dict[str, str | int | bool]:
    extensions: dict[str, str | int | bool] = {}
    for name, value in detail.items():
        if name in _KNOWN or not _is_extension_name(name):
            continue
        if isinstance(value, str | int):
            extensions[name] = value
    return extensions


def _upgraded(detail: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(detail.get("attributes"), dict):
        raise ContractError(
            "detail", "has neither a specversion nor the attributes of the older envelope"
        )
    older = _shaped(detail["attributes"], _OlderAttributes, "attributes.")
    time = older.event_time
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    data = detail.get("data")
    if isinstance(data, dict):
        data = {"version": older.event_count} | data  # the older data has none
    return {
        "specversion": "1.0",
        "id": older.idempotency_id,
        "source": older.source,
        "type": older.type,
        "time": time.isoformat(),
        "idempotencyid": older.idempotency_id,
        "sequence": sequence(older.event_count),
        "data": data,
    }


def _adopted(detail: dict[str, Any]) -> dict[str, Any]:
    """Return a detail of another producer with the names and ids of this contract.

    Such a producer gives each fact an id of its own, and may count none of a ride's changes. The
    fact's id is derived from the producer's, so that it meets no id of this project.
    """
    given = detail.get("idempotencyid")
    if not isinstance(given, str) or not given:
        raise ContractError("idempotencyid", "missing")
    fact_type = ALIASES[detail["type"]]
    adopted = {name: value for name, value in detail.items() if name != "data_base64"}
    adopted["time"] = _in_utc(detail.get("time"))
    adopted["type"] = fact_type
    data = _payload_of(detail)
    adopted["data"] = data
    adopted["idempotencyid"] = given
    if isinstance(data, dict):
        count = detail.get("sequence")
        known = int(count) if isinstance(count, str) and _is_sequence(count) else 1
        data = {"version": known} | _implied_by(fact_type) | data
        version = data["version"]
        own_sequence = sequence(version) if isinstance(version, int) else count
        adopted.setdefault("sequence", own_sequence)
        adopted["data"] = data
        named = f"{data.get('orderID')}/{detail['type']}/{given}"
        adopted["idempotencyid"] = str(uuid5(NAMESPACE, named))
    return adopted


def _implied_by(fact_type: str) -> dict[str, object]:
    """Return the data that other producers leave out, because the type says it."""
    implied: dict[str, object] = {"status": STATUS_AFTER[fact_type].value}
    if fact_type == CarRideCancelled.__name__:
        implied["reason"] = "not given"
    return implied


def _in_utc(time: object) -> object:
    """Return another producer's time without a zone as one in UTC; anything else as it is."""
    if not isinstance(time, str):
        return time
    try:
        read = datetime.fromisoformat(time)
    except ValueError:
        return time
    return time if read.tzinfo is not None else read.replace(tzinfo=UTC).isoformat()


def _payload_of(detail: dict[str, Any]) -> object:
    """Return the data, from whichever of its two members holds it."""
    encoded = detail.get("data_base64")
    if encoded is None:
        return detail.get("data")
    if detail.get("data") is not None:
        raise ContractError("data_base64", "there is data beside it")
    try:
        return read_json(binascii.a2b_base64(encoded, strict_mode=True), "data_base64")
    except (TypeError, ValueError) as error:
        raise ContractError("data_base64", f"not JSON in base64: {error}") from error


def _parse_data(fact_type: object, payload: object) -> tuple[Fact, dict[str, Any]]:
    if not isinstance(fact_type, str) or fact_type not in FACTS:
        raise ContractError("type", f"the contract has no type {fact_type!r:.80}")
    if not isinstance(payload, dict):
        raise ContractError("data", "not a JSON object")
    fact = FACTS[fact_type]
    data = _shaped(payload, fact, "data.")
    return data, _without_defaults(fact, payload)


def _shaped[S: Struct](raw: object, shape: type[S], prefix: str = "") -> S:
    try:
        return shaped(raw, shape)
    except FieldError as error:
        raise ContractError(f"{prefix}{error.field}", error.problem) from error
