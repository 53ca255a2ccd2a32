"""Print how many requests publishing takes, and what it costs beside botocore."""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pytest
from botocore.httpsession import URLLib3Session

from carride.clients import events_client, sqs_client
from carride.entry import MOST_ENTRIES, TOO_LARGE, Entry
from carride.events import RideEvent, parse_event
from carride.publisher import Outcome, Publisher
from carride.simulation import Simulation, Spec
from local.command import positive
from tests.idempotency.bench.measures import ROOT
from tests.idempotency.differential.world import ACCOUNT, answer

REPORT: Final = ROOT / ".bench/publishing.json"
MOST_OUTSIDE: Final = 0.15
"""Share of the CPU time that may be spent outside botocore."""
_PRESENT: Final = datetime(2026, 11, 21, tzinfo=UTC)


class Measured(NamedTuple):
    """What publishing so many events has taken; times are of CPU, in milliseconds."""

    events: int
    requests: int
    least: int
    """The fewest requests that PutEvents' limits of entries and bytes allow."""
    total_ms: float
    outside_ms: float
    """Outside botocore: from the events to their receipts."""

    @property
    def outside(self) -> float:
        """The share of what was outside botocore."""
        return self.outside_ms / self.total_ms

    @property
    def met(self) -> bool:
        """Whether both targets are met."""
        return self.requests == self.least and self.outside <= MOST_OUTSIDE


def measure(events: Sequence[RideEvent], repetitions: int) -> Measured:
    """Publish the events as often, each time through a botocore client of its own, over canned answers.

    Raises:
        RuntimeError: an event was not published, so that the numbers would mean nothing.
    """
    totals, outsides = [], []
    requests = least = 0
    with Answers() as answers:
        for _ in range(repetitions + 1):
            client = Watched(events_client())
            publisher = Publisher(client, sqs_client(), "bus", "https://sqs.us-east-1.amazonaws.com/0/dlq")  # type: ignore[arg-type] # has the one operation that is used
            publisher.publish([Entry.of(events[0])], lambda: 900_000)  # signs once, so that everything is loaded
            answers.requests, client.ms = 0, 0.0
            gc.collect()
            before = time.process_time()
            entries = [Entry.of(event) for event in events]
            receipts = publisher.publish(entries, lambda: 900_000)
            total_ms = (time.process_time() - before) * 1000
            if {receipt.outcome for receipt in receipts} != {Outcome.PUBLISHED}:
                raise RuntimeError(f"not every event was published: {receipts[0]}")
            totals.append(total_ms)
            outsides.append(total_ms - client.ms)
            requests = answers.requests
            least = max(-(-len(entries) // MOST_ENTRIES), -(-sum(entry.size for entry in entries) // (TOO_LARGE - 1)))
    return Measured(len(events), requests, least, statistics.median(totals[1:]), statistics.median(outsides[1:]))


def simulated(number: int) -> list[RideEvent]:
    """Return this number of events of simulated rides."""
    spec = Spec(rides=max(1, number // 2), seed=1)  # of three events at the least
    entries = Simulation(spec, _PRESENT).entries()
    return [parse_event({"detail": json.loads(next(entries).entry.detail)}) for _ in range(number)]


class Watched:
    """A client of EventBridge whose calls are timed."""

    def __init__(self, client: Any) -> None:
        self._call: Callable[..., Any] = client.put_events
        self.ms = 0.0

    def put_events(self, **request: Any) -> Any:
        """Put entries on the bus."""
        before = time.process_time()
        try:
            return self._call(**request)
        finally:
            self.ms += (time.process_time() - before) * 1000


class Answers:
    """While it is entered: answers PutEvents below botocore in place of the network, and counts the requests."""

    def __init__(self) -> None:
        self.requests = 0
        entries = [{"EventId": f"00000000-0000-4000-8000-{n:012d}"} for n in range(MOST_ENTRIES)]
        self._bodies = [
            json.dumps({"FailedEntryCount": 0, "Entries": entries[:count]}).encode()
            for count in range(MOST_ENTRIES + 1)
        ]

    def _send(self, request: Any) -> Any:
        """Accept every entry of one request."""
        self.requests += 1
        return answer(request.url, 200, self._bodies[request.body.count(b'"DetailType"')])

    def __enter__(self) -> "Answers":
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(URLLib3Session, "send", self._send)
        for name, value in ACCOUNT.items():
            self._patch.setenv(name, value)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def main() -> int:
    """Measure, print, and keep the numbers."""
    parser = argparse.ArgumentParser(
        prog="make bench-publish",
        description="Publishes simulated events straight to a bus and counts requests and CPU time, from the events to "
        "their receipts. botocore is as it is, over canned answers; nothing leaves this machine. The status is 1 if "
        "there are more requests than PutEvents' limits make necessary, or if more than 15 % of the CPU time is spent "
        "outside botocore.",
        epilog="example: make bench-publish ARGS=--json. The numbers are kept in .bench/publishing.json",
    )
    parser.add_argument("--events", type=positive, default=10_000, metavar="N", help="how many events (10,000)")
    parser.add_argument("--repetitions", type=positive, default=5, metavar="N", help="how often they are published (5)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON, for machines")
    arguments = parser.parse_args()

    measured = measure(simulated(arguments.events), arguments.repetitions)
    report = json.dumps({**measured._asdict(), "outside": measured.outside, "met": measured.met}, indent=2)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report + "\n", encoding="utf-8")
    print(report if arguments.json else text(measured))
    return 0 if measured.met else 1


def text(measured: Measured) -> str:
    """Return the numbers for people."""
    each_us = measured.outside_ms / measured.events * 1000
    return (
        f"events                 {measured.events:>10,}\n"
        f"requests               {measured.requests:>10,}   the fewest are {measured.least:,}"
        f"{'' if measured.requests == measured.least else '   ◀ missed'}\n"
        f"CPU                    {measured.total_ms:>7,.0f} ms\n"
        f"  outside botocore     {measured.outside:>10.1%}   ≤ {MOST_OUTSIDE:.0%}, {each_us:.0f} µs an event"
        f"{'' if measured.outside <= MOST_OUTSIDE else '   ◀ missed'}"
    )


if __name__ == "__main__":
    sys.exit(main())
