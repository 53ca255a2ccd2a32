"""Looks up what the desk's index does not hold any more, or never did, as `./carride` does."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from carride.events import DETAIL_TYPE, ContractError, parse_event
from ops import lookup
from ops.audit.evidence import DeadLettered
from ops.dead_letters import DeadLetter
from ops.desk.facts import Copy, Fact, Run
from ops.search import Search, find
from ops.stack import OperatorError, StackRef

_KEPT_S: Final = 60.0
_MOST: Final = 50
"""The answers that are kept; a look-up reads log groups."""


class Older:
    """Looks rides and events up in tables and logs, and keeps the answers for a while."""

    def __init__(self, stack: StackRef) -> None:
        self._stack = stack
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[float, Any]] = {}

    def ride(self, name: str) -> Sequence[Fact]:
        """Return the events of a ride, none if nothing is known of it."""

        def ask() -> Sequence[Fact]:
            return [fact_of(event) for event in lookup.ride(self._stack, name).events]

        return self._answer(("ride", name), ask, ())

    def event(self, name: str) -> Fact | None:
        """Return an event, None if nothing is known of it."""

        def ask() -> Fact | None:
            return fact_of(lookup.event(self._stack, name))

        return self._answer(("event", name), ask, None)

    def search(self, text: str) -> Search:
        """Return what `ops.search.find` finds."""
        nothing = Search((), 0, "")
        return self._answer(("find", text), lambda: find(self._stack, text), nothing)

    def _answer[T](self, name: tuple[str, str], ask: Callable[[], T], nothing: T) -> T:
        with self._lock:
            at, kept = self._kept.get(name, (float("-inf"), nothing))
            found: T = kept
            if time.monotonic() - at < _KEPT_S:
                return found
            try:
                found = ask()
            except OperatorError:
                found = nothing
            self._kept.pop(name, None)
            self._kept[name] = time.monotonic(), found
            if len(self._kept) > _MOST:
                del self._kept[next(iter(self._kept))]
            return found


def fact_of(event: lookup.Event) -> Fact:
    """Return an event that was looked up as the index would have it."""
    copies = [
        Copy(each.event_id, _ms(each.time), each.replayed)
        for each in sorted(event.copies, key=lambda copy: copy.time)
    ]
    runs = [
        Run(
            each.consumer,
            each.outcome,
            each.attempt or 0,
            each.delivery,
            each.reason,
            _ms(each.time),
        )
        for at in event.consumers
        for each in at.deliveries
    ]
    letters = {at.consumer: at.dead_letters[0] for at in event.consumers if at.dead_letters}
    return Fact(
        id=event.id,
        type=event.type,
        ride=event.ride,
        version=event.version,
        time_ms=_first_ms(event, copies, runs),
        body=_body(event),
        copies=copies,
        runs=runs,
        letters={consumer: _lettered(letter) for consumer, letter in letters.items()},
        is_looked_up=True,
    )


def _first_ms(event: lookup.Event, copies: Sequence[Copy], runs: Sequence[Run]) -> int:
    """Return when an event was published, or about when: by itself, its runs, letters, records."""
    if copies:
        return copies[0].time_ms
    known = [run.ended_ms for run in runs]
    for at in event.consumers:
        known += [_ms(letter.sent) for letter in at.dead_letters]
        if at.record is not None and at.record.created is not None:
            known.append(_ms(at.record.created))
    with suppress(ContractError):
        known.append(_ms(parse_event({"detail": event.detail}).time))
    return min(known, default=0)


def _body(event: lookup.Event) -> str:
    """Return the event as EventBridge would deliver it, as far as it is known."""
    detail = event.detail
    if isinstance(detail, dict) and "detail" in detail:
        return json.dumps(detail)  # it breaks the contract, and was found whole
    source = detail.get("source") if isinstance(detail, dict) else None
    return json.dumps({"source": source, "detail-type": DETAIL_TYPE, "detail": detail})


def _lettered(letter: DeadLetter) -> DeadLettered:
    return DeadLettered(letter.queue, letter.reason, letter.consumer, None, letter.fact)


def _ms(time_: datetime) -> int:
    return int(time_.timestamp() * 1000)
