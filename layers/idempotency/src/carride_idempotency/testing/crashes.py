"""`crash_everywhere`: one event, and a fault at each call that its handler makes."""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from importlib.util import module_from_spec
from typing import Any, Final, NamedTuple, Protocol

from carride_idempotency.errors import ConfigurationError
from carride_idempotency.record import COMPLETED, QUARANTINED
from carride_idempotency.testing.contents import Expected
from carride_idempotency.testing.guards import warn_of_real_time
from carride_idempotency.testing.worlds import KINDS, TAKEN_OVER, Fault, World

_MOST_DELIVERIES: Final = 8
_LATER_S: Final = 25 * 3600
"""When the event comes once more: on another day."""
_ANOTHER_TIME_S: Final = 61.001
"""How much later the second run without a fault takes place."""
_COMES_AGAIN: Final = frozenset({409, *range(500, 600)})
"""Statuses after which a client sends its request again."""
_ADVICE: Final[Mapping[str, str]] = {
    "direct": "It is written outside of the commit: register it with operation.write(...), "
    "or give the call operation.downstream_key, "
    "as a FIFO queue's deduplication id or an object's key.",
    "external": "It was called under different keys: give it operation.downstream_key, "
    "the same in every attempt.",
    "registered": "The deliveries had different idempotency keys: "
    "derive key= from the event alone.",
}

_UNRECOGNISED: Final = (
    "The other system recognises no repeated call (NO_KEY): make it with operation.external and a "
    "probe, which asks whether it took effect. A probe cannot stop a call that is made late: if "
    "your function cannot make one, leave out that fault, without=['taken over']."
)

type Handler = Callable[[Any, Any], Any]
type Build = Callable[[Any], Handler]
"""Starts a process of the handler in a world."""


class CrashEverywhere(Protocol):
    """The type of the fixture `crash_everywhere`."""

    def __call__(
        self,
        handler: Handler | Build,
        event: Any,
        *,
        world: Callable[[], World] = ...,
        state: Callable[[Any], object] = ...,
        next_version: Handler | Build | None = ...,
        without: Collection[str] = ...,
        timeout_s: float = ...,
    ) -> int:
        """Run a handler once for each call and each fault; return the number of runs."""
        ...


class BrokenPromiseError(AssertionError):
    """Raised when a handler loses or doubles an effect, or leaves a key behind.

    Its message shows what happened, one line a step.
    """


class _End(NamedTuple):
    """How a world stands when it is quiet."""

    effects: Counter[str]
    of_keys: Counter[tuple[str, str | None]]
    """The effects of each idempotency key."""
    contents: Expected
    state: object
    given_up: frozenset[str | None]
    """The keys of dead letters."""
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
    """Run a handler once for each call that it makes and each fault; return the number of runs.

    A run meets one fault. The process crashes before a call or after it. The request or its answer
    is lost. Or another delivery of the event overtakes this one, at once or when its lease has
    ended. Then the event is delivered until it is acknowledged, and once more, a day later. In the
    end effects, tables and state must be as after a run without a fault, and its key must be free.
    What differs between two runs without a fault, such as a random id, is not compared.

    Args:
        handler: builds the Lambda handler over a new world, as a cold start does: ``build(world)``.
            A handler that its module has built will do: the module is loaded anew for each process.
        event: what is delivered.
        world: makes a new world, with the tables and whatever else is there before the event.
        state: gets the world of a run, and returns what must be as it is after a run without a
            fault, for effects that the world cannot see.
        next_version: the handler's next version. Deliveries then meet the one version and the
            other, in both orders.
        without: kinds of faults to leave out. With ``taken over``, a run continues when its lease
            has ended, and so repeats a call to a system that honours no keys.
        timeout_s: the function's timeout.

    Raises:
        BrokenPromiseError: an effect is lost or doubled, a table or the state ends differently, a
            key is left behind, a connection is not declared, a thread outlives its invocation, or
            the event is never acknowledged.
        ConfigurationError: a process of the handler cannot be started again.
    """
    if not callable(world):
        raise ConfigurationError(
            "world= is a function, because each run has a new world: write world=lambda: World(...)"
        )
    warn_of_real_time()
    old = _builder(handler)
    new = old if next_version is None else _builder(next_version)
    pairs = dict.fromkeys([(old, old), (old, new), (new, old)])
    trials = [_Trial(world, first, then, event, state, timeout_s) for first, then in pairs]
    allowed = [trial.clean() for trial in trials]
    kinds = [kind for kind in KINDS if kind not in without]
    runs = 0
    for trial, end in zip(trials, allowed, strict=True):
        for kind in kinds:
            for call in range(1, end.calls + 1):
                trial.run(kind, call, allowed)
                runs += 1
    return runs


def _builder(handler: Handler | Build) -> Build:
    """Return what starts a process of a handler."""
    if _takes_one_argument(handler):
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


def _takes_one_argument(function: Callable[..., object]) -> bool:
    """Return whether a function is ``build(world)``; further arguments may have defaults."""
    arguments = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    return len(arguments) == 1 and arguments[0].default is inspect.Parameter.empty


class _Trial(NamedTuple):
    """A handler and an event; ``then`` is the version that gets the later deliveries."""

    world: Callable[[], World]
    first: Build
    then: Build
    event: Any
    state: Callable[[Any], object]
    timeout_s: float

    def clean(self) -> _End:
        """Deliver the event without a fault, and again; then the same at another time."""
        first = self._undisturbed(0.0)
        second = self._undisturbed(_ANOTHER_TIME_S)
        contents = Expected(first.contents.first, second.contents.first)
        return first._replace(contents=contents)

    def _undisturbed(self, later_s: float) -> _End:
        """Deliver the event without a fault, and again; return how the world stood in between."""
        world = self.world()
        world.clock.advance(later_s)
        with world.installed():
            handler = self.first(world)
            if not callable(handler):
                raise ConfigurationError(
                    f"build(world) returns the handler, but it returned {handler!r:.100}"
                )
            run = world.invoke(handler, self.event, timeout_s=self.timeout_s)
            contents = world.contents()
            end = _End(
                world.once(),
                world.once_for_each_key(),
                Expected(contents, contents),
                self.state(world),
                _given_up(world),
                run.calls,
            )
            _require_no_violation(world, "without a fault")
            if _remaining(self.event, run.answer, run.error) is not None:
                raise _broken(
                    world, "without a fault, the event is not acknowledged"
                ) from run.error
            if not end.effects and end.state is None:
                raise _broken(
                    world, "no effect is seen: declare it with world.external(...), or give state="
                )
            self._deliver_later(world, self.then(world))
            self._judge(world, "a second delivery", [end])
        return end

    def run(self, kind: str, at: int, allowed: list[_End]) -> None:
        """Deliver the event with a fault, then until it is acknowledged, then once more."""
        world = self.world()
        left_by_overtaking = list[Any]()

        def overtake() -> None:
            if kind == TAKEN_OVER:
                world.clock.advance(self.timeout_s + 60)
            other = world.invoke(
                self.then(world), self.event, delivery="delivery-2", timeout_s=self.timeout_s
            )
            left_by_overtaking.append(_remaining(self.event, other.answer, other.error))

        with world.installed():
            handler = self.first(world)
            fault = Fault(kind, lambda number, _: number == at, overtake)
            run = world.invoke(handler, self.event, timeout_s=self.timeout_s, fault=fault)
            if run.dead or self.then is not self.first:
                handler = self.then(world)
            rest = _remaining(self.event, run.answer, run.error)
            self._deliver(world, handler, "delivery-1", rest)
            for rest in left_by_overtaking:
                self._deliver(world, handler, "delivery-2", rest)
            self._judge(world, f"{kind} at call {at}", allowed)
            self._deliver_later(world, handler)
            self._judge(world, f"{kind} at call {at}, and a further delivery", allowed)

    def _deliver(self, world: World, handler: Handler, delivery: str, rest: Any) -> None:
        """Deliver what is left of the event until it is acknowledged.

        Each delivery comes when the leases of earlier attempts have ended.
        """
        received = 1
        error = None
        while rest is not None:
            received += 1
            if received > _MOST_DELIVERIES:
                raise _broken(
                    world, f"{delivery} is not acknowledged, however often it comes"
                ) from error
            world.clock.advance(60 + self.timeout_s)
            again = _received(rest, received)
            run = world.invoke(handler, again, delivery=delivery, timeout_s=self.timeout_s)
            rest = _remaining(rest, run.answer, run.error)
            error = run.error

    def _deliver_later(self, world: World, handler: Handler) -> None:
        """Deliver the event once more, a day later or within half of what is left of the window."""
        now_s = world.clock() / 1000
        wait_s: float = _LATER_S
        for find in world.records.values():
            record = find()
            if record is not None and record.expiry is not None:
                left_s = record.expiry - now_s
                wait_s = min(wait_s, left_s / 2)
        world.clock.advance(max(0.0, wait_s))
        self._deliver(world, handler, "delivery-3", self.event)

    def _judge(self, world: World, when: str, allowed: list[_End]) -> None:
        """Require one effect, nothing lost, equal contents, and free keys."""
        _require_no_violation(world, when)
        given_up = _given_up(world) - allowed[0].given_up
        _require_free_keys(world, when)
        _require_one_effect(world, when, allowed)
        _require_no_loss(world, when, allowed, given_up)
        _require_contents(world, when, allowed, given_up)
        state = self.state(world)
        if state not in [end.state for end in allowed] and not given_up:
            raise _broken(world, f"{when}: the state is {state!r}, not {allowed[0].state!r}")


# ── What must be so in the end ────────────────────────────────────────────────────────────────────


def _given_up(world: World) -> frozenset[str | None]:
    return frozenset(letter.key for letter in world.dead_letters.letters)


def _require_no_violation(world: World, when: str) -> None:
    if world.violations:
        raise _broken(world, f"{when}: {world.violations[0]}")


def _require_free_keys(world: World, when: str) -> None:
    given_up = _given_up(world)
    for find in world.records.values():
        record = find()
        if record is None or record.status == COMPLETED:
            continue
        if record.status == QUARANTINED and given_up:
            continue
        raise _broken(world, f"{when}: the key {record.key} stays {record.status}")


def _require_one_effect(world: World, when: str, allowed: list[_End]) -> None:
    effects = world.once()
    if effects in [end.effects for end in allowed]:
        return
    for name, times in effects.items():
        expected = allowed[0].effects[name]
        if times > expected:
            what = f"{when}: {name} took effect {times} times, not {expected}"
            advice = _UNRECOGNISED if name in world.unrecognised else _ADVICE[name.split()[0]]
            raise _broken(world, f"{what}. {advice}")


def _require_no_loss(
    world: World, when: str, allowed: list[_End], given_up: frozenset[str | None]
) -> None:
    """Require each key's effects; those of a key that was given up now may be missing."""
    of_keys = world.once_for_each_key()
    if of_keys in [end.of_keys for end in allowed]:
        return
    for (name, key), expected in allowed[0].of_keys.items():
        excused = key in given_up or (key is None and given_up)
        if of_keys[name, key] < expected and not excused:
            of_key = f" for {key}" if key else ""
            raise _broken(
                world,
                f"{when}: {name} is lost{of_key}, because the event was acknowledged without it. "
                "Let the handler raise its errors: the event is then delivered again.",
            )


def _require_contents(
    world: World, when: str, allowed: list[_End], given_up: frozenset[str | None]
) -> None:
    """Require the contents of a run without a fault, except where a key was given up."""
    contents = world.contents()
    ignored = set()
    if given_up:
        places = contents.keys() | allowed[0].contents.first.keys()
        ignored = {place for place in places if world.touched[place] & {None, *given_up}}
        ignored |= {place for place in allowed[0].contents.first if place not in contents}
    for end in allowed:
        if not end.contents.differences(contents, ignored):
            return
    difference, *_ = allowed[0].contents.differences(contents, ignored)
    raise _broken(
        world,
        f"{when}: a table {difference}, unlike after a run without a fault. Register the write "
        "with operation.write(...), and derive what it holds from the event alone.",
    )


def _broken(world: World, what: str) -> BrokenPromiseError:
    return BrokenPromiseError("\n".join((what, "", *world.timeline)))


def _remaining(event: Any, answer: Any, error: BaseException | None) -> Any:
    """Return what is left of an event to deliver again; None if all of it is acknowledged."""
    if error is not None:
        return event
    if not isinstance(answer, dict):
        return None
    if answer.get("statusCode") in _COMES_AGAIN:
        return event
    failed = [failure["itemIdentifier"] for failure in answer.get("batchItemFailures", ())]
    if not failed:
        return None
    if "records" in event:
        partitions = {
            partition: [each for each in records if _id_of(each) in failed]
            for partition, records in event["records"].items()
        }
        return event | {"records": partitions}
    return event | {"Records": [each for each in event["Records"] if _id_of(each) in failed]}


def _id_of(record: Mapping[str, Any]) -> object:
    """Return what names a record of a batch in a report of failures."""
    if "offset" in record:
        return {"partition": f"{record['topic']}-{record['partition']}", "offset": record["offset"]}
    stream = record.get("dynamodb", {})
    kinesis = record.get("kinesis", {})
    return record.get("messageId") or stream.get("SequenceNumber") or kinesis.get("sequenceNumber")


def _received(event: Any, times: int) -> Any:
    """Return an event as it is at a later delivery: a queue counts the deliveries of a message."""
    records = event.get("Records", ()) if isinstance(event, dict) else ()
    if not records or "attributes" not in records[0]:
        return event
    counted = {"ApproximateReceiveCount": str(times)}
    received = [each | {"attributes": each["attributes"] | counted} for each in records]
    return event | {"Records": received}
