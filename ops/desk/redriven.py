"""What became of a dead letter that a redrive has taken out of its queue."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from carride_idempotency.record_items import record_of
from ops import records
from ops.desk.changes import TRIALS, Letter, letters_sent
from ops.desk.jobs import Job, Jobs, State
from ops.desk.letterbox import Found
from ops.desk.registry import Seen
from ops.desk.words import clip
from ops.stack import FAILURES, StackRef
from ops.text import counted


class Gone(NamedTuple):
    """A letter that a redrive was to send, and where to look now."""

    time_ms: float
    """When the redrive began."""
    says: str
    """How the redrive went; empty if nothing more is known."""
    now: str
    """What the record of its key says since then; empty if it says nothing new."""
    error: str
    """That of its last attempt; empty if that has not failed."""
    kind: str
    """The colour of that: none is green but what took effect."""
    what: str
    """Its event, and its ride; empty if neither is known."""
    fact: str
    """Idempotency id of its event; empty if it breaks the contract."""
    consumer: str
    plan: str
    job: str
    """Id of the job that ran the plan; empty if this desk did not run it."""
    again: str
    """Id of a letter with the same key that waits now; empty if there is none."""


def gone(desk: Seen, letter: str, waiting: tuple[Found, ...]) -> Gone | None:
    """Return what a redrive did with a letter, by its id; None if none of the newest sent it.

    ``waiting`` are the letters in the queues.
    """
    known = [*letters_sent(letter)]
    for job in _running(desk.jobs):
        known += _sent_by(job)
    found = [each for each in known if each.letter == letter]
    if not found:
        return None
    newest = max(found, key=lambda each: each.time_ms)
    key = newest.key
    consumer, _, fact = key.partition("#")
    record = _record_since(desk.feed.stack, newest)
    again = [each.letter for each in waiting if key and each.letter.key == key]
    return Gone(
        time_ms=newest.time_ms,
        says=newest.error or ("" if record else TRIALS.get(newest.trial, "")),
        now=now_of(record) if record else "",
        error=_error_in(record) if record else "",
        kind=_kind_of(newest, record),
        what=newest.what,
        fact=fact,
        consumer=consumer if fact else "",
        plan=newest.plan,
        job=next((each.id for each in _redrives(desk.jobs) if _did(each, newest)), ""),
        again=again[-1].id if again else "",
    )


def _record_since(stack: StackRef, sent: Letter) -> Record | None:
    """Return the record of a letter's key, if it was written after the redrive began."""
    if not sent.key:
        return None
    with suppress(*FAILURES):
        for record in map(record_of, records.items_at(stack, [sent.key])):
            if record.updated_ms >= int(sent.time_ms):
                return record
    return None


class Back(NamedTuple):
    """The letters of a key that wait now."""

    came: int
    """Those that have come since its redrive began."""
    before: int
    """Those that were there before, which it has not sent."""

    @property
    def says(self) -> str:
        """Whether the letters that were sent are back."""
        if self == (1, 0):
            return "its letter is back"
        stayed = f", beside {self.before:,} that stayed" if self.before else ""
        if not self.came:
            return f"no letter of it is back yet{stayed}"
        verb = "is" if self.came == 1 else "are"
        return f"{counted(self.came, 'letter')} of it {verb} back{stayed}"


_ONE_BACK: Final = Back(1, 0)


def now_of(record: Record, back: Back | None = _ONE_BACK) -> str:
    """Return what the record of a key says that was redriven.

    ``back`` are its letters; None if nobody could read them.
    """
    if record.status == FAILED and not record.attempt:
        return "its key is released, and no attempt has begun yet"
    attempts = counted(record.attempt, "attempt")
    says = _NOW.get(record.status, record.status).format(attempts)
    if record.status == QUARANTINED and back is not None:
        return f"{back.says}, and {says}"
    return says


_NOW: Final[Mapping[str, str]] = {
    COMPLETED: "it took effect",
    FAILED: "{} failed so far, the next one comes by itself",
    QUARANTINED: "its key is quarantined again, after {}",
    IN_PROGRESS: "{} so far, one runs",
}


def _error_in(record: Record) -> str:
    """Return why the last attempt of a key has failed; empty if none has."""
    has_failed = record.status in (FAILED, QUARANTINED) and record.attempt
    return clip(record.error or "") if has_failed else ""


def _kind_of(sent: Letter, record: Record | None) -> str:
    if record is not None:
        return _KINDS_OF_RECORDS.get(record.status, "pub")
    return "pub" if sent.error else _KINDS.get(sent.trial, "dup")


_KINDS: Final = {"succeeded": "new", "failed": "fail"}
"""The colours of trials whose outcome is known."""
_KINDS_OF_RECORDS: Final = {COMPLETED: "new", QUARANTINED: "fail"}
"""The colours of records that do not change any more by themselves."""


def sending(jobs: Jobs, letter: str) -> Job | None:
    """Return the running job that is to send a letter; None if none does."""
    for job in _running(jobs):
        if any(each.letter == letter for each in _sent_by(job)):
            return job
    return None


def ids_like(jobs: Jobs, text: str) -> list[str]:
    """Return ids of letters that redrives were to send, those that a text may mean among them."""
    begin, _, _ = text.partition("…")
    found = {each.letter for each in letters_sent(begin.rstrip("*"))}
    for job in _running(jobs):
        found |= {each.letter for each in _sent_by(job)}
    return [*found]


def _redrives(jobs: Jobs) -> Iterator[Job]:
    """Yield the redrives that were confirmed, the newest first."""
    for job in jobs.newest():
        if job.verb == "redrive" and job.confirmed and isinstance(job.previewed, Mapping):
            yield job


def _running(jobs: Jobs) -> Iterator[Job]:
    """Yield the redrives that run.

    One that has ended is in the log if it did anything: a refused one is not.
    """
    for job in _redrives(jobs):
        if job.status is None:
            yield job


def _did(job: Job, sent: Letter) -> bool:
    """Return whether a job is the redrive of a letter.

    The same plan may have been carried out by a command before, which is why the job was refused.
    """
    is_refused = job.state is State.REFUSED and not sent.error
    return job.plan == sent.plan and job.began * 1000 <= sent.time_ms and not is_refused


def _sent_by(job: Job) -> Iterator[Letter]:
    """Yield the letters that a running job is to send: the log has them only when it has ended."""
    for each in job.previewed.get("letters", ()):
        letter = each["letter"]
        kind = letter.get("type")
        if each["verdict"]["goes"]:
            yield Letter(
                letter=str(letter["id"]),
                time_ms=job.began * 1000,
                plan=job.plan,
                key=str(letter.get("key") or ""),
                what=clip(f"{kind} of {letter.get('ride')}") if kind else "",
                trial="",
                error="it runs",
            )
