"""Follows the bus: each event on it, and each delivery to a consumer. Changes nothing.

It reads the log groups. A rule and a queue of its own would show events a little sooner, but change
the stack, and a crash would leave them behind.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from carride import telemetry
from carride.facts import FACTS
from carride_idempotency import observation
from ops import lookup
from ops.audit.evidence import CONSUMERS, Delivered, Published
from ops.audit.reading import BUS, Tail, delivered_in, published_in
from ops.dead_letters import BUS as THE_BUS
from ops.stack import OperatorError, StackRef
from ops.verbs import Moment, reads

_OVERLAP: Final = timedelta(seconds=20)
"""How late a line may appear in a log group."""
_POLL_S: Final = 1.0
_OUTCOMES: Final = observation.PROTECTED | {observation.UNPROTECTED}


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
) -> Iterator[Published | Delivered]:
    """Show each event on the bus and each delivery to a consumer as it comes, until Ctrl-C.

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
    while True:
        found = [pair for parse, log in logs for pair in _parsed(log, parse)]
        found.sort(key=itemgetter(0))
        for _, line in found:
            if wanted.includes(line):
                yield line
        if not follow:
            return
        pause(_POLL_S)


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


def _parsed(
    log: Tail, parse: _Parse
) -> Iterator[tuple[tuple[datetime, int], Published | Delivered]]:
    """Yield what is new in a log, with the times by which it is sorted."""
    for line in log.lines():
        found = parse(line)
        if found is not None:
            yield (found.time, line["timestamp"]), found
