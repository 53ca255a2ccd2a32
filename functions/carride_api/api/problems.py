"""What can go wrong with a request, as RFC 9457 tells it. Pure: no I/O.

A client acts on ``type`` and ``field``; ``title`` and ``detail`` are for people, and may change.
"""

from enum import StrEnum
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from carride.decoding import json_name
from idempotency.http import HttpProblemError

TYPES: Final = "urn:acr:car-ride:problem:"
"""What the type of each problem begins with."""


class Kind(StrEnum):
    """The kinds of problems."""

    INVALID_REQUEST = "invalid-request"
    """No JSON, or a header or parameter that is missing or has not its form."""
    TOO_LARGE = "too-large"
    """The body is larger than any request needs to be."""
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type"
    """The body is something else than JSON."""
    INVALID_FIELD = "invalid-field"
    """A field of the body is missing, unknown, or has a value that it cannot have."""
    UNKNOWN_RIDE = "unknown-ride"
    """No ride has this id, or the read model has not heard of it yet."""
    STALE_VERSION = "stale-version"
    """The ride has changed since the client saw it; ``version`` is the present one."""
    ILLEGAL_TRANSITION = "illegal-transition"
    """The ride's status does not allow it."""
    KEY_REUSED = "idempotency-key-reused"
    """The key belongs to another request."""
    KEY_FORGOTTEN = "idempotency-key-forgotten"
    """A ride was booked with the key, so long ago that the answer is no longer known."""
    IN_PROGRESS = "request-in-progress"
    """The same request is being processed: ask again after ``Retry-After`` seconds."""
    UNAVAILABLE = "unavailable"
    """It is not known whether the request took effect: send it again, with its key."""
    FORBIDDEN = "forbidden"
    """Not for this caller, or not in this stage."""
    TOO_MANY_CHANGES = "too-many-changes"
    """The ride has changed as often as a ride can; it can still be driven to its end, or cancelled."""
    SIMULATION_RUNNING = "simulation-running"
    """Another simulation was started a quarter of an hour ago or less."""


_TITLES: Final = {
    Kind.INVALID_REQUEST: (400, "The request cannot be read"),
    Kind.TOO_LARGE: (413, "The body is too large"),
    Kind.UNSUPPORTED_MEDIA_TYPE: (415, "The body has to be JSON"),
    Kind.INVALID_FIELD: (422, "A field is not as it has to be"),
    Kind.UNKNOWN_RIDE: (404, "There is no such ride"),
    Kind.STALE_VERSION: (409, "The ride has changed meanwhile"),
    Kind.ILLEGAL_TRANSITION: (409, "The ride's status does not allow this"),
    Kind.KEY_FORGOTTEN: (409, "The idempotency key was used long ago"),
    Kind.FORBIDDEN: (403, "This is not allowed"),
    Kind.TOO_MANY_CHANGES: (409, "The ride has changed too often"),
    Kind.SIMULATION_RUNNING: (409, "One simulation at a time"),
}


_OF_THE_LAYER: Final = {Kind.KEY_REUSED: 422, Kind.IN_PROGRESS: 409, Kind.UNAVAILABLE: 503}
"""What the idempotency layer answers by itself, under the same types."""


def status_of(kind: Kind) -> int:
    """Return the HTTP status of a kind of problem."""
    return _OF_THE_LAYER.get(kind) or _TITLES[kind][0]


class Problem(Struct, frozen=True, kw_only=True, rename=json_name):
    """The body of an answer that is none: RFC 9457's members, and four of our own."""

    type: str
    title: str
    status: int
    detail: str
    field: str | UnsetType = UNSET
    """The field, parameter or header at fault."""
    version: int | UnsetType = UNSET
    """The ride's present version."""
    fits: float | UnsetType = UNSET
    """A value of the field that would be accepted, where another of its values is too large or too small."""


def refused(
    kind: Kind, detail: str, *, field: str | None = None, version: int | None = None, fits: float | None = None
) -> HttpProblemError:
    """Return the error to raise for a problem; ``detail`` is a sentence about this case of it."""
    status, title = _TITLES[kind]
    return HttpProblemError(status, title, detail, type=kind, field=field, version=version, fits=fits)
