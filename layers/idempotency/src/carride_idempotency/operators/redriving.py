"""Plans a redrive, and sends its letters: one of each failure first, then those that may follow.

If the first one fails again, up to two others of its group are tried, of other keys: one poison
letter holds back no group. A key is released once.

A letter is deleted after its target has taken it. If a redrive is interrupted in between, its event
is sent again, and the consumer recognises it. Each letter is judged again just before it goes: what
was not shown is not done.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from carride_idempotency.clock import Clock, epoch_ms, to_ms
from carride_idempotency.errors import StoreError
from carride_idempotency.operators.changing import ChangeRefusedError, plan_release
from carride_idempotency.operators.queues import LONGEST_HIDDEN_SECONDS
from carride_idempotency.operators.records import revision_of
from carride_idempotency.operators.site import (
    AnyLetter,
    Received,
    Site,
    TargetAnswer,
    Trial,
    Verdict,
)
from carride_idempotency.record import COMPLETED, FAILED, QUARANTINED, Record

HELD_BACK: Final = "no letter of its group that was tried has succeeded"
CHANGED: Final = "it or its record has changed since it was planned: run the command again"
FAILED_AGAIN: Final = "another letter of its key went before, and failed again"
POSTPONED: Final = "it could not be processed now, which used up no attempt: try it again later"
WAIT_S: Final = 300.0
"""How long the outcome of letters that are tried may take. Lambda gives up an event some four
minutes after it came."""
_HAVE_FAILED: Final[Mapping[Any, str]] = {
    FAILED: "it failed again, and comes back when its attempts are used up",
    QUARANTINED: "it failed again",
}
"""What it says of a letter that its record has this status."""
_MOST_TRIALS: Final = 3
"""How many letters of a group are tried, until one succeeds."""
_POLL_SECONDS: Final = 1.0
_REPORT_MS: Final = 2_000


class RedriveError(Exception):
    """Raised when a redrive cannot be planned, or has ended early: the message says how far."""


# ── Planning ──────────────────────────────────────────────────────────────────────────────────────


class LetterChoice(NamedTuple):
    """Which letters are meant. What is None chooses all."""

    id: str | None = None
    """The beginning of one letter's id."""
    key: str | None = None
    consumer: str | None = None
    reason: str | None = None
    group: str | None = None
    cause: str | None = None
    """The id of a group, or words of its error."""
    before_ms: int | None = None
    """Sent before this time."""
    after_ms: int | None = None
    """Sent at this time or later."""

    def has(self, letter: AnyLetter) -> bool:
        """Return whether a letter is meant."""
        sent_ms = to_ms(letter.sent)
        return (
            (self.id is None or letter.id.startswith(self.id))
            and self.key in (None, letter.key)
            and self.consumer in (None, letter.consumer)
            and self.reason in (None, letter.reason)
            and self.group in (None, letter.group)
            and (self.before_ms is None or sent_ms < self.before_ms)
            and (self.after_ms is None or sent_ms >= self.after_ms)
            and self._has_cause(letter)
        )

    def _has_cause(self, letter: AnyLetter) -> bool:
        if self.cause in (None, letter.group):
            return True
        return str(self.cause).casefold() in letter.error.casefold()


class PlannedLetter[L: AnyLetter](NamedTuple):
    """A letter, without its event, and what a redrive would do with it."""

    letter: L
    verdict: Verdict
    revision: str
    """The `revision_of` the record that the letter's key has."""
    event: str
    """The hash of the event that is sent."""


class RedrivePlan[L: AnyLetter](NamedTuple):
    """What a redrive would do."""

    queue: str
    """The queues, as an operator has named them."""
    target: str
    letters: tuple[PlannedLetter[L], ...]
    """The chosen letters, the oldest first. A redrive sends no others."""
    others: int
    """Letters that were not chosen."""
    hidden: int
    """Messages that another reader hides."""
    release: bool
    """Whether keys may be released."""
    unread: int = 0
    """About how many letters of a FIFO queue wait behind those that were read: it shows ten of a
    group at once."""

    @property
    def goes(self) -> int:
        """How many letters go."""
        return sum(each.verdict.goes for each in self.letters)

    def exact(self) -> dict[str, Any]:
        """Return the letters that go, in what state they are, and where to."""
        letters = [
            {
                "id": each.letter.id,
                "key": each.letter.key,
                **each.letter.labels,
                "verdict": each.verdict.to_json(),
                "record": each.revision,
                "event": each.event,
            }
            for each in self.letters
        ]
        return {"queue": self.queue, "target": self.target, "letters": letters}


def plan_redrive[L: AnyLetter](
    site: Site[L],
    choice: LetterChoice,
    *,
    limit: int | None = None,
    releases: bool = False,
    now_ms: int | None = None,
) -> RedrivePlan[L]:
    """Return what a redrive would do with each letter, and change nothing.

    Raises:
        RedriveError: no letter was chosen, or more than one by the beginning of an id.
    """
    now_ms = epoch_ms() if now_ms is None else now_ms
    hidden = site.count(hidden=True)
    chosen = list[PlannedLetter[L]]()
    others = list[str]()
    with closing(site.letters()) as letters:
        for found in letters:
            if choice.has(found.letter):
                chosen.append(_judged(site, found, now_ms, releases=releases))
            else:
                others.append(f"{found.letter.group} ({found.letter.reason})")
    if others and not chosen:
        groups = ", ".join(sorted({*others}))
        raise RedriveError(f"{site.name} has no such letter: its groups are {groups}")
    if choice.id and len(chosen) > 1:
        ids = ", ".join(each.letter.id for each in chosen)
        raise RedriveError(f"{choice.id} begins more than one id: {ids}")
    chosen.sort(key=lambda each: (each.letter.sent, each.letter.id))
    read = len(chosen) + len(others)
    unread = 0
    if any(queue.endswith(".fifo") for queue in site.queues):
        unread = max(0, site.count(hidden=False) - read)
    taken = tuple(chosen[:limit])
    return RedrivePlan(
        queue=site.name,
        target=site.target,
        letters=taken,
        others=read - len(taken),
        hidden=hidden,
        release=releases,
        unread=unread,
    )


def _judged[L: AnyLetter](
    site: Site[L], found: Received[L], now_ms: int, *, releases: bool
) -> PlannedLetter[L]:
    """Return a letter without its event, and what a redrive would do with it now."""
    return PlannedLetter(
        letter=found.letter.without_event(),
        verdict=site.verdict(found, now_ms, releases=releases),
        revision=revision_of(found.record),
        event=_hash_of(found.letter.event),
    )


def _hash_of(event: object) -> str:
    """Return a hash of an event, whatever the order of its names.

    Of one that is nested too deeply it is empty, for it stays.
    """
    try:
        text = json.dumps(event, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return ""
    return sha256(text.encode()).hexdigest()


def released_keys(letters: Iterable[PlannedLetter[Any]]) -> list[str]:
    """Return every key that a redrive of these letters releases, each once."""
    released = [each.letter.key for each in letters if each.verdict.releases]
    return [*dict.fromkeys(key for key in released if key is not None)]


def groups_of[L: AnyLetter](
    letters: Sequence[PlannedLetter[L]],
) -> list[tuple[PlannedLetter[L], int]]:
    """Return the first letter of each failure and verdict, with how many there are."""
    counts = Counter[Any]()
    first: dict[Any, PlannedLetter[L]] = {}
    for each in letters:
        group = (each.letter.group, each.verdict)
        counts[group] += 1
        first.setdefault(group, each)
    return [(first[group], count) for group, count in counts.most_common()]


# ── Doing it ──────────────────────────────────────────────────────────────────────────────────────


class Tried(NamedTuple):
    """A letter that was tried before the others of its group, and how it went."""

    group: str
    key: str | None
    labels: Mapping[str, Any]
    trial: Trial
    says: str
    """What became of it: its error, if it failed again."""

    def to_json(self) -> dict[str, Any]:
        """Return it with its labels beside the other fields."""
        fields = self._asdict()
        return {**fields.pop("labels"), **fields}


class Redriven(NamedTuple):
    """What a redrive has done."""

    planned: int
    """Letters that were to go."""
    sent: int
    """Letters that their target took."""
    stayed: Mapping[str, int]
    """How many letters are still in the queue, by why they stayed."""
    gone: int
    """Planned letters that were no longer in the queue, or hidden by another reader."""
    tried: tuple[Tried, ...] = ()
    """The letters that were tried, up to three of a group."""
    released: int = 0
    """Keys that were released, each once: several letters may have one key."""

    @property
    def first(self) -> dict[str, Trial]:
        """How each group began: it has succeeded if one of the letters has that were tried."""
        groups = dict.fromkeys(each.group for each in self.tried)
        return {group: _best(_trials_of(group, self.tried)) for group in groups}

    @property
    def succeeded(self) -> bool:
        """Whether all letters that were to go were taken, and none that was tried has failed."""
        have_succeeded = all(each.trial is Trial.SUCCEEDED for each in self.tried)
        return self.sent == self.planned and have_succeeded

    def to_json(self) -> dict[str, Any]:
        """Return it with how each group began, and what became of each letter that was tried."""
        tried = [each.to_json() for each in self.tried]
        return self._asdict() | {"first": self.first, "tried": tried}


class _Ready(NamedTuple):
    """A letter just before it goes."""

    problem: str | None
    """Why it stays after all; None if it goes."""
    record: Record | None
    """The record that its delivery finds."""


class _Outcome(NamedTuple):
    """How a letter went that was tried, and the same in words."""

    trial: Trial
    says: str


class Redrive[L: AnyLetter]:
    """One redrive. Letters that would return stay in the queue, and keep their age.

    Args:
        site: where it works.
        plan: what is to be done.
        tries_one: whether letters of each group are tried first, and the others if one succeeded.
        rate: the most letters a second.
        wait_s: how long the outcome of letters that are tried may take.
        report: takes the progress, in words.
        sleep: waits, in seconds.
        clock: epoch milliseconds.
    """

    def __init__(
        self,
        site: Site[L],
        plan: RedrivePlan[L],
        *,
        tries_one: bool = True,
        rate: float | None = None,
        wait_s: float = WAIT_S,
        report: Callable[[Any], object] = print,
        sleep: Callable[[float], object] = time.sleep,
        clock: Clock = epoch_ms,
    ) -> None:
        self._site = site
        self._plan = plan
        self._tries_one = tries_one
        self._pause_s = 1 / rate if rate else 0.0
        self._wait_s = wait_s
        self._report = report
        self._sleep = sleep
        self._clock = clock
        self._unsent = {each.letter.id: each for each in plan.letters if each.verdict.goes}
        """The letters that were to go and have not, by their ids."""
        self._planned = len(self._unsent)
        self._sent = 0
        self._stayed = Counter(each.verdict.says for each in plan.letters if not each.verdict.goes)
        self._tried: dict[str, Tried] = {}
        """How the letters went that were tried, by their ids."""
        self._gone_keys = set[str]()
        """Keys of letters that went: this redrive itself has changed their records."""
        self._released_keys = set[str]()
        self._began_ms = clock()
        self._reported_ms = self._began_ms
        # A receive returns ten messages, and the last of them must still be hidden when its turn
        # comes.
        hidden_s = max(site.hidden_s, math.ceil(20 * self._pause_s))
        self._hidden_s = min(hidden_s, LONGEST_HIDDEN_SECONDS)

    def carry_out(self) -> Redriven:
        """Send the letters of the plan to their target.

        Raises:
            RedriveError: it has ended early.
            KeyboardInterrupt: it was interrupted; this one, too, says how far it has come.
        """
        try:
            if self._tries_one:
                self._send_first()
            self._send_others()
        except (BotoCoreError, ClientError, StoreError) as error:
            raise RedriveError(f"{self.state}. It ended early: {error}") from error
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(self.state) from error
        held_back = sum(not self._may_follow(each.letter.group) for each in self._unsent.values())
        return Redriven(
            planned=self._planned,
            sent=self._sent,
            stayed=dict(self._stayed + Counter({HELD_BACK: held_back})),
            gone=len(self._unsent) - held_back,
            tried=tuple(self._tried.values()),
            released=len(self._released_keys),
        )

    @property
    def state(self) -> str:
        """How far it has come, in words."""
        return (
            f"{self._sent} of {self._planned} letters were sent; the others are in "
            f"{self._plan.queue}, where some may be hidden for {self._hidden_s} seconds. Run the "
            "same command again to continue: a consumer recognises a letter that is sent twice"
        )

    # ── The order ─────────────────────────────────────────────────────────────────────────────────

    def _may_follow(self, group: str) -> bool:
        """Return whether a letter of a group has succeeded, or none was tried."""
        trials = _trials_of(group, self._tried.values())
        return not trials or _best(trials) is Trial.SUCCEEDED

    def _may_be_tried(self, planned: PlannedLetter[L]) -> bool:
        """Return whether a letter is worth a trial, and all of its group have failed so far.

        Another letter of a key that was tried says nothing new.
        """
        trials = _trials_of(planned.letter.group, self._tried.values())
        have_failed = all(trial is Trial.FAILED for trial in trials)
        is_new = planned.letter.key not in self._gone_keys
        may_fail = planned.verdict.may_fail
        return have_failed and len(trials) < _MOST_TRIALS and is_new and may_fail

    def _send_first(self) -> None:
        """Try letters of each group, one after the other, until one succeeds or three failed."""
        while tried := [name for name, each in self._unsent.items() if self._may_be_tried(each)]:
            if not self._try_one_of_each(tried):
                return

    def _try_one_of_each(self, ids: Sequence[str]) -> bool:
        """Send one of these letters of each group, and find out how it went.

        One that stays after all is no trial. Return whether any of them was there.
        """
        groups = {self._unsent[letter_id].letter.group for letter_id in ids}
        sent = set[str]()
        waiting: dict[str, tuple[L, Record | None]] = {}
        with closing(self._received(ids)) as letters:
            for found in letters:
                letter = found.letter
                if letter.group not in sent:
                    sent.add(letter.group)
                    ready, answer = self._send(found)
                    if ready.problem is None:
                        self._note(letter, _Outcome(answer.trial, answer.says))
                    if answer.is_taken and answer.trial is Trial.UNKNOWN:
                        waiting[letter.id] = (letter, ready.record)
                if sent == groups:
                    break
        if waiting:
            self._wait(waiting)
        return bool(sent)

    def _send_others(self) -> None:
        """Send the letters of groups that may follow."""
        following = [
            letter_id
            for letter_id, each in self._unsent.items()
            if self._may_follow(each.letter.group)
        ]
        with closing(self._received(following)) as letters:
            for found in letters:
                self._send(found)

    def _received(self, ids: Iterable[str]) -> Generator[Received[L]]:
        """Yield the letters with these ids; all others are made visible again."""
        wanted = set(ids)
        with closing(self._site.letters({*wanted}, self._hidden_s)) as letters:
            while wanted and (found := next(letters, None)):
                wanted.discard(found.letter.id)
                yield found

    # ── A letter ──────────────────────────────────────────────────────────────────────────────────

    def _send(self, found: Received[L]) -> tuple[_Ready, TargetAnswer]:
        """Send a letter that would not return by now, and delete it if its target took it."""
        ready = self._prepared(found, self._unsent[found.letter.id])
        key = found.letter.key
        if ready.problem is None:
            if key is not None:
                self._gone_keys.add(key)
            answer = self._handed_over(found.letter, ready.record)
        else:
            answer = TargetAnswer(Trial.FAILED, ready.problem, is_taken=False)
        del self._unsent[found.letter.id]
        if answer.is_taken:
            self._site.delete(found)
            self._sent += 1
        else:
            self._stayed[answer.says] += 1
        if ready.problem is None:
            self._sleep(self._pause_s)
        self._progress(f"letters that are sent: {self._sent:,} of {self._planned:,}")
        return ready, answer

    def _prepared(self, found: Received[L], planned: PlannedLetter[L]) -> _Ready:
        """Judge a letter again, and release its key if that is due."""
        judged = _judged(self._site, found, self._clock(), releases=self._plan.release)
        if judged.verdict.goes and judged.event != planned.event:
            return _Ready(CHANGED, found.record)
        problem = self._why_it_stays(planned, judged)
        record = found.record
        if problem is not None or not judged.verdict.releases or record is None:
            return _Ready(problem, record)
        return self._released(record)

    def _released(self, record: Record) -> _Ready:
        """Release a key if its record is still as it was read."""
        now = datetime.fromtimestamp(self._clock() / 1000, UTC)
        try:
            # A verdict that releases a failed key has found that its attempts are used up.
            change = plan_release(record, self._site.records.explain(record, now), used_up=True)
        except ChangeRefusedError:
            return _Ready(CHANGED, record)
        if not self._site.records.carry_out(change, clock=self._clock):
            return _Ready(CHANGED, record)
        self._released_keys.add(record.key)
        return _Ready(None, self._site.records.read(record.key))

    def _why_it_stays(self, planned: PlannedLetter[L], judged: PlannedLetter[L]) -> str | None:
        """Return why a letter stays that is judged so by now; None if it goes as planned.

        A letter whose key went before finds another record than was shown. It goes if that one has
        not failed, but a redrive releases no key twice.
        """
        if not judged.verdict.goes:
            return judged.verdict.says
        if planned.letter.key in self._gone_keys:
            trials = [each.trial for each in self._tried.values() if each.key == judged.letter.key]
            has_failed = Trial.FAILED in trials
            return FAILED_AGAIN if judged.verdict.releases or has_failed else None
        seen = (judged.verdict, judged.revision)
        if seen != (planned.verdict, planned.revision):
            return CHANGED
        return None

    def _handed_over(self, letter: L, before: Record | None) -> TargetAnswer:
        """Send a letter to its target. Its record tells an outage from a failure."""
        answer = self._site.send(letter)
        if answer.trial is not Trial.FAILED or letter.key is None:
            return answer
        record = self._site.records.read(letter.key)
        if record is None or record == before or not _is_postponed(record, before):
            return answer
        return answer._replace(says=f"{POSTPONED}: {record.error}")

    def _note(self, letter: L, outcome: _Outcome) -> None:
        """Keep and report how a letter went that was tried."""
        self._tried[letter.id] = Tried(letter.group, letter.key, letter.labels, *outcome)
        self._report(f"group {letter.group}: {outcome.says}")

    # ── Waiting ───────────────────────────────────────────────────────────────────────────────────

    def _wait(self, waiting: dict[str, tuple[L, Record | None]]) -> None:
        """Wait until it is known how these letters went, or the time is over.

        Those that came back are looked for if the number of letters has changed, and at the end.
        """
        self._report(
            f"waiting up to {self._wait_s:.0f} s: the consumer behind {self._plan.target} has to "
            f"be able to run; {len(waiting)} sent"
        )
        count_before = -1
        end_ms = self._clock() + self._wait_s * 1000
        for looks_left in reversed(range(max(1, round(self._wait_s / _POLL_SECONDS)))):
            is_over = not looks_left or self._clock() >= end_ms
            count = self._site.count(hidden=False)
            back = dict[str, L]()
            if is_over or count != count_before:
                back = self._back([letter for letter, _ in waiting.values()])
            count_before = count
            for letter, before in list(waiting.values()):
                outcome = self._outcome(letter, before, back.get(letter.id), is_over=is_over)
                if outcome is not None:
                    self._note(letter, outcome)
                    del waiting[letter.id]
            if not waiting:
                return
            self._progress(f"outcomes that are not known yet: {len(waiting)}")
            self._sleep(_POLL_SECONDS)

    def _back(self, sent: Sequence[L]) -> dict[str, L]:
        """Return the letters that have come back, by the ids of those that were sent."""
        found = dict[str, L]()
        for letter in self._site.sent_since(self._began_ms):
            found |= {each.id: letter for each in sent if self._site.is_back(each, letter)}
        return found

    def _outcome(
        self, letter: L, before: Record | None, back: L | None, *, is_over: bool
    ) -> _Outcome | None:
        """Return how a letter went, by its record or as it is ``back``; None while unknown.

        A failure that used up no attempt says nothing yet: the event is delivered again. Of a
        letter without a key, only its return is known.
        """
        record = None if letter.key is None else self._site.records.read(letter.key)
        if record is not None and record.status == COMPLETED:
            return _Outcome(Trial.SUCCEEDED, "completed")
        is_postponed = record != before and _is_postponed(record, before)
        has_ended = revision_of(record) != revision_of(before) and not is_postponed
        if record is not None and has_ended and record.status in _HAVE_FAILED:
            return _Outcome(Trial.FAILED, f"{_HAVE_FAILED[record.status]}: {record.error or ''}")
        if back is not None:
            says = f"it is back: {back.reason} {back.error}"
            return _Outcome(Trial.FAILED, says.rstrip())
        if not is_over:
            return None
        if letter.key is None:
            says = "it was sent, and is not back; its record is not known"
            return _Outcome(Trial.SUCCEEDED, says)
        if record is not None and is_postponed:
            return _Outcome(Trial.UNKNOWN, f"{POSTPONED}: {record.error}")
        return _Outcome(
            Trial.UNKNOWN,
            f"its consumer has not completed it after {self._wait_s:.0f} s, and it is not back. A "
            "failed delivery is repeated for some minutes: read the function's log, then look for "
            "its letter",
        )

    def _progress(self, says: str) -> None:
        """Report now and then."""
        now_ms = self._clock()
        if now_ms - self._reported_ms >= _REPORT_MS:
            self._report(says)
            self._reported_ms = now_ms


def _is_postponed(record: Record | None, before: Record | None) -> bool:
    """Return whether a delivery met a failure that used up no attempt, as one of an outage does.

    ``before`` is the record that the delivery found.
    """
    used_before = 0 if before is None else before.attempt
    return record is not None and record.status == FAILED and record.attempt <= used_before


def _trials_of(group: str, tried: Iterable[Tried]) -> list[Trial]:
    return [each.trial for each in tried if each.group == group]


def _best(trials: Sequence[Trial]) -> Trial:
    """Return how a group began: it has succeeded if one letter has; else how the last one went."""
    return Trial.SUCCEEDED if Trial.SUCCEEDED in trials else trials[-1]
