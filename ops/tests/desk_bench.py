"""Milliseconds of each page of the desk: `python -m ops.tests.desk_bench`.

Synthetic rides are put into the desk's index, without an engine, and each page is rendered some
times. The index keeps the newest 50,000 events of 100,000. Tables and queues are moto's, nearly
empty and in the same process: what a network adds to the pages that read them is left out.
Messages in queues and quarantined keys are counted once before, as a running feed does: no page's
time has that count. It does have the page's own reads of tables, records and letters.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Final, NamedTuple

from moto import mock_aws

from carride.facts import CarAssigned, CarReleased, Fact, PaymentAuthorized, PaymentCaptured
from carride_idempotency import observation
from ops.audit import Evidence, judge
from ops.audit.reading import published_in
from ops.desk.app import Desk
from ops.desk.index import Index
from ops.tests.desk_world import deliver, desk_of, event_of, get, line, publish
from ops.tests.hostile_world import hostile_stack
from tests.kit.rides import Life

SIZES: Final = (20_000, 100_000)
GOALS_MS: Final = {20_000: 50.0, 100_000: 150.0}
TIMES: Final = 5
_INCLUDED: Final = (
    "Each time includes the page's own reads of moto's tables and queues, which are nearly empty;\n"
    "it excludes the network, and the counts of queues and quarantined keys, read before."
)
_APART_MS: Final = 40
_BUSY_EVENTS: Final = 200
"""Events of one ride, more than any ride has: whatever happens in it is on its page."""
_POISON_EVERY: Final = 400
_OPEN_EVERY: Final = 50
_CARS: Final = 200
_CUSTOMERS: Final = 1_500
"""As many as a city has on a day: a customer has a few rides, and a car has many."""
_SECTORS: Final = 64


class Timed(NamedTuple):
    """How long a page took."""

    path: str
    milliseconds: float
    size: int
    """Characters."""


def life_of(number: int) -> Life:
    """Return a ride of one of many customers between two sectors of the city."""
    return Life(
        f"order_{number}",
        pickup=f"sector_{number * 7 % _SECTORS + 1:02d}",
        destination=f"sector_{(number * 13 + 5) % _SECTORS + 1:02d}",
        customer=f"customer_{number * 31 % _CUSTOMERS + 1}",
    )


def facts_of(number: int) -> Iterator[Fact]:
    """Yield what happens to a ride that goes well, in a car of a fleet and with its own payment."""
    life = life_of(number)
    car = f"car_{number % _CARS + 1:03d}"
    paid = {"payment_id": f"pay_{number}", "amount": 1250}
    yield life.created
    yield life.accepted
    yield CarAssigned.of(life.accepted, car_id=car)
    yield PaymentAuthorized.of(life.accepted, **paid)
    yield life.started
    yield life.completed
    yield CarReleased.of(life.completed, car_id=car)
    yield PaymentCaptured.of(life.completed, **paid)


def fill(index: Index, count: int, now_ms: float) -> None:
    """Put so many events into an index, the last of them now: a few fail, and a few wait."""
    at_ms = now_ms - count * _APART_MS
    known = 0
    number = 0
    while known < count:
        number += 1
        for fact in facts_of(number):
            event = event_of(fact)
            publish(index, event, at_ms)
            known += 1
            at_ms += _APART_MS
            for each in index.consumers:
                if not each.takes(event.type):
                    continue
                is_poison = each.name == "payment" and number % _POISON_EVERY == 0
                is_open = each.name == "dispatch" and number % _OPEN_EVERY == 0
                if is_poison:
                    told = {"reason": "GatewayUnavailableError: no answer"}
                    deliver(index, event, each.name, at_ms, observation.FAILED, **told)
                elif not is_open:
                    deliver(index, event, each.name, at_ms)
    busy = Life("order_busy")
    for copy in range(_BUSY_EVENTS):
        event = event_of(busy.created)
        publish(index, event, now_ms - copy)
        deliver(index, event, "ride-history", now_ms - copy, observation.DUPLICATE)


def judged(desk: Desk) -> None:
    """Give the desk an audit that finds all its events without effects: the longest report."""
    found = []
    for fact in desk.feed.index.facts.values():
        event = published_in(line(fact.body, fact.time_ms)) if fact.copies else None
        if event is not None:
            found.append(event)
    evidence = Evidence(consumers=desk.feed.consumers, published=found, at=datetime.now(UTC))
    desk.feed.report = judge(evidence)
    desk.feed.audited_at = time.time()


def paths(desk: Desk) -> list[str]:
    """Return the addresses to ask for: each view, and searches that find little or nothing."""
    index = desk.feed.index
    names = [name for name in index.rides if name != "order_busy"]
    ride = names[-2]
    poison = f"order_{int(ride.removeprefix('order_')) // _POISON_EVERY * _POISON_EVERY}"
    return [
        "/",
        f"/ride/{ride}",
        f"/ride/{poison if poison in index.rides else ride}",
        "/ride/order_busy",
        f"/event/{index.rides[ride][0]}",
        "/letters",
        "/ledger",
        "/nope",
        "/find?q=car_007",
        "/find?q=customer_7*",
    ]


def timed(desk: Desk, path: str) -> Timed:
    """Return the median time of a page."""
    took = []
    size = 0
    for _ in range(TIMES):
        began = time.perf_counter()
        answer = get(desk, path)
        took.append((time.perf_counter() - began) * 1000)
        size = len(answer.text)
    return Timed(path, median(took), size)


def measure(count: int) -> list[Timed]:
    """Return the times of all pages over so many events."""
    with mock_aws():
        desk = desk_of(hostile_stack((), "replay"))
        fill(desk.feed.index, count, time.time() * 1000)
        judged(desk)
        desk.feed._count_queues()  # noqa: SLF001 - as the thread does that this feed has not started
        return [timed(desk, path) for path in paths(desk)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, and return 1 if a page misses its goal."""
    parser = argparse.ArgumentParser(prog="python -m ops.tests.desk_bench", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=SIZES)
    asked = parser.parse_args(arguments)
    missed = 0
    print(_INCLUDED)
    for count in asked.events:
        goal = GOALS_MS.get(count)
        about = "" if goal is None else f", goal {goal:.0f} ms"
        print(f"{count:,} events{about}")
        for each in measure(count):
            is_late = goal is not None and each.milliseconds > goal
            missed += is_late
            mark = "  over the goal" if is_late else ""
            print(f"  {each.path:<45}{each.milliseconds:8.1f} ms{each.size / 1024:8.0f} KB{mark}")
    return 1 if missed else 0


if __name__ == "__main__":
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    sys.exit(main())
