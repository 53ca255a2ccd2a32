"""Says what a record means, and what the next delivery of its key does."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from carride_idempotency.clock import to_ms
from carride_idempotency.keys import LETTER, downstream_key
from carride_idempotency.operators.choosing import consumer_of, is_of_a_call
from carride_idempotency.policy import LONGEST_LEASE_MS
from carride_idempotency.protocol.decision import has_crashed, is_corrupt, is_forgotten
from carride_idempotency.record import COMPLETED, IN_PROGRESS, QUARANTINED, Record, unknown_calls

_LONGEST_LEFT_MS: Final = LONGEST_LEASE_MS + 60_000
"""The most that can be left of a lease. The minute is for a consumer's clock that is ahead."""


class Explained(NamedTuple):
    """A record, and what it means. Fields that are not explained here are those of `Record`."""

    key: str
    status: str
    says: str
    """What happened under the key, and what its next delivery will do."""
    attempt: int
    owner: str | None
    delivery: str | None
    created: datetime | None
    held: bool
    """Whether an attempt may be running."""


def explain(record: Record, now: datetime, attempts: Mapping[str, int]) -> Explained:
    """Return a record with its meaning at a time.

    ``attempts`` has the ``max_attempts`` of each consumer whose policy is known.
    """
    held = is_held(record, to_ms(now))
    max_attempts = attempts.get(consumer_of(record.key))
    return Explained(
        key=record.key,
        status=str(record.status),
        says=_says_held(record) if held else _says(record, to_ms(now), max_attempts),
        attempt=record.attempt,
        owner=record.owner,
        delivery=record.delivery,
        created=_moment(record.created_ms),
        held=held,
    )


def is_held(record: Record, now_ms: int) -> bool:
    """Return whether an attempt may be running, until a minute after its lease: clocks differ.

    A lease that ends later than any lease can was written by a wrong clock, and does not count.
    """
    if record.status != IN_PROGRESS or record.lease_ms is None or has_crashed(record, now_ms):
        return False
    return record.lease_ms <= now_ms + _LONGEST_LEFT_MS


def sent_keys(record: Record) -> dict[str, str]:
    """Return the key that each external call of unknown outcome has sent, by the call's name.

    An operator looks for it in the other system.
    """
    return {name: downstream_key(record.key, name) for name in unknown_calls(record)}


def how_to_run_again(record: Record) -> str:
    """Return what an operator does so that a key that was freed runs again."""
    if is_of_a_call(record.key):
        letter = ", and delete its dead letter" if record.dead_lettered else ""
        return f"call it again{letter}"
    return "redrive its dead letter, or send its event again"


def next_one(record: Record) -> str:
    """Return what uses a key next: a call, or a delivery."""
    return "the next call" if is_of_a_call(record.key) else "the next delivery"


def _says_held(record: Record) -> str:
    """Return the meaning of a record whose key an attempt may hold."""
    since = text_of(record.updated_ms)
    until = text_of(record.lease_ms)
    running = f"attempt {record.attempt} has been running since {since}"
    return (
        f"{running} under owner token {record.owner}; no other delivery runs before its lease ends "
        f"at {until}"
    )


def _says(record: Record, now_ms: int, max_attempts: int | None) -> str:
    """Return the meaning of a record that no attempt holds."""
    if is_corrupt(record):
        return (
            "the record is corrupt: deliveries of this key are dead-lettered until you release it"
        )
    if record.status == IN_PROGRESS:
        return _says_crashed(record, now_ms, max_attempts)
    if LETTER in record.key:
        return _says_lettered(record)
    if is_forgotten(record, now_ms):
        ended = f"{record.status} at {text_of(record.updated_ms)}, and its window has ended"
        return f"{ended}: {next_one(record)} runs as attempt 1"
    if record.status == QUARANTINED:
        return _says_quarantined(record)
    if record.status == COMPLETED:
        return _says_completed(record)
    return _says_failed(record, max_attempts)


def _says_quarantined(record: Record) -> str:
    time = text_of(record.updated_ms)
    why = record.error or "its outcome is unknown"
    runs = "delivery"
    if is_of_a_call(record.key):
        runs = "call"
    way_out = _way_out(record)
    then = _after_quarantine(record)
    given_up = f"given up at {time} after attempt {record.attempt} ({why})"
    return f"{given_up}; no {runs} runs until you {way_out}; {then}"


def _way_out(record: Record) -> str:
    """Return what an operator does about a quarantined key."""
    sent = sent_keys(record)
    if not sent:
        return "release it"
    name, key = next(iter(sent.items()))
    return f"settle {name}, which has sent the downstream key {key}"


def _after_quarantine(record: Record) -> str:
    """Return where the event of a quarantined key is, or when its record expires."""
    if record.expiry is not None:
        return f"it expires at {text_of(record.expiry * 1000)}"
    if is_of_a_call(record.key):
        return "until then its callers get an error"
    if record.dead_lettered:
        return "its event was sent to the dead-letter queue"
    return (
        "the next delivery puts its event into the dead-letter queue, or raises if its consumer "
        "has none"
    )


def _says_crashed(record: Record, now_ms: int, max_attempts: int | None) -> str:
    attempt = f"attempt {record.attempt}"
    then = _next_run(record, max_attempts)
    if record.lease_ms is not None and record.lease_ms > now_ms:
        return f"{attempt} has a lease that is longer than any can be, so it does not count; {then}"
    ended = text_of(record.lease_ms)
    return f"{attempt} crashed: its lease ended at {ended} without an answer; {then}"


def _says_lettered(record: Record) -> str:
    """Return the meaning of the mark of a dead letter."""
    sent = f"an event that breaks the contract was dead-lettered at {text_of(record.updated_ms)}"
    end = text_of(None if record.expiry is None else record.expiry * 1000)
    return f"{sent}; until {end} a replay of it sends no second letter"


def _says_completed(record: Record) -> str:
    when = text_of(record.updated_ms)
    done = f"attempt {record.attempt} committed at {when}"
    duplicates = "further deliveries are answered as duplicates"
    if is_of_a_call(record.key):
        duplicates = "further calls get its result"
    if record.expiry is None:
        return f"{done}; {duplicates}, and the record does not expire"
    end = text_of(record.expiry * 1000)
    return f"{done}; {duplicates} until {end}"


def _says_failed(record: Record, max_attempts: int | None) -> str:
    updated = text_of(record.updated_ms)
    then = _next_run(record, max_attempts)
    if record.retry_ms is not None:
        then += f", but not before {text_of(record.retry_ms)}"
    if not record.attempt:
        return f"released at {updated}; {then}"
    return f"attempt {record.attempt} failed at {updated} ({record.error}); {then}"


def _next_run(record: Record, max_attempts: int | None) -> str:
    """Return what the next delivery of a key that may run again does."""
    runs = f"{next_one(record)} runs as attempt {record.attempt + 1}"
    if max_attempts is None:
        return runs if not record.attempt else f"{runs}, if its policy allows as many"
    if record.attempt >= max_attempts:
        used_up = f"all {max_attempts:,} attempts are used up"
        return f"{used_up}, so {next_one(record)} quarantines the key"
    return runs


def _moment(ms: int) -> datetime | None:
    """Return a time; None if it is outside the calendar, as in a damaged record."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def text_of(ms: int | None) -> str:
    """Return a time in words."""
    time = None if ms is None else _moment(ms)
    return "an unknown time" if time is None else f"{time:%Y-%m-%d %H:%M:%S UTC}"
