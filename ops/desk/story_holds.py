"""What holds a ride, by the events that the desk has read and by the consumers' records. No I/O."""

import shlex
from collections.abc import Iterator
from typing import Final

from carride_idempotency import observation
from carride_idempotency.record import FAILED, IN_PROGRESS, QUARANTINED, Record
from ops.dead_letters import redrive_command
from ops.desk.deliveries import Delivered
from ops.desk.facts import LOST, WAITING
from ops.desk.story_known import Known
from ops.holds import Hold, Kind, by_audit, in_order, without_letter

_LATE_MS: Final = 30_000.0
"""A delivery without an outcome for so long is worth a line."""
_RUNS_LONG_MS: Final = 5_000.0


def holds_of(known: Known) -> tuple[Hold, ...]:
    """Return what holds a ride; nothing if all is well."""
    found = [*by_audit(known.problems, known.overdue)]
    for each in known.deliveries:
        found += _holds_at(known, each)
    return in_order(found)


def _holds_at(known: Known, each: Delivered) -> Iterator[Hold]:
    """Yield what holds an event at a consumer, if anything does."""
    hold = Hold(
        Kind.WAITING,
        consumer=each.consumer,
        event_id=each.fact.id,
        type=each.fact.type or "",
        since_ms=float(each.fact.time_ms),
        command=shlex.join(["./carride", "event", each.fact.id]),
    )
    record = known.record(each)
    if each.has_letter:
        yield _given_up(known, hold, each, record)
    elif each.outcome == LOST:
        yield hold._replace(kind=Kind.LOST)
    elif each.outcome in observation.COMMITTED:
        return
    elif record is not None and record.status in (FAILED, IN_PROGRESS):
        yield from _unfinished(known, hold, each, record)
    elif record is not None and record.status == QUARANTINED:
        hold = hold._replace(since_ms=float(record.updated_ms))
        yield without_letter(hold, record.attempt, _error(each, record))
    elif each.outcome == WAITING and known.now_ms - each.fact.time_ms >= _LATE_MS:
        yield hold


def _given_up(known: Known, hold: Hold, each: Delivered, record: Record | None) -> Hold:
    key = f"{each.consumer}#{each.fact.id}"
    queue = str(each.letter_queue)
    is_quarantined = record is not None and record.status == QUARANTINED
    redriven = 0
    if each.redrives is not None and known.has_failed_again(each):
        redriven = each.redrives.times
    return hold._replace(
        kind=Kind.GIVEN_UP,
        since_ms=_ended_ms(each),
        error=_error(each, record),
        attempts=0 if record is None else record.attempt,
        letters=each.letters,
        queue=queue,
        redriven=redriven,
        command=redrive_command(queue, "key", key, releases=is_quarantined),
    )


def _unfinished(known: Known, hold: Hold, each: Delivered, record: Record) -> Iterator[Hold]:
    """Yield what an attempt that has failed, crashed or runs for long holds."""
    lease_ms = record.lease_ms
    hold = hold._replace(since_ms=float(record.updated_ms), attempts=record.attempt)
    if record.status == FAILED:
        yield hold._replace(
            kind=Kind.RETRYING, error=_error(each, record), due_ms=each.retry_due_ms, command=""
        )
    elif lease_ms is not None and lease_ms < known.now_ms:
        yield hold._replace(kind=Kind.CRASHED, due_ms=float(lease_ms), command="")
    elif known.now_ms - record.updated_ms >= _RUNS_LONG_MS:
        due_ms = None if lease_ms is None else float(lease_ms)
        yield hold._replace(kind=Kind.RUNNING, due_ms=due_ms, command="")


def _ended_ms(each: Delivered) -> float:
    """Return when the last run ended."""
    ended = [run.ended_ms for run in each.counting]
    return float(max(ended, default=each.fact.time_ms))


def _error(each: Delivered, record: Record | None) -> str:
    """Return the newest error of a delivery."""
    if record is not None and record.error:
        return record.error
    reasons = [run.reason for run in each.counting if run.reason]
    letter = each.fact.letters.get(each.consumer)
    if reasons:
        return reasons[-1]
    return letter.reason if letter is not None else ""
