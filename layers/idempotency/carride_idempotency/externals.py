"""External calls of an operation: what is known of each, kept in the operation's record, and what follows from it.

A call without a probe is recorded before it is made: that write is its intent. A call with a probe
costs no write: the claim is its intent, because an attempt after the first asks the probe. What a
call returned is written with whatever is written next. `plan` decides, from what is known and
whether this is the key's first attempt::

    known of the call                          with a probe       without one
    nothing, first attempt                     call               write the intent, call
    nothing, later attempt                     probe              write the intent, call
    its intent                                 probe              UNKNOWN
    done, but its result could not be kept     probe              UNKNOWN
    an operator settled it: not done           write the intent, call
    its result                                 return it

    the probe answers: Done → its result; NOT_DONE → call; CANNOT_TELL → UNKNOWN; it raises → the
    attempt has failed
    the call raises: NotDoneError → nothing is known of it any more; any other error → its intent
    stands

UNKNOWN quarantines the key at once. So does a run that ends while an intent stands: it is never
completed.
"""

import json
from collections.abc import Callable
from enum import Enum
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from carride_idempotency.decision import intended
from carride_idempotency.errors import (
    ConfigurationError,
    LostLeaseError,
    NotDoneError,
    UnknownOutcomeError,
)
from carride_idempotency.handlers import finished
from carride_idempotency.record import Record

if TYPE_CHECKING:
    from carride_idempotency.operation import Operation

MOST_BYTES: Final = 100_000
"""Results that would make the calls of one record larger are not kept."""

type State = str | bool | None
"""An encoded result, ``""`` if it could not be kept, None for an intent, False if it was settled as
not done."""


class Done[T](NamedTuple):
    """A probe's answer: the call took effect, and this is its result."""

    result: T


class Answer(Enum):
    """A probe's other answers. ``NOT_DONE``: the call took no effect, and never will."""

    NOT_DONE = "not done"
    CANNOT_TELL = "cannot tell"


NOT_DONE: Final = Answer.NOT_DONE
CANNOT_TELL: Final = Answer.CANNOT_TELL
type Probe[T] = Callable[[str], Done[T] | Answer]
type Step = Literal["result", "call", "intend", "probe", "unknown"]


# ── What is known ─────────────────────────────────────────────────────────────────────────────────


def states(record: Record) -> dict[str, State]:
    """Return what is known of the record's calls, by name."""
    known: dict[str, State] = json.loads(record.externals) if record.externals else {}
    return known


def noted(record: Record, name: str, state: State | EllipsisType) -> Record:
    """Return the record with a call's state; ``...`` forgets the call."""
    known = {each: its for each, its in (states(record) | {name: state}).items() if its is not ...}
    return record._replace(
        externals=json.dumps(known, separators=(",", ":"), ensure_ascii=False) if known else None
    )


def settled(record: Record, name: str, answer: Done[Any] | Answer) -> Record:
    """Return the record with what an operator found out about a call: ``Done(result)`` or ``NOT_DONE``.

    Raises:
        UnencodableResultError: the result has no stored form.
    """
    from carride_idempotency import codec

    return noted(record, name, codec.encode(answer.result) if isinstance(answer, Done) else False)


def plan(known: dict[str, State], name: str, *, first: bool, probes: bool) -> Step:
    """Decide what to do about a call; ``first`` says that no earlier attempt at the key is known."""
    if name not in known:
        return "intend" if not probes else "call" if first else "probe"
    if known[name] is False:
        return "intend"
    return "result" if known[name] else "probe" if probes else "unknown"


# ── One call ──────────────────────────────────────────────────────────────────────────────────────


def perform[T](
    operation: "Operation", name: str, call: Callable[[str], T], probe: Probe[T] | None
) -> T:
    """Make a call, or return what an earlier attempt got from it. `Operation.external` explains it."""
    known = _begin(operation, name)
    step = plan(known, name, first=operation._first, probes=probe is not None)
    if step == "result":
        from carride_idempotency import codec

        earlier: T = codec.decode(str(known[name]))
        return earlier
    key = operation.downstream_key_for(name)
    if step == "intend":
        _intend(operation, name, known.get(name, ...))
    else:
        _require_claim(operation)
        operation._change(lambda claim: noted(claim, name, None))
    if probe is not None and step == "probe":
        answer: Any = finished(probe(key))
        if isinstance(answer, Done):
            return _done(operation, name, answer.result)  # type: ignore[no-any-return] # a Done[T]
        if answer is CANNOT_TELL:
            step = "unknown"
        elif answer is not NOT_DONE:
            raise ConfigurationError(
                f"the probe of {name} must return Done, NOT_DONE or CANNOT_TELL: {answer!r:.100}"
            )
        _require_claim(operation)
    if step == "unknown":
        raise UnknownOutcomeError(operation.key, name)
    try:
        result: T = finished(call(key))
    except NotDoneError:
        operation._change(lambda claim: noted(claim, name, ...))
        raise
    return _done(operation, name, result)


def _begin(operation: "Operation", name: str) -> dict[str, State]:
    """Return what is known of the operation's calls, unless this one is not allowed."""
    if operation._lease_ms is None or operation._request.limits.same_delivery_takes_over:
        raise ConfigurationError(
            f"{name} needs a claim of its own: set neither atomic nor same_delivery_takes_over"
        )
    if name in operation._begun:
        raise ConfigurationError(
            f"{name} was called before: each external call of a run has its own name"
        )
    operation._begun.add(name)
    return states(operation._claim)


def _intend(operation: "Operation", name: str, before: State | EllipsisType) -> None:
    """Write the intent. If the claim is lost, or the store does not answer, nothing is called and there is none."""
    request, clock = operation._request, operation._clock
    intent = operation._change(lambda claim: intended(noted(claim, name, None), request, clock()))
    try:
        operation._update(intent, operation.deadline_ms)
        _require_claim(operation)
    except Exception:
        operation._change(lambda claim: noted(claim, name, before))
        raise


def _require_claim(operation: "Operation") -> None:
    if operation.lost:
        raise LostLeaseError(operation.key)


def _done[T](operation: "Operation", name: str, result: T) -> T:
    from carride_idempotency.delivery import completed

    room = MOST_BYTES - len((operation._claim.externals or "").encode())
    kept = completed(result, room).result
    operation._change(lambda claim: noted(claim, name, kept or ""))
    return result
