"""Follows the bus: each event on it, and each delivery to a consumer. Changes nothing.

It reads the log groups. A rule and a queue of its own would show events a little sooner, but change
the stack, and a crash would leave them behind.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from carride import telemetry
from carride.facts import FACTS
from carride_idempotency import observation
from ops import lookup
from ops.audit.evidence import CONSUMERS, Delivered, Published, grouped
from ops.audit.reading import BUS, Tail, delivered_in, published_in
from ops.dead_letters import BUS as THE_BUS
from ops.stack import OperatorError, StackRef
from ops.verbs import Moment, reads

_OVERLAP: Final = timedelta(seconds=20)
"""How late a line may appear in a log group."""
_POLL_S: Final = 1.0
_OUTCOMES: Final = observation.PROTECTED | {observation.UNPROTECTED}


RETRYING: Final = "retrying"
_COMPLETED: Final = "completed"
_COMPLETED_BEFORE: Final = "completed before"
_BECAME: Final[Mapping[str, str]] = {
    **dict.fromkeys(observation.COMMITTED, _COMPLETED),
    observation.DUPLICATE: _COMPLETED_BEFORE,
    observation.FAILED: RETRYING,
    observation.BUSY: RETRYING,
    observation.LOST_LEASE: RETRYING,
    observation.EXPIRED: "expired",
    observation.QUARANTINED: "quarantined",
    observation.DEAD_LETTERED: "dead-lettered",
    observation.UNPROTECTED: "run unprotected",
}
"""What a delivery shows of its event, by the delivery's outcome."""
_ADDS_NOTHING: Final = frozenset(
    {
        observation.DUPLICATE,
        observation.BUSY,
        observation.LOST_LEASE,
        observation.QUARANTINED,
    }
)
"""The outcomes of deliveries that run nothing, or in vain: what became of their event is known."""


class Window(NamedTuple):
    """What became of the events of the lines that follow it."""

    since: datetime
    published: int
    """Events on the bus, with copies."""
    consumers: Mapping[str, Mapping[str, int]]
    """How many events were completed, dead-lettered, …, by consumer."""
    retrying_since: Mapping[str, datetime]
    """The first failure of an event that has not come to its end, by consumer."""


class _Wanted(NamedTuple):
    """The lines that are shown: those of a ride, of a type, or with an outcome."""

    ride: str | None
    type: str | None
    outcome: str | None

    def includes(self, line: Published | Delivered) -> bool:
        """Return whether a line is shown."""
        if self.type not in (None, line.type):
            return False
        if isinstance(line, Delivered):
            return self.ride in (None, line.ride) and self.outcome in (None, line.outcome)
        if self.outcome is not None:
            return False
        # An event that breaks the contract was found by its text.
        return line.named is None or self.ride in (None, line.named.order_id)

    def became(self, delivered: Delivered) -> str:
        """Return what a delivery shows of its event. One outcome alone says nothing else of it."""
        if self.outcome is not None:
            return self.outcome
        return _BECAME.get(delivered.outcome, delivered.outcome)


@reads("tail", "--ride order_01 --since 10m", "--at payment --outcome Failed")
def tail(
    stack: StackRef,
    *,
    ride: str | None = None,
    type: str | None = None,  # noqa: A002 - the option's name
    outcome: str | None = None,
    at: str | None = None,
    since: Moment | None = None,
    follow: Annotated[bool, Parameter(negative="--no-follow")] = True,
    pause: Annotated[Callable[[float], object], Parameter(parse=False)] = time.sleep,
) -> Iterator[Window | Published | Delivered]:
    """Show each event on the bus and each delivery to a consumer as it comes, until Ctrl-C.

    With --since, the first line says what became of the events until now: how many each consumer
    has completed, dead-lettered or is retrying.

    Args:
        ride: Only those of this ride.
        type: Only those of this type, such as CarRideAccepted.
        outcome: Only deliveries with this outcome, such as Failed or Takeover.
        at: Only what comes to this consumer, such as payment; or bus: only events.
        since: Begin with those since then; by default with the next one.
        follow: Go on until Ctrl-C.
        pause: Waits for some seconds.
    """
    if ride is not None:
        lookup.check_ride(ride)
    _check_choice("type of event", type, FACTS)
    _check_choice("outcome", outcome, _OUTCOMES)
    _check_choice("consumer", at, (*(each.name for each in CONSUMERS), THE_BUS))
    wanted = _Wanted(ride, type, outcome)
    logs = _tails(stack, since or datetime.now(UTC), ride or outcome or type, at)
    lines = _new_lines(logs, wanted)
    if since is not None:
        yield _window_of(lines, since, wanted)
    yield from lines
    while follow:
        pause(_POLL_S)
        yield from _new_lines(logs, wanted)


def _check_choice(what: str, given: str | None, known: Collection[str]) -> None:
    if given is not None and given not in known:
        choices = ", ".join(sorted(known))
        raise OperatorError(f"there is no {what} {given}: give one of {choices}")


type _Parse = Callable[[Mapping[str, Any]], Published | Delivered | None]


def _tails(
    stack: StackRef, since: datetime, text: str | None, at: str | None
) -> list[tuple[_Parse, Tail]]:
    """Return the logs of the bus and of the consumers, each with the function that reads a line.

    Only lines with ``text`` are wanted, and only those of ``at``: of a consumer, or of the bus.
    """
    logs: list[tuple[_Parse, Tail]] = []
    if at in (None, THE_BUS):
        bus = Tail(stack, BUS, since, _OVERLAP, f'"{text or "detail"}"')
        logs.append((published_in, bus))
    for consumer in CONSUMERS:
        if at not in (None, consumer.name):
            continue
        pattern = f'"{text or telemetry.DELIVERY}"'
        logs.append((delivered_in, Tail(stack, consumer.resources, since, _OVERLAP, pattern)))
    return logs


def _new_lines(logs: Iterable[tuple[_Parse, Tail]], wanted: _Wanted) -> list[Published | Delivered]:
    """Return what is new in logs and wanted, in the order of its times."""
    found = [pair for parse, log in logs for pair in _parsed(log, parse)]
    found.sort(key=itemgetter(0))
    return [line for _, line in found if wanted.includes(line)]


def _window_of(lines: Iterable[Published | Delivered], since: datetime, wanted: _Wanted) -> Window:
    """Return what became of the events of these lines."""
    published = 0
    deliveries = list[Delivered]()
    for line in lines:
        if isinstance(line, Delivered):
            deliveries.append(line)
        else:
            published += 1
    consumers = dict[str, Mapping[str, int]]()
    retrying = dict[str, datetime]()
    for consumer, its in grouped((each.consumer, each) for each in deliveries).items():
        events = _events_in(its, wanted)
        consumers[consumer] = Counter(state for state, _ in events.values())
        began = [time for state, time in events.values() if state == RETRYING]
        if began:
            retrying[consumer] = min(began)
    return Window(since, published, consumers, retrying)


def _events_in(
    deliveries: Iterable[Delivered], wanted: _Wanted
) -> Mapping[object, tuple[str, datetime]]:
    """Return what became of each event of a consumer, and since when."""
    events = dict[object, tuple[str, datetime]]()
    for each in deliveries:
        event = each.fact or each.event_id or each
        state = wanted.became(each)
        if event not in events or _is_news(state, events[event][0], each.outcome):
            events[event] = (state, each.time)
    return events


def _is_news(state: str, known: str, outcome: str) -> bool:
    """Return whether a delivery shows more of an event than what is known of it."""
    if known != RETRYING and outcome in _ADDS_NOTHING:
        return False
    # A late copy expires before the record of the event is read.
    if known in (_COMPLETED, _COMPLETED_BEFORE) and outcome == observation.EXPIRED:
        return False
    return state != known


def _parsed(
    log: Tail, parse: _Parse
) -> Iterator[tuple[tuple[datetime, int], Published | Delivered]]:
    """Yield what is new in a log, with the times by which it is sorted."""
    for line in log.lines():
        found = parse(line)
        if found is not None:
            yield (found.time, line["timestamp"]), found
