"""The page of a ride, with all that happened to it."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from carride_idempotency.operators.explaining import explain
from carride_idempotency.record import FAILED, Record
from ops import records
from ops.audit.evidence import COPY
from ops.dead_letters import redriven_at
from ops.desk.deliveries import deliveries_of
from ops.desk.facts import Fact
from ops.desk.registry import NotThereError, Seen, page
from ops.desk.story import story_of
from ops.desk.story_known import Known
from ops.desk.waterfall import picture
from ops.desk.words import clip
from ops.holds import Hold
from ops.lookup import is_ride
from ops.policies import MOST_ATTEMPTS

_LAMBDA_TRIES_AGAIN_MS: Final = (60_000.0, 120_000.0)
"""After the first and after the second failure of an asynchronous invocation, on AWS."""
_MOST_HOLDS: Final = 10
"""Lines of what holds a ride."""
_FIRST: Final = "CarRideCreated"
"""With this event, the index knows a ride from its beginning."""


@page("/ride/{id}", "ride.html")
def _ride(desk: Seen, request: Request) -> dict[str, Any]:
    name = request.path_params["id"]
    known = _known(desk, name)
    story = story_of(known)
    hides = _HIDES.get(request.query_params.get("show", ""))
    shown = picture(
        known.found,
        story.emitters,
        known.now_ms,
        expects=story.goes_on,
        hides=hides,
    )
    title = f"Ride {name}"
    if story.holds:
        title = f"{name}: {_in_a_word(story.holds[0])}"
    return {
        "title": title,
        "ride": name,
        "story": story,
        "picture": shown,
        "most_holds": _MOST_HOLDS,
        "looked_up_events": sum(fact.is_looked_up for fact, _ in known.found),
        "held_since_ms": desk.feed.index.held_since_ms,
        "records": known.records,
        "explain": partial(explain, now=desk.now(), attempts=MOST_ATTEMPTS),
    }


def _in_a_word(hold: Hold) -> str:
    """Return what holds a ride, as short as a title has to be."""
    return f"{hold.kind} at {hold.consumer}" if hold.consumer else str(hold.kind)


_HIDES: Final[Mapping[str, bool]] = {"unusual": True, "all": False}


def _known(desk: Seen, name: str) -> Known:
    """Read what is known of a ride.

    Raises:
        NotThereError: nothing is.
    """
    if not is_ride(name):
        raise NotThereError(
            f"{clip(name)} cannot be the id of a ride: such an id has letters, digits, '_', '.' "
            "and '-', as order_01 has.",
            title=f"{clip(name, 60)}: nothing found",
        )
    stack = desk.feed.stack
    facts = _facts_of(desk, name)
    keys = [f"{each.name}#{fact.id}" for fact in facts for each in desk.takers(fact)]
    tables = records.tables_of(stack, name)
    if not facts and not any(tables.values()):
        raise NotThereError(
            f"No ride has the id {name}. Search for it above: cars, customers and payments lead to "
            "their rides, too. A ride may be older than the logs, or not logged yet.",
            title=f"{name}: nothing found",
        )
    seen = records.StackRecords(stack).by_key(keys)
    report = desk.feed.report
    redriven = redriven_at(stack, keys)
    with desk.feed.lock:
        retries = dict(_retries(desk, seen))
        found = [
            (fact, deliveries_of(fact, desk.takers(fact), retries, redriven)) for fact in facts
        ]
    return Known(
        ride=name,
        found=found,
        tables=tables,
        records=seen,
        problems=report.saga.problems.get(name, ()) if report else (),
        overdue=report.saga.overdue.get(name) if report else None,
        limit=desk.overdue_limit,
        retries_on_aws=stack.local is None,
        now_ms=desk.now().timestamp() * 1000,
    )


def _facts_of(desk: Seen, name: str) -> list[Fact]:
    """Return the events of a ride: those of the index, and older ones if it has begun before."""
    with desk.feed.lock:
        facts = desk.feed.index.of_ride(name)
    if COPY in name or any(fact.type == _FIRST for fact in facts):
        return facts
    known = {fact.id: fact for fact in (*desk.older.ride(name), *facts)}
    return sorted(known.values(), key=lambda fact: fact.time_ms)


def _retries(desk: Seen, seen: Mapping[str, Record]) -> Iterator[tuple[str, float]]:
    """Yield when keys that failed are tried again, as far as that is known.

    A local engine has delays of its own.
    """
    queued = {
        each.name for each in desk.feed.consumers if f"{each.resources}Queue" in desk.feed.queues
    }
    for key, record in seen.items():
        consumer = key.partition("#")[0]
        tries = record.attempt
        if record.status != FAILED or desk.feed.stack.local is not None or consumer in queued:
            continue
        if 1 <= tries <= len(_LAMBDA_TRIES_AGAIN_MS):
            yield key, record.updated_ms + _LAMBDA_TRIES_AGAIN_MS[tries - 1]
