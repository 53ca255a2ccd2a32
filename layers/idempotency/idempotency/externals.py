"""External calls of an operation: what is known of each, kept in the operation's record, and what follows from it.

A call without a probe is recorded before it is made: that write is its intent. A call with a probe costs no write: the
claim is its intent, because an attempt after the first asks the probe. What a call returned is written with whatever is
written next. `plan` decides, from what is known and whether this is the key's first attempt::

    known of the call                          with a probe       without one
    nothing, first attempt                     call               write the intent, call
    nothing, later attempt                     probe              write the intent, call
    its intent                                 probe              UNKNOWN
    done, but its result could not be kept     probe              UNKNOWN
    an operator settled it: not done           write the intent, call
    its result                                 return it

    the probe answers: Done → its result; NOT_DONE → call; CANNOT_TELL → UNKNOWN; it raises → the attempt has failed
    the call raises: NotDoneError → nothing is known of it any more; any other error → its intent stands

UNKNOWN quarantines the key at once. A run with an intent that stands is never completed.
"""

import json
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from idempotency.decision import intended
from idempotency.errors import ConfigurationError, LostLeaseError, NotDoneError, UnknownOutcomeError
from idempotency.handlers import finished
from idempotency.record import Record

if TYPE_CHECKING:
    from idempotency.operation import Operation

MOST_BYTES: Final = 100_000
"""Results that would make the calls of one record larger are not kept."""

type State = str | bool | None
"""An encoded result, or one of these."""
INTENT: Final = None
NOT_KEPT: Final = ""
SETTLED_AS_NOT_DONE: Final = False


class Done[T](NamedTuple):
    """A probe's answer: the call took effect, and this is its result."""

    result: T


class Answer(Enum):
    """A probe's other answers."""

    NOT_DONE = "not done"
    """The call took no effect, and never will."""
    CANNOT_TELL = "cannot tell"


NOT_DONE: Final = Answer.NOT_DONE
CANNOT_TELL: Final = Answer.CANNOT_TELL

type Probe[T] = Callable[[str], Done[T] | Answer]


class Step(Enum):
    """What to do about a call."""

    RESULT = "return its result"
    CALL = "call"
    INTEND = "write the intent, call"
    PROBE = "probe"
    UNKNOWN = "give up"


# ── What is known ─────────────────────────────────────────────────────────────────────────────────────────────────────


def states(record: Record) -> dict[str, State]:
    """Return what is known of the record's calls, by name."""
    known: dict[str, State] = json.loads(record.externals) if record.externals else {}
    return known


def encoded(known: dict[str, State]) -> str | None:
    """Return what is known as `Record.externals`."""
    return json.dumps(known, separators=(",", ":"), ensure_ascii=False) if known else None


def noted(record: Record, name: str, state: State) -> Record:
    """Return the record with a call's state."""
    return record._replace(externals=encoded(states(record) | {name: state}))


def forgotten(record: Record, name: str) -> Record:
    """Return the record without a call."""
    return record._replace(externals=encoded({each: state for each, state in states(record).items() if each != name}))


def standing(record: Record) -> list[str]:
    """Return the names of the calls whose intent stands: nobody knows whether they were made."""
    return [] if record.externals is None else [name for name, state in states(record).items() if state is INTENT]


def settled(record: Record, name: str, answer: Done[Any] | Answer) -> Record:
    """Return the record with what an operator found out about a call: ``Done(result)`` or ``NOT_DONE``.

    Raises:
        UnencodableResultError: the result has no stored form.
    """
    from idempotency import codec

    return noted(record, name, codec.encode(answer.result) if isinstance(answer, Done) else SETTLED_AS_NOT_DONE)


def plan(known: dict[str, State], name: str, *, first: bool, probes: bool) -> Step:
    """Decide what to do about a call; ``first`` says that no earlier attempt at the key is known."""
    if name not in known:
        return Step.INTEND if not probes else Step.CALL if first else Step.PROBE
    state = known[name]
    if state is SETTLED_AS_NOT_DONE:
        return Step.INTEND
    if state:
        return Step.RESULT
    return Step.PROBE if probes else Step.UNKNOWN


# ── One call ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def perform[T](operation: "Operation", name: str, call: Callable[[str], T], probe: Probe[T] | None) -> T:
    """Make a call, or return what an earlier attempt got from it. `Operation.external` explains it."""
    known = _begin(operation, name)
    step = plan(known, name, first=operation._first, probes=probe is not None)
    if step is Step.RESULT:
        from idempotency import codec

        earlier: T = codec.decode(str(known[name]))
        return earlier
    key = operation.downstream_key_for(name)
    if step is Step.INTEND:
        _intend(operation, name, known)
    else:
        _require_claim(operation)
        operation._change(lambda claim: noted(claim, name, INTENT))
    if probe is not None and step is Step.PROBE:
        answer: Done[T] | Answer = finished(probe(key))
        if isinstance(answer, Done):
            found: T = answer.result
            return _done(operation, name, found)
        if answer is CANNOT_TELL:
            step = Step.UNKNOWN
        elif answer is not NOT_DONE:
            raise ConfigurationError(f"the probe of {name} must return Done, NOT_DONE or CANNOT_TELL: {answer!r:.100}")
        _require_claim(operation)
    if step is Step.UNKNOWN:
        raise UnknownOutcomeError(operation.key, name)
    try:
        result: T = finished(call(key))
    except NotDoneError:
        operation._change(lambda claim: forgotten(claim, name))
        raise
    return _done(operation, name, result)


def _begin(operation: "Operation", name: str) -> dict[str, State]:
    """Return what is known of the operation's calls, unless this one is not allowed."""
    if not operation._calls:
        raise ConfigurationError(
            f"{name}: an external call needs a claim that nobody takes while it is made: neither atomic=True nor "
            "same_delivery_takes_over=True"
        )
    if name in operation._begun:
        raise ConfigurationError(f"{name} was called before: each external call of a run has its own name")
    operation._begun.add(name)
    return states(operation._claim)


def _intend(operation: "Operation", name: str, known: dict[str, State]) -> None:
    """Write the intent. If the claim is lost, or the store does not answer, nothing is called and there is none."""
    try:
        operation._update(operation._change(partial(_with_intent, operation, name)), operation.deadline_ms)
        _require_claim(operation)
    except Exception:
        before = {name: known[name]} if name in known else {}
        operation._change(lambda claim: claim._replace(externals=encoded(states(forgotten(claim, name)) | before)))
        raise


def _with_intent(operation: "Operation", name: str, claim: Record) -> Record:
    externals = noted(claim, name, INTENT).externals or ""
    return intended(claim, operation._request, externals, operation._clock())


def _require_claim(operation: "Operation") -> None:
    if operation.lost:
        raise LostLeaseError(operation.key)


def _done[T](operation: "Operation", name: str, result: T) -> T:
    from idempotency.delivery import completed

    room = MOST_BYTES - len((operation._claim.externals or "").encode())
    kept = completed(result, room).result
    operation._change(lambda claim: noted(claim, name, NOT_KEPT if kept is None else kept))
    return result
