"""The problems that the API reports, as problem details of RFC 9457. Pure: no I/O.

Clients use ``type`` and ``field``. ``title`` and ``detail`` are for people and may change.
"""

from enum import StrEnum
from typing import Final, Self

from msgspec import UNSET, Struct, UnsetType

from carride.decoding import json_name
from carride_idempotency import HttpProblemError

TYPES: Final = "urn:acr:car-ride:problem:"  # the prefix of every problem's type


class Kind(StrEnum):
    """The kinds of problems, each with its HTTP status and its title."""

    status: int
    title_text: str

    def __new__(cls, kind: str, status: int, title: str = "") -> Self:
        """Make a member. The idempotency layer has titles for the problems without one."""
        member = str.__new__(cls, kind)
        member._value_ = kind
        member.status = status
        member.title_text = title
        return member

    INVALID_REQUEST = "invalid-request", 400, "The request cannot be read"
    TOO_LARGE = "too-large", 413, "The body is too large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type", 415, "The body must be JSON"
    INVALID_FIELD = "invalid-field", 422, "A field is invalid"
    UNKNOWN_RIDE = "unknown-ride", 404, "There is no such ride"
    """No ride has this id, or the read model has not received its first event yet."""
    STALE_VERSION = "stale-version", 409, "The ride has changed"
    """The ride has changed since the client read it; ``version`` is the current one."""
    ILLEGAL_TRANSITION = "illegal-transition", 409, "The ride's status does not allow this"
    TOO_MANY_CHANGES = "too-many-changes", 409, "The ride has changed too often"
    """The destination can no longer change; the ride can still be completed or cancelled."""
    KEY_REUSED = "idempotency-key-reused", 422  # the key belongs to another request
    KEY_FORGOTTEN = "idempotency-key-forgotten", 409, "The idempotency key was used long ago"
    """A ride was booked with the key, and the answer is no longer stored."""
    IN_PROGRESS = "request-in-progress", 409
    """The same request is being processed: send it again after ``Retry-After`` seconds."""
    # The request may have taken effect: send it again with the same key.
    UNAVAILABLE = "unavailable", 503
    # The caller may not do this, or the stage does not allow it.
    FORBIDDEN = "forbidden", 403, "This is not allowed"
    SIMULATION_RUNNING = "simulation-running", 409, "Only one simulation runs at a time"


class Problem(Struct, frozen=True, kw_only=True, rename=json_name):
    """The body of a problem: the members of RFC 9457, and two that this API adds."""

    type: str
    title: str
    status: int
    detail: str
    field: str | UnsetType = UNSET  # the invalid field, parameter or header
    version: int | UnsetType = UNSET  # the ride's current version


def refused(
    kind: Kind, detail: str, *, field: str | None = None, version: int | None = None
) -> HttpProblemError:
    """Return the error that answers a request with a problem. ``detail`` describes this case."""
    return HttpProblemError(
        kind.status,
        kind.title_text,
        detail,
        type=kind,
        stored=True,  # a repeated request gets the refusal that it got first
        field=field,
        version=version,
    )
