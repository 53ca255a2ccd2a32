"""Publishes simulated rides directly to the bus, in as many calls as it takes.

A call publishes what it has time for, and returns where the next call continues. The ids of events
are derived, so a repeated call only adds copies of known facts.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import batched, islice
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from carride.clients import events_client, sqs_client
from carride.decoding import FieldError, shaped
from carride.publisher import NEEDED_MS, Outcome, Publisher, Receipt
from carride.settings import from_environment
from carride.simulation_spec import Spec
from carride.telemetry import count, logger
from simulated_rides import Kind, SimulatedEntry, Simulation

if TYPE_CHECKING:
    from carride_idempotency import LambdaContext

CHUNK: Final = 100
"""The most entries that are published before the time is checked. With a rate, they are at most
those of a tenth of a second."""
NEEDED_FOR_A_CHUNK_MS: Final = NEEDED_MS + 5_000


class Settings(Struct, frozen=True):
    """The function's environment."""

    event_bus_name: str
    producer_dlq_url: str
    # The global endpoint to publish through, e.g. ``abcde.veo``; empty for this region's bus.
    event_endpoint_id: Annotated[str, Meta(pattern=r"^$|^[A-Za-z0-9-]+\.[A-Za-z0-9-]+$")] = ""
    # The stack's id, which `Resources` of its entries name as the producer.
    event_producer: str = ""


class SimulationRequest(Spec, frozen=True, kw_only=True):
    """What to simulate, and the part of it to publish."""

    offset: Annotated[int, Meta(ge=0)] = 0  # the index of the first entry
    # The largest number of entries to publish.
    limit: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    # The present of the simulation; by default the clock's.
    time: Annotated[datetime, Meta(tz=True)] | None = None


class _Tally:
    """Counts what became of a call's entries."""

    def __init__(self) -> None:
        self.counts = Counter(requested=0, published=0, distinct=0, deadLettered=0, rejected=0)
        self.reasons = Counter[str]()
        self.injected = Counter[str]()

    @property
    def requested(self) -> int:
        """The number of entries so far."""
        return self.counts["requested"]

    def add(self, simulated: SimulatedEntry, receipt: Receipt) -> None:
        """Count an entry."""
        self.counts["requested"] += 1
        if receipt.outcome is Outcome.PUBLISHED:
            self.counts["published"] += 1
            self.counts["distinct"] += simulated.kind is Kind.FACT
        else:
            self.counts["deadLettered"] += 1
            self.counts["rejected"] += not receipt.retryable
        if receipt.code is not None:
            self.reasons[receipt.code] += 1
        if simulated.injected is not None:
            self.injected[simulated.injected] += 1


def make_handler(
    settings: Settings,
    *,
    publisher: Publisher | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> "Callable[[dict[str, Any], LambdaContext], dict[str, Any]]":
    """Return the Lambda handler; its publisher has clients of its own by default.

    Raises:
        SettingsError: there is a global endpoint, and this process cannot sign the requests to it.
    """
    publisher = publisher or Publisher(
        events_client(),
        sqs_client(),
        settings.event_bus_name,
        settings.producer_dlq_url,
        endpoint_id=settings.event_endpoint_id or None,
        producer=settings.event_producer or None,
    )

    def handler(raw: dict[str, Any], context: "LambdaContext") -> dict[str, Any]:
        """Publish what a `SimulationRequest` asks for, or at least a chunk of it if time runs out.

        With a rate, no entry is published before it is due, counted from the start of the call.

        Returns:
            For an invalid request, ``error`` and the invalid ``field``. Otherwise counts of
            entries, and where the next call continues:

            - ``requested``: handled in this call;
            - ``published``: on the bus; ``distinct`` of them are facts, not copies;
            - ``deadLettered``: in the ProducerDlq; ``rejected`` of them because of a final refusal;
            - ``reasons``: refused, by code;
            - ``injected``: by what they test consumers with: ``copy``, ``malformed``, ``late``,
              ``crash``, ``fail``, ``poison`` or ``slow``;
            - ``total``: of the whole simulation;
            - ``resume``, ``time``: ``offset`` and ``time`` of the next call; ``resume`` is None at
              the end, and ``complete`` true.

        Raises:
            PublishError: entries reached neither the bus nor the queue. Repeat the request.
        """
        try:
            request = shaped(raw, SimulationRequest)
            present = request.time or now()
            simulation = Simulation(request, present)
        except FieldError as error:
            logger.warning("bad request", extra={"field": error.field, "problem": str(error)})
            return {"error": str(error), "field": error.field}

        began_s = monotonic()
        tally = _Tally()
        entries = islice(simulation.entries(request.offset), request.limit)
        for chunk in batched(entries, _chunk_size(request.rate), strict=False):
            wait_s = 0.0
            if request.rate is not None:
                due_s = began_s + tally.requested / request.rate
                wait_s = max(0.0, due_s - monotonic())
            left_ms = context.get_remaining_time_in_millis() - wait_s * 1000
            if tally.requested and left_ms < NEEDED_FOR_A_CHUNK_MS:
                break
            sleep(wait_s)
            receipts = publisher.publish(
                [one.entry for one in chunk], context.get_remaining_time_in_millis
            )
            for simulated, receipt in zip(chunk, receipts, strict=True):
                tally.add(simulated, receipt)
        return _summarised(tally, request, present, len(simulation))

    return handler


def _chunk_size(rate: float | None) -> int:
    """Return how many entries to publish before the time is checked."""
    if rate is None:
        return CHUNK
    tenth_of_a_second = int(rate / 10)
    return max(1, min(CHUNK, tenth_of_a_second))


def _summarised(
    tally: _Tally, request: SimulationRequest, present: datetime, total: int
) -> dict[str, Any]:
    """Return a call's answer, and log it.

    Nobody reads the answer to an asynchronous call, so the log warns if time ran out.
    """
    reached = request.offset + tally.requested
    complete = reached >= total
    ran_out_of_time = not complete and tally.requested != request.limit
    summary = {
        **tally.counts,
        "reasons": dict(tally.reasons),
        "injected": dict(tally.injected),
        "total": total,
        "resume": None if complete else reached,
        "complete": complete,
        "time": present.isoformat(),
    }
    count(
        "carride-simulator",
        {"Published": tally.counts["published"], "Rejected": tally.counts["deadLettered"]},
        "simulated",
        warns=ran_out_of_time,
        fields={"summary": summary},
    )
    return summary


handler = make_handler(from_environment(Settings))
