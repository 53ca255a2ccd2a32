"""Publishes simulated rides straight to the bus, in as many calls as it takes.

A call publishes what it has time for and says where the next one is to go on. Ids of events are derived, so that a call
that is made again, or a simulation, adds copies of known facts and nothing else.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import batched, islice
from typing import Annotated, Any, Final, Protocol

from msgspec import Meta, Struct

from carride.clients import events_client, sqs_client
from carride.decoding import ShapeError, shaped
from carride.publisher import NEEDED_MS, Outcome, Publisher
from carride.settings import from_environment
from carride.simulation import Kind, Simulation, Spec, SpecError
from carride.telemetry import count, logger

CHUNK: Final = 100
"""How many entries are published between two looks at the clock; fewer where a rate spreads them."""
_CHUNKS_A_SECOND: Final = 10

NEEDED_FOR_A_CHUNK_MS: Final = NEEDED_MS + 5_000


class Settings(Struct, frozen=True):
    """The function's environment."""

    event_bus_name: str
    producer_dlq_url: str
    event_endpoint_id: Annotated[str, Meta(pattern=r"^$|^[A-Za-z0-9-]+\.[A-Za-z0-9-]+$")] = ""
    """Of the global endpoint to publish through, as in ``abcde.veo``; empty, to publish to this region's bus."""


class Request(Spec, frozen=True, kw_only=True):
    """What to simulate, and which part of it to publish."""

    offset: Annotated[int, Meta(ge=0)] = 0
    """The entry to begin with."""
    limit: Annotated[int, Meta(ge=1)] | None = None
    """How many entries to publish at most."""
    time: Annotated[datetime, Meta(tz=True)] | None = None
    """The present of the simulation; left out, the clock's."""


class LambdaContext(Protocol):
    """The part of Lambda's context object that is used here."""

    def get_remaining_time_in_millis(self) -> int:
        """Return how much time is left before the invocation is stopped."""
        ...


type Handler = Callable[[dict[str, Any], LambdaContext], dict[str, Any]]


def make_handler(
    settings: Settings,
    *,
    publisher: Publisher | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Handler:
    """Return the Lambda handler.

    Args:
        settings: the function's environment.
        publisher: left out, one with clients of its own.
        now: the present, with a time zone.
        monotonic: seconds from any moment on, by which a rate is kept.
        sleep: waits, in seconds.

    Raises:
        SettingsError: there is a global endpoint, and this process cannot sign what is sent to it.
    """
    publisher = publisher or Publisher(
        events_client(),
        sqs_client(),
        settings.event_bus_name,
        settings.producer_dlq_url,
        endpoint_id=settings.event_endpoint_id or None,
    )

    def handler(raw: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        """Publish a simulation, or as much of it as there is time for; at least one chunk.

        With a rate, entries are published no sooner than they are due from the beginning of the call on; a call that
        fell behind catches up.

        Args:
            raw: a `Request` as JSON; every field has a default.
            context: says how much time is left.

        Returns:
            Counts of entries: ``requested`` (handled in this call), ``published`` (on the bus), ``distinct`` (facts
            among them that were not published before in this simulation), ``deadLettered`` (in the ProducerDlq),
            ``rejected`` (those of them that the bus refused for good) and ``reasons`` (all of them by code);
            ``total``, of the whole simulation; ``resume``, the offset to go on with, or None at the end; ``complete``,
            whether this is the end; ``time``, to go on with likewise. For a request that cannot be: ``error`` and the
            ``field`` at fault.

        Raises:
            PublishError: entries reached neither the bus nor the queue; the same request can be made again.
        """
        try:
            request = shaped(raw, Request)
            present = request.time or now()
            simulation = Simulation(request, present)
        except (ShapeError, SpecError) as error:
            logger.warning("bad request", extra={"field": error.field, "problem": str(error)})
            return {"error": str(error), "field": error.field}

        counts: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        began = monotonic()
        entries = islice(simulation.entries(request.offset), request.limit)
        for chunk in batched(entries, _chunk(request.rate), strict=False):
            wait_s = 0.0
            if request.rate is not None:
                wait_s = max(0.0, began + counts["requested"] / request.rate - monotonic())
            left_ms = context.get_remaining_time_in_millis() - wait_s * 1000
            if counts["requested"] and left_ms < NEEDED_FOR_A_CHUNK_MS:
                break
            if wait_s:
                sleep(wait_s)
            receipts = publisher.publish([one.entry for one in chunk], context.get_remaining_time_in_millis)
            for simulated, receipt in zip(chunk, receipts, strict=True):
                published = receipt.outcome is Outcome.PUBLISHED
                counts["requested"] += 1
                counts["published"] += published
                counts["distinct"] += published and simulated.kind is Kind.FACT
                counts["deadLettered"] += not published
                counts["rejected"] += not published and not receipt.retryable
                if receipt.code is not None:
                    reasons[receipt.code] += 1

        reached = request.offset + counts["requested"]
        summary = {
            **{name: counts[name] for name in ("requested", "published", "distinct", "deadLettered", "rejected")},
            "reasons": dict(reasons),
            "total": len(simulation),
            "resume": reached if reached < len(simulation) else None,
            "complete": reached >= len(simulation),
            "time": present.isoformat(),
        }
        # Nobody reads the summary of an asynchronous call: where time ran out, the log is what tells.
        out_of_time = not summary["complete"] and counts["requested"] != request.limit
        (logger.warning if out_of_time else logger.info)("simulated", extra={"summary": summary})
        count("carride-simulator", Published=counts["published"], Rejected=counts["deadLettered"])
        return summary

    return handler


def _chunk(rate: float | None) -> int:
    """Return how many entries are published at a time."""
    return CHUNK if rate is None else max(1, min(CHUNK, int(rate / _CHUNKS_A_SECOND)))


handler = make_handler(from_environment(Settings))
