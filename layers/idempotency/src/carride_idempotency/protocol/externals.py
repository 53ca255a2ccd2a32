"""External calls of an operation: what its record knows of each, and what the next attempt does.

A call without a probe is recorded before it is made: that write is its intent. A call with a probe
costs no write: the claim is its intent, because an attempt after the first asks the probe. What a
call returned is written with whatever is written next. `plan` decides, from what is known and
whether this is the key's first attempt::

    known of the call                      first attempt         with a probe   without one
    NOTHING                                with a probe: CALL    PROBE          INTEND
    INTENDED: it may have been made        -                     PROBE          UNKNOWN
    NOT_KEPT: made, its result is unknown  -                     PROBE          UNKNOWN
    NOT_DONE: an operator settled it       -                     INTEND         INTEND
    DONE: its result is kept               -                     RETURN         RETURN

    CALL    make the call                        RETURN   return the kept result
    INTEND  write the intent, then make it       PROBE    ask the probe
    UNKNOWN quarantine the key at once

    the probe answers Done       return its result
                      NOT_DONE   make the call
                      CANNOT_TELL  quarantine the key at once
                      raises     the attempt has failed
    the call raises   NotDoneError  nothing is known of it any more
                      another error its intent stands

A run that ends while an intent stands is never completed: its key is quarantined as UNKNOWN.

A thread may outlive the run that it works for. No step begins after the end of its run. A call that
is under way then keeps the claim until its lease ends: an attempt that ran earlier could make it
too.
"""

import json
from collections.abc import Callable, Generator
from enum import Enum
from inspect import CO_VARARGS
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from carride_idempotency.errors import (
    ConfigurationError,
    LostLeaseError,
    NotDoneError,
    UnfinishedWorkError,
    UnknownOutcomeError,
)
from carride_idempotency.keys import downstream_key
from carride_idempotency.protocol.decision import intended
from carride_idempotency.protocol.unfinished import finished
from carride_idempotency.record import Record

if TYPE_CHECKING:
    from carride_idempotency.protocol.claims import HeldClaim

MOST_BYTES: Final = 100_000
"""Results that would make the calls of one record larger are not kept."""


class Done[T](NamedTuple):
    """A probe's answer: the call took effect, and this is its result."""

    result: T


class Stored(NamedTuple):
    """An operator's answer: the call took effect, and this is its result as a record holds it."""

    text: str
    """What `codec.as_stored` returns."""


class Answer(Enum):
    """A probe's other answers. ``NOT_DONE``: the call took no effect, and never will."""

    NOT_DONE = "not done"
    CANNOT_TELL = "cannot tell"


NOT_DONE: Final = Answer.NOT_DONE
CANNOT_TELL: Final = Answer.CANNOT_TELL
type Probe[T] = Callable[[str], Done[T] | Answer]


class State(Enum):
    """What is known of a call: the rows of the table above."""

    NOTHING = "nothing"
    INTENDED = "intended"
    NOT_KEPT = "made, its result is unknown"
    NOT_DONE = "settled as not done"
    DONE = "done"


class Known(NamedTuple):
    """What is known of a call, with its encoded result if that is kept."""

    state: State
    result: str | None = None


class Step(Enum):
    """What to do about a call: the steps of the table above."""

    CALL = "call"
    INTEND = "intend"
    PROBE = "probe"
    RETURN = "return"
    UNKNOWN = "unknown"


NOTHING: Final = Known(State.NOTHING)
INTENDED: Final = Known(State.INTENDED)


# ── What is known ─────────────────────────────────────────────────────────────────────────────────


def known_of(record: Record, name: str) -> Known:
    """Return what a record knows of one call."""
    stored = _stored(record)
    return _known(stored[name]) if name in stored else NOTHING


def noted(record: Record, name: str, known: Known) -> Record:
    """Return the record with what is now known of a call."""
    stored = _stored(record)
    if known.state is State.NOTHING:
        stored.pop(name, None)
    else:
        stored[name] = _to_store(known)
    if not stored:
        return record._replace(externals=None)
    text = json.dumps(stored, separators=(",", ":"), ensure_ascii=False)
    return record._replace(externals=text)


def settled(record: Record, name: str, answer: Done[Any] | Stored | Answer) -> Record:
    """Return the record with an operator's answer about a call.

    It is ``Done(result)``, ``Stored(text)`` or ``NOT_DONE``.

    Raises:
        UnencodableResultError: the result has no stored form.
    """
    if isinstance(answer, Stored):
        return noted(record, name, Known(State.DONE, answer.text))
    if not isinstance(answer, Done):
        return noted(record, name, Known(State.NOT_DONE))
    from carride_idempotency.stores import codec

    return noted(record, name, Known(State.DONE, codec.encode(answer.result)))


type _Stored = str | bool | None
"""How a record holds a call: null INTENDED, ``""`` NOT_KEPT, false NOT_DONE, other texts DONE."""


def _stored(record: Record) -> dict[str, _Stored]:
    stored: dict[str, _Stored] = json.loads(record.externals) if record.externals else {}
    return stored


def _known(stored: _Stored) -> Known:
    if stored is None:
        return INTENDED
    if isinstance(stored, bool):
        return Known(State.NOT_DONE)
    if not stored:
        return Known(State.NOT_KEPT)
    return Known(State.DONE, stored)


def _to_store(known: Known) -> _Stored:
    if known.state is State.INTENDED:
        return None
    if known.state is State.NOT_DONE:
        return False
    return known.result or ""


def plan(state: State, *, first: bool, probes: bool) -> Step:
    """Decide what to do about a call.

    ``first`` says that no earlier attempt at the key is known.
    """
    match state:
        case State.NOTHING if not probes:
            return Step.INTEND
        case State.NOTHING if first:
            return Step.CALL
        case State.NOTHING:
            return Step.PROBE
        case State.INTENDED | State.NOT_KEPT if probes:
            return Step.PROBE
        case State.INTENDED | State.NOT_KEPT:
            return Step.UNKNOWN
        case State.NOT_DONE:
            return Step.INTEND
        case State.DONE:
            return Step.RETURN


# ── One call ──────────────────────────────────────────────────────────────────────────────────────


def perform[T](
    claim: "HeldClaim", name: str, call: Callable[[str], T], probe: Probe[T] | None
) -> T:
    """Make a call, or return what an earlier attempt got from it: see `Operation.external`."""
    require_call(name, call, probe)
    key = downstream_key(claim.record.key, name)

    def take(step: Record | Step) -> Any:
        if isinstance(step, Record):
            return claim.write(step, claim.request.deadline_ms)
        if probe is not None and step is Step.PROBE:
            return finished(probe(key))
        return finished(call(key))

    steps: Steps[T] = steps_of(claim, name, probes=probe is not None)
    try:
        step = next(steps)
        while True:
            step = _next_step(steps, step, take)
    except StopIteration as end:
        result: T = end.value
        return result


def _next_step(
    steps: "Steps[Any]", step: Record | Step, take: Callable[[Record | Step], Any]
) -> Record | Step:
    """Take a step, and tell who asked for it how it went; return the next one."""
    try:
        answer = take(step)
    except BaseException as error:  # noqa: BLE001 - raised again where the step was asked for
        return steps.throw(error)
    return steps.send(answer)


type Steps[T] = Generator[Record | Step, Any, T]
"""The steps of one external call, in order: an intent to write, PROBE, CALL. It returns the result.

Whoever takes a step sends back what the step returned, or throws what it raised."""


def steps_of(claim: "HeldClaim", name: str, *, probes: bool) -> Steps[Any]:
    """Yield the steps of a call, by the table above; return its result."""
    _begin(claim, name)
    try:
        return (yield from _steps_of_begun(claim, name, probes=probes))
    finally:
        claim.open_calls.discard(name)


def _steps_of_begun(claim: "HeldClaim", name: str, *, probes: bool) -> Steps[Any]:
    known = known_of(claim.record, name)
    step = plan(known.state, first=claim.is_first, probes=probes)
    if step is Step.RETURN:
        from carride_idempotency.stores import codec

        return codec.decode(str(known.result))
    _require_run(claim, name)
    if step is Step.INTEND:
        yield from _intend(claim, name, known)
    else:
        claim.change(lambda record: noted(record, name, INTENDED))
    if step is Step.UNKNOWN:
        raise UnknownOutcomeError(claim.record.key, name)
    if step is Step.PROBE:
        answer = yield Step.PROBE
        _require_understood(claim, name, answer)
        if isinstance(answer, Done):
            return _keep(claim, name, answer.result)
        _require_run(claim, name)  # the probe took time
    try:
        result = yield Step.CALL
    except NotDoneError:
        claim.change(lambda record: noted(record, name, NOTHING))
        raise
    return _keep(claim, name, result)


def require_call(name: object, call: object, probe: object) -> None:
    """Refuse what cannot be called before its intent is written, which would have to be settled."""
    if isinstance(name, str) and _takes_a_key(call) and (probe is None or _takes_a_key(probe)):
        return
    from carride_idempotency.errors.misuse import not_an_external_call

    raise not_an_external_call(name, call, probe)


def _takes_a_key(function: object) -> bool:
    """Return whether a function can be called with a key, as far as a look at its code tells."""
    if not isinstance(function, FunctionType):
        return callable(function)
    code = function.__code__
    needed = code.co_argcount - len(function.__defaults__ or ())
    return needed <= 1 and (code.co_argcount > 0 or bool(code.co_flags & CO_VARARGS))


def _begin(claim: "HeldClaim", name: str) -> None:
    """Note that this run makes the call, or refuse it."""
    _require_running(claim, name)
    if claim.lease_ms is None or claim.request.limits.same_delivery_takes_over:
        raise ConfigurationError(
            f"{name} needs a claim of its own: set neither atomic nor same_delivery_takes_over"
        )
    with claim.lock:
        if name in claim.begun_calls:
            raise ConfigurationError(
                f"{name} was called before: give each external call of a run its own name"
            )
        claim.begun_calls.add(name)
        claim.open_calls.add(name)


def _intend(claim: "HeldClaim", name: str, before: Known) -> Steps[None]:
    """Have the intent written before the call.

    If the write fails, is cancelled, or finds the claim lost, no call is made. Then the record goes
    back to what was known before.
    """
    request = claim.request
    now_ms = claim.clock()
    intent = claim.change(lambda record: intended(noted(record, name, INTENDED), request, now_ms))
    try:
        yield intent
        _require_run(claim, name)
    except BaseException:
        claim.change(lambda record: noted(record, name, before))
        raise


def _require_run(claim: "HeldClaim", name: str) -> None:
    """Require that the run may take a step: it has not ended, and holds its claim."""
    _require_running(claim, name)
    if claim.is_lost:
        raise LostLeaseError(claim.record.key)


def _require_running(claim: "HeldClaim", name: str) -> None:
    if claim.has_ended:
        raise UnfinishedWorkError(
            f"{claim.record.key}: the operation has ended, so {name} was not called: make external "
            "calls before the handler returns, or inside the `with` block, and in its process"
        )


def _require_understood(claim: "HeldClaim", name: str, answer: Any) -> None:
    """Require ``Done`` or ``NOT_DONE`` of a probe; raise if it cannot tell."""
    if answer is CANNOT_TELL:
        raise UnknownOutcomeError(claim.record.key, name)
    if not isinstance(answer, Done) and answer is not NOT_DONE:
        raise ConfigurationError(
            f"the probe of {name} returned {answer!r:.100}: return Done, NOT_DONE or CANNOT_TELL"
        )


def _keep[T](claim: "HeldClaim", name: str, result: T) -> T:
    """Keep the result of a call for later attempts if the record can hold it; return it."""
    from carride_idempotency.protocol.outcomes import completed

    used = len((claim.record.externals or "").encode())
    kept = completed(result, MOST_BYTES - used).result
    known = Known(State.NOT_KEPT) if kept is None else Known(State.DONE, kept)
    claim.change(lambda record: noted(record, name, known))
    return result
