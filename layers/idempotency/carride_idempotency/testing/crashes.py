"""`crash_everywhere`: one event, and a fault at each call that its handler makes."""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from importlib.util import module_from_spec
from typing import Any, Final, NamedTuple

from carride_idempotency.errors import ConfigurationError
from carride_idempotency.record import COMPLETED, QUARANTINED
from carride_idempotency.testing.worlds import KINDS, TAKEN_OVER, Fault, World

_MOST_DELIVERIES: Final = 8
_COMES_AGAIN: Final = frozenset({409, *range(500, 600)})
"""Statuses after which a client sends its request again."""
_ADVICE: Final[Mapping[str, str]] = {
    "direct": "It is written outside of the commit: register it with operation.write(...), or declare the call with "
    "world.external(...) and give it operation.downstream_key.",
    "external": "It was called under different keys: give it operation.downstream_key, the same in every attempt.",
    "registered": "The deliveries had different idempotency keys: derive key= from the event alone.",
}

type Handler = Callable[[Any, Any], Any]
type Build = Callable[[Any], Handler]
"""Starts a process of the handler in a world."""


class BrokenPromiseError(AssertionError):
    """Raised when a handler loses or doubles an effect, or leaves a key behind; its message has the timeline."""


class _End(NamedTuple):
    """How a world stands when it is quiet."""

    effects: Counter[str]
    state: object
    calls: int


def crash_everywhere(
    handler: Handler | Build,
    event: Any,
    *,
    world: Callable[[], World] = World,
    state: Callable[[Any], object] = lambda _: None,
    next_version: Handler | Build | None = None,
    without: Collection[str] = (),
    timeout_s: float = 30.0,
) -> int:
    """Deliver an event once for each call that its handler makes and each fault; return the number of these runs.

    A run meets one fault: the process crashes before a call or after it, the request or its answer
    is lost, or another delivery of the event overtakes this one, at once or when its lease has
    ended. Then the event is delivered until it is acknowledged, and once more. In the end its
    effects must be those of a run without a fault, and its key must be free.

    Args:
        handler: builds the Lambda handler over a new world, as a cold start does: ``build(world)``.
            A handler that its module has built will do: the module is loaded anew for each process.
        event: what is delivered.
        world: makes a new world, with the tables and whatever else is there before the event.
        state: returns what must be as it is after a run without a fault, for effects that the world
            cannot see.
        next_version: the handler's next version. Deliveries then meet the one version and the
            other, in both orders.
        without: kinds of faults to leave out, such as ``taken over``: a run that continues when its
            lease has ended repeats a call to a system that honours no keys.
        timeout_s: the function's timeout.

    Raises:
        BrokenPromiseError: an effect is lost or doubled, a key is left behind, or the event is
            never acknowledged.
    """
    old = _builder(handler)
    new = old if next_version is None else _builder(next_version)
    pairs = dict.fromkeys([(old, old), (old, new), (new, old)])
    trials = [_Trial(world, first, then, event, state, timeout_s) for first, then in pairs]
    allowed = [trial.clean() for trial in trials]
    runs = [
        (trial, kind, at)
        for trial, end in zip(trials, allowed, strict=True)
        for kind in KINDS
        if kind not in without
        for at in range(1, end.calls + 1)
    ]
    for trial, kind, at in runs:
        trial.run(kind, at, allowed)
    return len(runs)


def _builder(handler: Handler | Build) -> Build:
    """Return what starts a process of a handler."""
    parameters = inspect.signature(handler).parameters.values()
    if [each.default for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD] == [
        inspect.Parameter.empty
    ]:
        return handler  # type: ignore[return-value] # by its signature
    work = inspect.unwrap(handler)
    module = sys.modules[work.__module__]
    if getattr(module, work.__name__, None) is not handler or module.__spec__ is None:
        raise ConfigurationError("crash_everywhere needs build(world), which returns the handler")
    spec = module.__spec__

    def load(_: World) -> Handler:
        process: Any = module_from_spec(spec)
        spec.loader.exec_module(process)  # type: ignore[union-attr] # it was imported
        built: Handler = getattr(process, work.__name__)
        return built

    return load


class _Trial(NamedTuple):
    """A handler and an event; ``then`` is the version that gets the later deliveries."""

    world: Callable[[], World]
    first: Build
    then: Build
    event: Any
    state: Callable[[Any], object]
    timeout_s: float

    def clean(self) -> _End:
        """Deliver the event without a fault, and again."""
        world = self.world()
        with world.installed():
            run = world.invoke(self.first(world), self.event, timeout_s=self.timeout_s)
            end = _End(world.once(), self.state(world), run.calls)
            if _remaining(self.event, run.answer, run.error) is not None:
                raise _broken(
                    world, "without a fault, the event is not acknowledged"
                ) from run.error
            if not end.effects and end.state is None:
                raise _broken(
                    world, "no effect is seen: declare it with world.external(...), or give state="
                )
            self._deliver(world, self.then(world), "delivery-2", self.event)
            self._judge(world, "a second delivery", [end])
        return end

    def run(self, kind: str, at: int, allowed: list[_End]) -> None:
        """Deliver the event with a fault at a call, then until it is acknowledged, then once more."""
        world, rest = self.world(), list[Any]()

        def overtake() -> None:
            world.clock.advance(self.timeout_s + 60 if kind == TAKEN_OVER else 0)
            other = world.invoke(
                self.then(world), self.event, delivery="delivery-2", timeout_s=self.timeout_s
            )
            rest.append(_remaining(self.event, other.answer, other.error))

        with world.installed():
            handler = self.first(world)
            fault = Fault(kind, lambda number, _: number == at, overtake)
            run = world.invoke(handler, self.event, timeout_s=self.timeout_s, fault=fault)
            if run.dead or self.then is not self.first:
                handler = self.then(world)
            self._deliver(
                world, handler, "delivery-1", _remaining(self.event, run.answer, run.error)
            )
            for each in rest:
                self._deliver(world, handler, "delivery-2", each)
            self._judge(world, f"{kind} at call {at}", allowed)
            self._deliver(world, handler, "delivery-3", self.event)
            self._judge(world, f"{kind} at call {at}, and a further delivery", allowed)

    def _deliver(self, world: World, handler: Handler, delivery: str, rest: Any) -> None:
        """Deliver what is left of the event until it is acknowledged; the leases of earlier attempts have ended."""
        received, error = 1, None
        while rest is not None:
            received += 1
            if received > _MOST_DELIVERIES:
                raise _broken(
                    world, f"{delivery} is not acknowledged, however often it comes"
                ) from error
            world.clock.advance(60 + self.timeout_s)
            again = _received(rest, received)
            run = world.invoke(handler, again, delivery=delivery, timeout_s=self.timeout_s)
            rest, error = _remaining(rest, run.answer, run.error), run.error

    def _judge(self, world: World, when: str, allowed: list[_End]) -> None:
        """Require one effect, nothing lost, and free keys."""
        effects, given_up = world.once(), bool(world.dead_letters.letters)
        for record in filter(None, [find() for find in world.records.values()]):
            if record.status != COMPLETED and not (record.status == QUARANTINED and given_up):
                raise _broken(world, f"{when}: the key {record.key} stays {record.status}")
        for name in (
            () if effects in [end.effects for end in allowed] else effects | allowed[0].effects
        ):
            times, expected = effects[name], allowed[0].effects[name]
            if times > expected:
                what = f"{when}: {name} took effect {times} times, not {expected}"
                raise _broken(world, f"{what}. {_ADVICE[name.split()[0]]}")
            if times < expected and not given_up:
                what = f"{when}: {name} is lost, because the event was acknowledged without it"
                raise _broken(
                    world,
                    f"{what}. Let the handler raise its errors: the event is then delivered again.",
                )
        found = self.state(world)
        if found not in [end.state for end in allowed] and not given_up:
            raise _broken(world, f"{when}: the state is {found!r}, not {allowed[0].state!r}")


def _broken(world: World, what: str) -> BrokenPromiseError:
    return BrokenPromiseError("\n".join((what, "", *world.timeline)))


def _remaining(event: Any, answer: Any, error: BaseException | None) -> Any:
    """Return what is left of an event to deliver again; None, if all of it is acknowledged."""
    answer = answer if isinstance(answer, dict) else {}
    if error is not None or answer.get("statusCode") in _COMES_AGAIN:
        return event
    failed = {failure["itemIdentifier"] for failure in answer.get("batchItemFailures", ())}
    return (
        event | {"Records": [each for each in event["Records"] if _id(each) in failed]}
        if failed
        else None
    )


def _id(record: Mapping[str, Any]) -> object:
    """Return what names a record of a batch in a report of failures."""
    stream, kinesis = record.get("dynamodb", {}), record.get("kinesis", {})
    return record.get("messageId") or stream.get("SequenceNumber") or kinesis.get("sequenceNumber")


def _received(event: Any, times: int) -> Any:
    """Return an event as it is at a later delivery: a queue counts them."""
    if not (isinstance(event, dict) and "Records" in event and "attributes" in event["Records"][0]):
        return event
    counted = {"ApproximateReceiveCount": str(times)}
    return event | {
        "Records": [
            each | {"attributes": each["attributes"] | counted} for each in event["Records"]
        ]
    }
