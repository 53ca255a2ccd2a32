"""`crash_everywhere`: one event, and a fault at each call that its handler makes."""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import module_from_spec
from typing import Any, Final, NamedTuple

from idempotency.errors import ConfigurationError
from idempotency.record import COMPLETED, QUARANTINED
from idempotency.testing.worlds import (
    ANSWER_LOST,
    CRASH_AFTER,
    CRASH_BEFORE,
    DIRECT,
    EXTERNAL,
    OVERTAKEN,
    REQUEST_LOST,
    Counted,
    Fault,
    World,
)

_KINDS: Final = (CRASH_BEFORE, CRASH_AFTER, REQUEST_LOST, ANSWER_LOST, OVERTAKEN)
_MOST_DELIVERIES: Final = 8
"""After which an event with one fault must have been acknowledged."""
_SERVER_ERROR: Final = 500
_CONFLICT: Final = 409
_ADVICE: Final[Mapping[str, str]] = {
    DIRECT: "It is written outside of the commit: register it with operation.write(...), or call another system with "
    "operation.downstream_key and declare the call with world.external(...).",
    EXTERNAL: "It was called under different keys: send operation.downstream_key, which is the same in every attempt.",
}
_OTHER_KEY: Final = "The deliveries had different idempotency keys: derive key= from the event alone."

type Handler = Callable[[Any, Any], Any]
type Build = Callable[[Any], Handler]
"""Gets the world."""


class BrokenPromiseError(AssertionError):
    """Raised when a handler loses or doubles an effect, or leaves a key behind; its message has the timeline."""


class _End(NamedTuple):
    """How a world stands when it is quiet."""

    effects: Counter[Counted]
    state: object
    calls: int


def crash_everywhere(
    handler: Handler | Build,
    event: Any,
    *,
    world: Callable[[], World] = World,
    state: Callable[[Any], object] | None = None,
    next_version: Handler | Build | None = None,
    timeout_s: float = 30.0,
) -> int:
    """Deliver an event once for each call that its handler makes and each fault; return the number of these runs.

    A run meets one fault: the process crashes before a call or after it, the request or its answer is lost, or another
    delivery of the event overtakes this one. Then the event is delivered until it is acknowledged, and once more. In
    the end its effects must be those of a run without a fault, and its key must be free.

    Args:
        handler: builds the Lambda handler over a new world, ``build(world)``, as a cold start does. A handler that its
            module has built at import will do: the module is loaded anew for each process.
        event: what is delivered.
        world: makes an empty world, for example with tables and cars in them.
        state: returns what must be as it is after a run without a fault, for effects that the world cannot see.
        next_version: the handler's next version. Deliveries then meet the one version and the other, in both orders.
        timeout_s: the function's timeout.

    Raises:
        BrokenPromiseError: an effect is lost or doubled, a key is left behind, or the event never gets quiet.
    """
    old = _builder(handler)
    versions = [(old, old)]
    if next_version is not None:
        new = _builder(next_version)
        versions += [(old, new), (new, old)]
    trials = [_Trial(world, first, then, event, state, timeout_s) for first, then in versions]
    allowed = [trial.clean() for trial in trials]
    runs = 0
    for trial, end in zip(trials, allowed, strict=True):
        for kind in _KINDS:
            for at in range(1, end.calls + 1):
                trial.run(Fault(kind, at), allowed)
                runs += 1
    return runs


def _builder(handler: Handler | Build) -> Build:
    """Return what starts a process of a handler."""
    if len(inspect.signature(handler).parameters) == 1:
        return handler  # type: ignore[return-value] # by its signature
    work = inspect.unwrap(handler)
    spec = sys.modules[work.__module__].__spec__
    found = getattr(sys.modules[work.__module__], work.__name__, None)
    if found is not handler or spec is None or spec.loader is None:
        raise ConfigurationError("crash_everywhere needs a function of the world that builds the handler")

    def load(_: World) -> Handler:
        assert spec.loader is not None  # noqa: S101 - checked above
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        built: Handler = getattr(module, work.__name__)
        return built

    return load


class _Trial(NamedTuple):
    """A handler and an event; ``then`` is the version that gets the later deliveries."""

    world: Callable[[], World]
    first: Build
    then: Build
    event: Any
    state: Callable[[Any], object] | None
    timeout_s: float

    def clean(self) -> _End:
        """Deliver the event without a fault, and again."""
        world = self.world()
        with world.installed():
            handler = self.first(world)
            answer, error, run = world.invoke(handler, self.event, timeout_s=self.timeout_s)
            end = _End(world.effects(), self.state and self.state(world), run.calls)
            if error is not None or _remaining(self.event, answer) is not None:
                raise _broken(world, "without a fault, the event is not acknowledged") from error
            if not end.effects and self.state is None:
                raise _broken(world, "no effect is seen: declare it with world.external(...), or give state=")
            self._judge(world, "without a fault", [end])
            self._deliver(world, self.then(world), "delivery-2")
            self._judge(world, "after a second delivery", [end])
        return end

    def run(self, fault: Fault, allowed: list[_End]) -> None:
        """Deliver the event with a fault, then until it is acknowledged, then once more."""
        world = self.world()
        with world.installed():
            handler = self.first(world)

            def overtake() -> None:
                world.invoke(self.then(world), self.event, delivery="delivery-2", timeout_s=self.timeout_s)

            met = fault._replace(meanwhile=overtake)
            answer, error, run = world.invoke(handler, self.event, timeout_s=self.timeout_s, fault=met)
            rest = self.event if error is not None else _remaining(self.event, answer)
            if run.dead or self.then is not self.first:
                handler = self.then(world)
            if rest is not None:
                self._deliver(world, handler, "delivery-1", rest)
            self._deliver(world, handler, "delivery-2")
            self._judge(world, f"{fault.kind} at call {fault.at}", allowed)

    def _deliver(self, world: World, handler: Handler, delivery: str, rest: Any = None) -> None:
        """Deliver what is left of the event until it is acknowledged; the leases of earlier attempts have ended."""
        rest = self.event if rest is None else rest
        error: BaseException | None = None
        for received in range(2, 2 + _MOST_DELIVERIES):
            world.clock.advance(60 + self.timeout_s)
            answer, error, _ = world.invoke(
                handler, _received(rest, received), delivery=delivery, timeout_s=self.timeout_s
            )
            rest = rest if error is not None else _remaining(rest, answer)
            if rest is None:
                return
        raise _broken(world, f"{delivery} is not acknowledged after {_MOST_DELIVERIES} more deliveries") from error

    def _judge(self, world: World, when: str, allowed: list[_End]) -> None:
        """Require one effect, nothing lost, and free keys."""
        effects, given_up = world.effects(), bool(world.dead_letters.letters)
        for record in world.records():
            if record.status != COMPLETED and not (record.status == QUARANTINED and given_up):
                raise _broken(world, f"{when}: the key {record.key} stays {record.status}: {record.error}")
        once = allowed[0].effects
        if not any(effects <= end.effects and (given_up or effects == end.effects) for end in allowed):
            for effect in effects | once:
                times, expected, advice = effects[effect], once[effect], _ADVICE.get(effect.kind, _OTHER_KEY)
                if times > expected:
                    raise _broken(world, f"{when}: {effect.what} took effect {times} times, not {expected}. {advice}")
                if times < expected:
                    raise _broken(
                        world,
                        f"{when}: {effect.what} is lost: the event was acknowledged without it. Let the handler raise "
                        "its errors, so that the event is delivered again.",
                    )
        if (
            self.state is not None
            and not given_up
            and (found := self.state(world)) not in [end.state for end in allowed]
        ):
            raise _broken(world, f"{when}: the state is {found!r}, not {allowed[0].state!r}")


def _broken(world: World, what: str) -> BrokenPromiseError:
    """Return the error that has the timeline."""
    return BrokenPromiseError("\n".join((what, "", *world.timeline)))


def _remaining(event: Any, answer: Any) -> Any:
    """Return what is left of an event to deliver again; None, if all of it is acknowledged."""
    answer = answer if isinstance(answer, dict) else {}
    if answer.get("statusCode", 200) >= _SERVER_ERROR or answer.get("statusCode") == _CONFLICT:
        return event
    failed = {failure["itemIdentifier"] for failure in answer.get("batchItemFailures", ())}
    return event | {"Records": [each for each in event["Records"] if failed & set(_ids(each))]} if failed else None


def _ids(record: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield what may name a record of a batch in a report of failures."""
    yield record.get("messageId")
    yield record.get("dynamodb", {}).get("SequenceNumber")
    yield record.get("kinesis", {}).get("sequenceNumber")


def _received(event: Any, times: int) -> Any:
    """Return an event as it is at a later delivery: a queue counts them."""
    if not (isinstance(event, dict) and "Records" in event and "attributes" in event["Records"][0]):
        return event
    counted = {"ApproximateReceiveCount": str(times)}
    return event | {"Records": [each | {"attributes": each["attributes"] | counted} for each in event["Records"]]}
