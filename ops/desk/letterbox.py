"""Reads dead letters for the pages, in so short a time that no other reader misses them."""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final, NamedTuple

from carride_idempotency.operators.choosing import normalised
from carride_idempotency.operators.site import Verdict
from carride_idempotency.record import COMPLETED, QUARANTINED, Record
from ops import verdicts
from ops.audit.queues import GLANCE_HIDDEN_S, GLANCE_READS_S, waiting
from ops.dead_letters import DeadLetter, copies_in, counts_of, queues_of, received_from, url_of
from ops.desk.advice import is_released
from ops.desk.facts import BUS
from ops.prediction import Predictor
from ops.stack import StackRef

MOST: Final = 500
"""The most letters of a queue that are read."""
_LARGEST: Final = 20_000_000
"""The most characters of all letters of a queue."""
_KEPT_S: Final = 30.0
"""How long a reading is shown before a page reads again."""
_AT_ONCE: Final = 10
_READERS: Final = 8


class Found(NamedTuple):
    """A letter, and what a redrive would do with it."""

    letter: DeadLetter
    record: Record | None
    verdict: Verdict
    """If its key may be released."""

    @property
    def title(self) -> str:
        """Why the letter waits, in words: not that its key is quarantined once it is released."""
        if self.letter.reason == QUARANTINED and is_released(self.record):
            return "Key released"
        return title_of(self.letter.reason)

    @property
    def event_id(self) -> str | None:
        """The id under which the desk knows its event; None if the letter names none."""
        if self.letter.fact is not None:
            return self.letter.fact
        event = self.letter.event
        known = event.get("id") if isinstance(event, Mapping) else None
        return known if isinstance(known, str) else None


class Reading(NamedTuple):
    """What was read of all dead-letter queues."""

    at_ms: float
    """When it began."""
    found: tuple[Found, ...]
    """The oldest letter of each queue first."""
    counts: Mapping[str, int]
    """All letters of each queue that has any."""
    hidden: Mapping[str, int]
    """Letters that another reader hid from this one, by queue."""

    @property
    def left_out(self) -> int:
        """How many letters were not read: too many, or hidden by another reader."""
        return max(0, sum(self.counts.values()) - len(self.found))


class Letterbox:
    """The newest reading of a stack's dead letters."""

    def __init__(self, stack: StackRef) -> None:
        self._stack = stack
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._given: Mapping[str, int] = {}
        """The counts with which the newest reading was asked for."""
        self._predictors: dict[str, Predictor | None] = {}

    def read(
        self, counts: Mapping[str, int], *, again: bool = False, since_ms: float = 0
    ) -> Reading:
        """Return the newest reading, or read again if it is old or the queues have changed.

        ``counts`` are the messages of each queue, as they were last counted. No reading is returned
        that began before ``since_ms``, when somebody changed the queues.
        """
        given = {name: counts[name] for name in queues_of(self._stack) if counts.get(name)}
        if not counts:
            given = self._count()
        oldest_ms = max(since_ms, time.time() * 1000 - _KEPT_S * 1000)
        with self._lock:
            reading = self._reading
            is_young = reading is not None and reading.at_ms > oldest_ms
            if reading is None or again or not is_young or self._given != given:
                # What was counted last may be from before a redrive.
                reading = self._reading = self._read(self._count())
                self._given = given
        return reading

    def _count(self) -> dict[str, int]:
        """Return how many letters each queue has that has any."""
        return {name: count for name, count in counts_of(self._stack).items() if count}

    def _read(self, counts: Mapping[str, int]) -> Reading:
        began_ms = time.time() * 1000
        sqs = self._stack.client("sqs")
        hidden = {name: waiting(sqs, url_of(self._stack, name)) for name in counts}
        with ThreadPoolExecutor(_READERS) as readers:
            read = readers.map(lambda name: list(self._queue(name)), counts)
            found = [letter for letters in read for letter in letters]
        return Reading(
            began_ms,
            tuple(found),
            counts,
            {name: count for name, count in hidden.items() if count},
        )

    def _queue(self, name: str) -> Iterator[Found]:
        """Yield the letters of a queue, up to the limits of time, number and size."""
        predictor = self._predictor(name)
        letters = received_from(
            self._stack, name, at_once=_AT_ONCE, hidden_s=GLANCE_HIDDEN_S, reads_s=GLANCE_READS_S
        )
        read = 0
        size = 0
        with closing(letters):
            for letter, record, _ in letters:
                yield Found(letter, record, verdicts.verdict_if_released(letter, record, predictor))
                read += 1
                size += len(str(letter.event))
                if read >= MOST or size >= _LARGEST:
                    return

    def _predictor(self, queue: str) -> Predictor | None:
        if queue not in self._predictors:
            self._predictors[queue] = verdicts.predictor_of(self._stack, queue)
        return self._predictors[queue]


class Group(NamedTuple):
    """Letters of one queue with the same failure."""

    id: str
    title: str
    where: str
    error: str
    """True of all letters: a word that differs is `…`."""
    goes: int
    """How many of them a redrive sends."""
    letters: tuple[Found, ...]
    """The newest first."""
    copies: int
    """How many of them are copies of another one: they have its key."""

    @property
    def newest(self) -> Found:
        """The letter that came last."""
        return self.letters[0]

    @property
    def oldest(self) -> Found:
        """The letter that came first."""
        return self.letters[-1]


_TITLES: Final[Mapping[str, str]] = {
    "QUARANTINED": "Failed at every attempt",
    "CONTRACT": "Breaks the contract",
    "PAYLOAD_MISMATCH": "Same id, other payload",
    "BEYOND_WINDOW": "Older than the window",
    "UNREADABLE": "Unreadable",
}
"""The words for the reasons that this project gives."""
_humps: Final = re.compile(r"(?<=[a-z])(?=[A-Z])").sub


def title_of(reason: str) -> str:
    """Return a reason in words: ``Malformed detail`` for MalformedDetail."""
    if reason in _TITLES:
        return _TITLES[reason]
    return _humps(" ", reason).replace("_", " ").capitalize()


def reason_text(reason: str) -> str:
    """Return a delivery's reason, in words if it is one of the codes that letters have."""
    return title_of(reason).lower() if reason.isupper() else reason


def groups_in(found: Sequence[Found]) -> list[Group]:
    """Return letters by failure: those that can be redriven first, the newest failure first."""
    by_id: dict[str, list[Found]] = {}
    for each in found:
        by_id.setdefault(each.letter.group, []).append(each)
    groups = list(map(_group, by_id.values()))
    groups.sort(key=_newest, reverse=True)
    groups.sort(key=lambda group: not group.goes)
    return groups


def _group(letters: Iterable[Found]) -> Group:
    in_order = sorted(letters, key=lambda each: each.letter.sent)
    first = in_order[0].letter
    where = f"in {first.queue}"
    if first.consumer:
        where = f"at {first.consumer}"
    titles = {each.title for each in in_order}
    title = titles.pop() if len(titles) == 1 else title_of(first.reason)
    goes = sum(each.verdict.goes for each in in_order)
    error = _shared([each.letter.error for each in in_order])
    copies = copies_in(each.letter.key for each in in_order)
    return Group(first.group, title, where, error, goes, tuple(reversed(in_order)), copies)


def _shared(errors: Sequence[str]) -> str:
    """Return one text for errors that differ only in ids and numbers."""
    if len(set(errors)) == 1:
        return errors[0]
    split = [each.split() for each in errors]
    if len({len(words) for words in split}) > 1:
        return normalised(errors[0])
    return " ".join(each[0] if len(set(each)) == 1 else "…" for each in zip(*split, strict=True))


def _newest(group: Group) -> float:
    return group.newest.letter.sent.timestamp()


def at_consumer(found: Iterable[Found], name: str) -> list[Found]:
    """Return the letters in the queues of a consumer, or of no consumer by the name `BUS`."""
    wanted = None if name == BUS else name
    return [each for each in found if each.letter.consumer == wanted]


def without_effect(found: Iterable[Found]) -> list[Found]:
    """Return the letters of events that keep the contract, and have no effect."""
    kept = [each for each in found if each.letter.fact is not None]
    return [each for each in kept if each.record is None or each.record.status != COMPLETED]


def chosen_in(found: Sequence[Found], wanted: Mapping[str, Any]) -> Found | None:
    """Return the letter that is asked for, by its own id, or by its event's and a consumer."""
    for each in found:
        if wanted.get("letter") == each.letter.id:
            return each
    for each in found:
        is_at = wanted.get("at") in (None, each.letter.consumer)
        if is_at and wanted.get("event") is not None and wanted["event"] == each.event_id:
            return each
    return None
