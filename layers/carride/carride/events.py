"""The event contract: what the CarRide bus carries, how it is written and how it is read. Pure: no I/O, no AWS.

On the wire an event is an EventBridge event whose ``detail`` is a CloudEvents 1.0 event in structured JSON. Two of its
extensions carry the guarantee: ``idempotencyid`` is the same for every copy of one fact, however often and by whatever
road it is sent, and ``sequence`` numbers the facts of one ride, since the bus keeps no order.

Reading is more tolerant than writing. A reader takes the older envelope ``{"attributes": …, "data": …}`` too, and data
as ``data_base64``; it ignores what it does not know, and fills in attributes that repeat others (``subject``,
``partitionkey``, ``correlationid``).
"""

import binascii
import re
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta, Struct

from carride.decoding import ShapeError, shaped
from carride.ride import CarID, Cents, Ride, Sector

DETAIL_TYPE: Final = "CarRideEvent"
SOURCE: Final = "acr.com.car-ride"
SIMULATOR_SOURCE: Final = "acr.com.car-ride-simulator"
SOURCES: Final = frozenset({SOURCE, SIMULATOR_SOURCE})
TRUSTED_SOURCES: Final[frozenset[str]] = frozenset()
"""Foreign sources whose idempotency ids are accepted as they are. All others have to derive theirs from the fact.

They are compared with the ``source`` in EventBridge's envelope, on which the policy of a bus decides.
"""

NAMESPACE: Final = UUID("e2335e19-0957-596c-8f0a-bc68334f6ed1")
"""Of the ids of facts: uuid5 of the DNS name car-ride.acr.com. Another one would make every known fact a new one."""

_SEQUENCE_DIGITS: Final = 8

# Derived ids are version 5. Ids of other versions are made up anew on each try, or from the clock.
_DERIVED_ID: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$(?!\n)"
_is_derived_id: Final = re.compile(_DERIVED_ID).search
_BLANK_PARTS: Final = frozenset({"", "None", "null", "undefined"})
"""What a part of a composite id looks like when what it was made from was not there."""
MOST_LEVELS: Final = 64
"""How deeply an event may be nested. Whatever handles it afterwards recurses, some of it in Python."""
_is_extension_name: Final = re.compile(r"[a-z0-9]{1,20}").fullmatch


def idempotency_id(order_id: str, fact_type: str, version: int) -> str:
    """Return what identifies a fact: derived from the fact, so that a retry of it carries the same id.

    Args:
        order_id: the ride. It cannot contain the ``/`` that keeps the parts apart.
        fact_type: the event's type.
        version: the ride's version that the fact belongs to.
    """
    return str(uuid5(NAMESPACE, f"{order_id}/{fact_type}/{version}"))


def sequence(version: int) -> str:
    """Return a ride's version in the form that sorts as text: zero-padded."""
    return f"{version:0{_SEQUENCE_DIGITS}d}"


# ── Facts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


type Reason = Annotated[str, Meta(min_length=1, max_length=200, description="Why, for people.")]
type PaymentID = Annotated[str, Meta(min_length=1, max_length=64, description="The payment gateway's reference.")]


class Fact(Ride, frozen=True, kw_only=True):
    """Something that happened to a ride: the data of an event.

    It holds the ride as it was afterwards, and what the fact adds. Its class is the event's type.

    Only a `RideChange` changes the ride. A fact that dispatch, payment or the reconciler adds holds the version of the
    event that it follows from.
    """

    schema_version: ClassVar[int] = 1
    """Rises when the data changes in a way that readers of the version before could not read."""

    @classmethod
    def of(cls, ride: Ride, **added: Any) -> Self:
        """Return the fact about ``ride``; ``added`` are the fields that this fact has and a ride has not."""
        return cls(**{field: getattr(ride, field) for field in Ride.__struct_fields__}, **added)

    @classmethod
    def dataschema(cls) -> str:
        """Return the URI that names the schema of this data."""
        return f"urn:acr:car-ride:{cls.__name__}:{cls.schema_version}"

    def ride(self) -> Ride:
        """Return the ride as it was after the fact."""
        return Ride(**{field: getattr(self, field) for field in Ride.__struct_fields__})


class RideChange(Fact, frozen=True, kw_only=True):
    """A fact that makes a new version of the ride: each version is one such fact."""


class CarRideCreated(RideChange, frozen=True, kw_only=True):
    """A customer asked for a ride."""


class CarRideAccepted(RideChange, frozen=True, kw_only=True):
    """The company will drive the ride."""


class CarRideStarted(RideChange, frozen=True, kw_only=True):
    """The passengers are in the car."""


class CarRideCompleted(RideChange, frozen=True, kw_only=True):
    """The passengers have arrived."""


class CarRideCancelled(RideChange, frozen=True, kw_only=True):
    """The ride was called off."""

    reason: Reason


class CarRideDestinationChanged(RideChange, frozen=True, kw_only=True):
    """The passengers want to go elsewhere."""

    previous_destination: Sector
    previous_price: Cents


class CarAssigned(Fact, frozen=True, kw_only=True):
    """Dispatch found a car for the ride."""

    car_id: CarID


class NoCarAvailable(Fact, frozen=True, kw_only=True):
    """Dispatch found no car for the ride."""


class CarReleased(Fact, frozen=True, kw_only=True):
    """The ride's car is free for another one."""

    car_id: CarID


class PaymentAuthorized(Fact, frozen=True, kw_only=True):
    """The customer's money is reserved."""

    payment_id: PaymentID
    amount: Cents


class PaymentDeclined(Fact, frozen=True, kw_only=True):
    """The customer's money could not be reserved."""

    amount: Cents
    reason: Reason


class PaymentCaptured(Fact, frozen=True, kw_only=True):
    """The customer has paid."""

    payment_id: PaymentID
    amount: Cents


class PaymentRefunded(Fact, frozen=True, kw_only=True):
    """The customer has the money back, or it is no longer reserved."""

    payment_id: PaymentID
    amount: Cents


class CarRideOverdue(Fact, frozen=True, kw_only=True):
    """The ride has needed something for too long; whoever holds anything for it settles it."""

    outcome: Annotated[
        Literal["completed", "cancelled"],
        Meta(
            description="completed: a car drove it to its end, so it is paid. cancelled: what it holds is given back."
        ),
    ]


FACTS: Final[Mapping[str, type[Fact]]] = {
    fact.__name__: fact
    for fact in (
        CarRideCreated,
        CarRideAccepted,
        CarRideStarted,
        CarRideCompleted,
        CarRideCancelled,
        CarRideDestinationChanged,
        CarAssigned,
        NoCarAvailable,
        CarReleased,
        PaymentAuthorized,
        PaymentDeclined,
        PaymentCaptured,
        PaymentRefunded,
        CarRideOverdue,
    )
}
"""The facts by event type."""


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


type _Text = Annotated[str, Meta(min_length=1, max_length=256)]
type _Timestamp = Annotated[datetime, Meta(tz=True)]
type _DerivedId = Annotated[
    str, Meta(pattern=_DERIVED_ID, description="The same for every copy of one fact; derived from it, never random.")
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
        description="The trace that the event is part of, as W3C Trace Context writes it.",
    ),
]


class Attributes(Struct, frozen=True, kw_only=True):
    """The attributes of an event, as they are written."""

    specversion: Literal["1.0"]
    id: Annotated[_Text, Meta(description="With the source, names the event.")]
    source: Annotated[_Text, Meta(description="Who says so.")]
    type: Annotated[_Text, Meta(description="What happened.")]
    subject: Annotated[_Text, Meta(description="The ride's orderID.")]
    time: Annotated[_Timestamp, Meta(description="When it happened.")]
    datacontenttype: Literal["application/json"]
    dataschema: Annotated[_Text, Meta(description="Names the schema of the data.")]
    idempotencyid: _DerivedId
    sequence: _Sequence
    partitionkey: Annotated[_Text, Meta(description="Events that share it are about one ride.")]
    correlationid: Annotated[_Text, Meta(description="The same for all that follows from one request.")]
    causationid: Annotated[_Text, Meta(description="The id of the event that this one follows from.")] | None = None
    traceparent: _Traceparent | None = None
    expirytime: Annotated[_Timestamp, Meta(description="When the event is no longer worth processing.")] | None = None


class RideEvent(Attributes, frozen=True, kw_only=True):
    """An event of the bus, whichever envelope it came in."""

    data: Fact
    payload: Mapping[str, Any]
    """The data as received, with fields that this reader does not know, without fields that equal their default.

    Fingerprint this: a type that gains a field with a default leaves the payload of older events as it was.
    """
    extensions: Mapping[str, str | int | bool] = {}
    """CloudEvents extensions that are no part of the contract."""

    @classmethod
    def of(
        cls,
        data: Fact,
        *,
        source: str,
        time: datetime,
        cause: "RideEvent | None" = None,
        correlationid: str | None = None,
        traceparent: str | None = None,
        expirytime: datetime | None = None,
        extensions: Mapping[str, str | int | bool] | None = None,
    ) -> Self:
        """Return the event of a fact. The same fact gives the same ids at any time.

        Args:
            data: the fact.
            source: who emits it.
            time: when it happened, with a time zone.
            cause: the event that it follows from, whose trace and correlation it carries on.
            correlationid: of the request that it follows from; left out, the cause's, or else the ride's orderID.
            traceparent: the trace that it is part of; left out, the cause's.
            expirytime: from when on nobody needs to hear of it.
            extensions: further attributes, whose names are lower-case letters and digits.

        Raises:
            ValueError: a time without a time zone, which no consumer would accept.
        """
        if time.utcoffset() is None or (expirytime is not None and expirytime.utcoffset() is None):
            raise ValueError(f"{time} or {expirytime} has no time zone")
        fact_id = idempotency_id(data.order_id, type(data).__name__, data.version)
        return cls(
            specversion="1.0",
            id=fact_id,
            source=source,
            type=type(data).__name__,
            subject=data.order_id,
            time=time,
            datacontenttype="application/json",
            dataschema=data.dataschema(),
            idempotencyid=fact_id,
            sequence=sequence(data.version),
            partitionkey=data.order_id,
            correlationid=correlationid or (data.order_id if cause is None else cause.correlationid),
            causationid=None if cause is None else cause.id,
            traceparent=traceparent or (None if cause is None else cause.traceparent),
            expirytime=expirytime,
            data=data,
            payload=_without_defaults(type(data), msgspec.to_builtins(data)),
            extensions=extensions or {},
        )

    def to_detail(self) -> dict[str, Any]:
        """Return the event as CloudEvents structured JSON, in JSON's own types."""
        attributes = {
            name: msgspec.to_builtins(value)
            for name in Attributes.__struct_fields__
            if (value := getattr(self, name)) is not None
        }
        return attributes | dict(self.extensions) | {"data": msgspec.to_builtins(self.data) | dict(self.payload)}


def _without_defaults(fact: type[Fact], payload: Mapping[str, Any]) -> dict[str, Any]:
    defaults = _defaults(fact)
    return {name: value for name, value in payload.items() if name not in defaults or value != defaults[name]}


@cache
def _defaults(fact: type[Fact]) -> dict[str, Any]:
    fields = msgspec.structs.fields(fact)
    return {field.encode_name: field.default for field in fields if not field.required}


_KNOWN: Final = frozenset({*Attributes.__struct_fields__, "data", "data_base64"})


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ContractError(ValueError):
    """Raised for an event that breaks the contract: no retry will mend it. ``field`` is what is wrong with it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class UnreadableError(ContractError):
    """Raised for what is no JSON, or JSON that not everything that handles it could take."""


class UnknownEnvelopeError(ContractError):
    """Raised for a detail that is neither a CloudEvents event nor in the older envelope."""


class MissingIdempotencyIdError(ContractError):
    """Raised for an event without an idempotency id."""


class PartialIdempotencyIdError(ContractError):
    """Raised for an idempotency id of which a part is missing, or that is not derived from anything."""


class WrongIdempotencyIdError(ContractError):
    """Raised for an idempotency id that is not derived from the event's own ride, type and version."""


class UnknownTypeError(ContractError):
    """Raised for an event type that is not in `FACTS`."""


class MalformedAttributeError(ContractError):
    """Raised for an attribute that is missing or has not its form."""


class MalformedDataError(ContractError):
    """Raised for data that has not the form of its type; the field's name begins with ``data``."""


class ContradictionError(ContractError):
    """Raised for an event whose attributes speak of another ride, or of another version, than its data."""


class _OlderAttributes(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"idempotency_id": "idempotencyId", "event_time": "eventTime", "event_count": "eventCount"},
):
    """The attributes of the envelope that producers wrote before CloudEvents."""

    type: _Text
    source: _Text
    idempotency_id: _Text
    event_time: datetime
    """Taken for UTC where it has no time zone."""
    event_count: Annotated[int, Meta(ge=1, lt=10**_SEQUENCE_DIGITS)]


def read_json(content: str | bytes, field: str, *, levels: int = MOST_LEVELS) -> Any:
    """Return what a JSON text says.

    Args:
        content: anything that should be JSON in UTF-8.
        field: what the error calls it.
        levels: how deeply it may be nested.

    Raises:
        UnreadableError: it is no JSON; or it is nested too deeply, or holds a number that no double holds, or text that
            UTF-8 cannot write.
    """
    try:
        value = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(field, f"not JSON: {error}") from error
    _require_plain(value, field, levels)
    return value


def _require_plain(value: object, field: str, levels: int = MOST_LEVELS) -> None:
    """Refuse what a writer, a hash or a log behind the reader would fail on. It does not recurse."""
    level: list[Any] = [value]
    for _ in range(levels):
        below: list[Any] = []
        for each in level:
            if not _is_plain(each):
                raise UnreadableError(field, f"a {type(each).__name__} in it cannot be written as JSON in UTF-8")
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return
        level = below
    raise UnreadableError(field, f"nested more than {levels} levels deep")


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
    except (TypeError, UnicodeEncodeError):  # a key that is no text, or half of a surrogate pair
        return False


def parse_event(event: Mapping[str, Any], *, trusted: Collection[str] = TRUSTED_SOURCES) -> RideEvent:
    """Read an EventBridge event. Nothing that it may hold raises anything but a ContractError.

    Args:
        event: in EventBridge's envelope, of which only ``detail`` and ``source`` are read.
        trusted: sources of the envelope whose idempotency ids are not compared with their facts.

    Raises:
        ContractError: one of its subclasses says why.
    """
    detail = event.get("detail") if isinstance(event, Mapping) else None
    if not isinstance(detail, dict):
        raise UnknownEnvelopeError("detail", "not a JSON object")
    _require_plain(detail, "detail")
    if "specversion" in detail:
        parsed = _parse_cloud_event(detail)
    elif isinstance(older := detail.get("attributes"), dict):
        parsed = _parse_older(older, detail.get("data"))
    else:
        raise UnknownEnvelopeError("detail", "has neither a specversion nor the attributes of the older envelope")
    if parsed.subject != parsed.data.order_id:
        raise ContradictionError("subject", f"{parsed.subject!r} is not the ride of the data, {parsed.data.order_id}")
    if parsed.sequence != sequence(parsed.data.version):
        raise ContradictionError("sequence", f"{parsed.sequence} is not the version in the data, {parsed.data.version}")
    derived = idempotency_id(parsed.data.order_id, parsed.type, parsed.data.version)
    if parsed.idempotencyid != derived and str(event.get("source")) not in trusted:
        field = "idempotencyid" if "specversion" in detail else "attributes.idempotencyId"
        raise WrongIdempotencyIdError(field, f"{parsed.idempotencyid!r} is not the id of this fact, {derived}")
    return parsed


def _parse_cloud_event(detail: dict[str, Any]) -> RideEvent:
    identifier = _present("idempotencyid", detail)
    if not _is_derived_id(identifier):
        raise PartialIdempotencyIdError("idempotencyid", f"{identifier[:80]!r} is no whole UUID of version 5")
    data, payload = _parse_data("type", detail.get("type"), _payload_of(detail))
    repeated = {
        "subject": data.order_id,
        "datacontenttype": "application/json",
        "dataschema": data.dataschema(),
        "partitionkey": data.order_id,
        "correlationid": data.order_id,
    }
    try:
        # CloudEvents: an attribute that is null is an attribute that is not there.
        attributes = shaped(repeated | {name: value for name, value in detail.items() if value is not None}, Attributes)
    except ShapeError as error:
        raise MalformedAttributeError(error.field, error.problem) from error
    return RideEvent(
        **{name: getattr(attributes, name) for name in Attributes.__struct_fields__},
        data=data,
        payload=payload,
        extensions={
            name: value
            for name, value in detail.items()
            if name not in _KNOWN and isinstance(value, str | int) and _is_extension_name(name)
        },
    )


def _payload_of(detail: dict[str, Any]) -> object:
    """Return the data, from whichever of its two members it is in."""
    encoded = detail.get("data_base64")
    if encoded is None:
        return detail.get("data")
    if detail.get("data") is not None:
        raise MalformedDataError("data_base64", "there is data beside it")
    try:
        return read_json(binascii.a2b_base64(encoded, strict_mode=True), "data_base64")
    except (TypeError, ValueError) as error:
        raise MalformedDataError("data_base64", f"not JSON in base64: {error}") from error


def _parse_older(raw: dict[str, Any], payload: object) -> RideEvent:
    identifier = _present("idempotencyId", raw, "attributes.")
    if any(part in _BLANK_PARTS for part in identifier.split("#")):
        raise PartialIdempotencyIdError("attributes.idempotencyId", f"a part of {identifier[:80]!r} is missing")
    try:
        attributes = shaped(raw, _OlderAttributes)
    except ShapeError as error:
        raise MalformedAttributeError(f"attributes.{error.field}", error.problem) from error
    if isinstance(payload, dict) and "version" not in payload:  # it was counted in the attributes only
        payload = payload | {"version": attributes.event_count}
    data, payload = _parse_data("attributes.type", attributes.type, payload)
    time = attributes.event_time
    return RideEvent(
        specversion="1.0",
        id=attributes.idempotency_id,
        source=attributes.source,
        type=attributes.type,
        subject=data.order_id,
        time=time if time.tzinfo else time.replace(tzinfo=UTC),
        datacontenttype="application/json",
        dataschema=data.dataschema(),
        idempotencyid=attributes.idempotency_id,
        sequence=sequence(attributes.event_count),
        partitionkey=data.order_id,
        correlationid=data.order_id,
        data=data,
        payload=payload,
    )


def _present(name: str, attributes: dict[str, Any], prefix: str = "") -> str:
    """Return the idempotency id, which is there and is text."""
    identifier = attributes.get(name)
    if identifier is None or identifier == "":
        raise MissingIdempotencyIdError(f"{prefix}{name}", "missing: a copy of this event could not be recognised")
    if not isinstance(identifier, str):
        raise MalformedAttributeError(f"{prefix}{name}", f"a {type(identifier).__name__} is no idempotency id")
    return identifier


def _parse_data(field: str, fact_type: object, payload: object) -> tuple[Fact, dict[str, Any]]:
    fact = FACTS.get(fact_type) if isinstance(fact_type, str) else None
    if fact is None:
        raise UnknownTypeError(field, f"{fact_type!r:.80} is no type of the contract")
    if not isinstance(payload, dict):
        raise MalformedDataError("data", "not a JSON object")
    try:
        return shaped(payload, fact), _without_defaults(fact, payload)
    except ShapeError as error:
        raise MalformedDataError(f"data.{error.field}", error.problem) from error
