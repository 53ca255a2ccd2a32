"""Sends the letters of a redrive: one of each failure first, then those that may follow.

If the first one fails again, up to two others of its group are tried: one poison letter holds back
no group.

A letter is deleted after its target has taken it. If a redrive is interrupted in between, its event
is sent again, and the consumer recognises it. Each letter is judged again just before it goes: what
was not shown is not done.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from carride_idempotency.record import FAILED, Record

HELD_BACK: Final = "no letter of its group that was tried has succeeded"
CHANGED: Final = "it or its record has changed since it was planned: run the command again"


_MOST_TRIALS: Final = 3
"""How many letters of a group are tried, until one succeeds."""


class Trial(StrEnum):
    """How a letter went that was tried before the others of its group."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """What a redrive does with a letter: whether it goes, and what its target does then."""

    goes: bool
    why: str
    releases: bool = False


class TargetAnswer(NamedTuple):
    """What a target made of a letter."""

    trial: Trial
    says: str
    is_taken: bool
    """Whether the letter is no longer needed in the queue."""


class TrialOutcome(NamedTuple):
    """How a letter went that was tried, and the same in words."""

    trial: Trial
    says: str


class Ready(NamedTuple):
    """A letter just before it goes."""

    problem: str | None
    """Why it stays after all; None if it goes."""
    record: Record | None
    """The record that its delivery finds."""


class AnyLetter(Protocol):
    """What sending needs to know of a letter."""

    @property
    def id(self) -> str:
        """SQS's id of the message."""

    @property
    def group(self) -> str:
        """The id of its failure."""

    @property
    def key(self) -> str | None:
        """Of the consumer's record, if it is known."""


class AnyPlanned(Protocol):
    """A letter, and what was shown of it."""

    @property
    def letter(self) -> AnyLetter:
        """The letter."""

    @property
    def verdict(self) -> Verdict:
        """What a redrive does with it."""

    @property
    def revision(self) -> str:
        """The `revision_of` its record."""


class AnyFound(Protocol):
    """A letter that was received from its queue."""

    @property
    def letter(self) -> AnyLetter:
        """The letter."""


class Sending[P: AnyPlanned, F: AnyFound](ABC):
    """Sends the letters of a plan. Those that would return stay in the queue, and keep their age.

    ``P`` is a planned letter, ``F`` one that was received.
    """

    def __init__(
        self,
        letters: Iterable[P],
        *,
        rate: float | None,
        report: Callable[[Any], object],
        sleep: Callable[[float], object],
    ) -> None:
        letters = tuple(letters)
        self.unsent: dict[str, P] = {each.letter.id: each for each in letters if each.verdict.goes}
        """The letters that were to go and have not, by their ids."""
        self.planned = len(self.unsent)
        self.sent = 0
        self.stayed = Counter(each.verdict.why for each in letters if not each.verdict.goes)
        self.trials: dict[str, dict[str, TrialOutcome]] = {}
        """How the letters of each group went that were tried, by their ids."""
        self.pause_s = 1 / rate if rate else 0.0
        self.report = report
        self.sleep = sleep
        self._gone_keys = set[str]()
        """Keys of letters that went: this redrive itself has changed their records."""

    # ── What a redrive of its kind does ───────────────────────────────────────────────────────────

    @abstractmethod
    def read(self) -> Generator[F]:
        """Receive the letters of the queue, one after the other. A letter is hidden meanwhile."""

    @abstractmethod
    def prepare(self, found: F, planned: P) -> Ready:
        """Judge a letter again, and release its key if that is due."""

    @abstractmethod
    def hand_over(self, found: F, ready: Ready) -> TargetAnswer:
        """Send a letter to its target."""

    @abstractmethod
    def delete(self, found: F) -> None:
        """Delete a letter that its target has taken."""

    @abstractmethod
    def wait(self, waiting: dict[str, tuple[F, Ready]]) -> None:
        """`note` how the letters that these groups try went, which their target did not say."""

    def may_fail(self, planned: P) -> bool:  # noqa: ARG002 - others decide by the letter
        """Return whether a letter is worth a trial. All are, unless it is certain how one goes."""
        return True

    def progressed(self) -> None:  # noqa: B027 - most have nothing to say
        """Take note that a letter was sent, or stays."""

    # ── The order, and the account ────────────────────────────────────────────────────────────────

    def send_all(self, *, tries_one: bool) -> None:
        """Send the letters; ``tries_one`` says whether one of each group goes first."""
        if tries_one:
            self._send_first()
        self._send_others()

    def first(self) -> dict[str, Trial]:
        """Return how each group that was tried began: it has succeeded if one letter has."""
        return {group: _best(outcomes.values()) for group, outcomes in self.trials.items()}

    def failed(self) -> int:
        """Return how many letters that were tried have not succeeded."""
        outcomes = [each for tried in self.trials.values() for each in tried.values()]
        return sum(each.trial is not Trial.SUCCEEDED for each in outcomes)

    def held_back(self) -> int:
        """Return how many letters stay because none of their group has succeeded."""
        return sum(not self._may_follow(each.letter.group) for each in self.unsent.values())

    def stayed_in_all(self) -> dict[str, int]:
        """Return how many letters are still in the queue, by why they stayed."""
        return dict(self.stayed + Counter({HELD_BACK: self.held_back()}))

    def account(self, queue: str, hidden_s: float) -> str:
        """Say how far the redrive has come."""
        return (
            f"{self.sent} of {self.planned} letters were sent; the others are in {queue}, "
            f"where some may be hidden for {hidden_s:.0f} seconds. Run the same command again to "
            "continue: a consumer recognises a letter that is sent twice"
        )

    def note(self, letter: AnyLetter, outcome: TrialOutcome) -> None:
        """Keep and report how a letter went that was tried."""
        self.trials.setdefault(letter.group, {})[letter.id] = outcome
        self.report(f"group {letter.group}: {outcome.says}")

    def why_it_stays(self, planned: P, verdict: Verdict, revision: str) -> str | None:
        """Return why a letter stays whose verdict is this by now; None if it goes as planned.

        A letter whose key went before finds another record than was shown. It goes, but releases
        no key that was not to be released.
        """
        if not verdict.goes:
            return verdict.why
        key = planned.letter.key
        if key in self._gone_keys:
            is_as_planned = verdict.releases <= planned.verdict.releases
        else:
            is_as_planned = (verdict, revision) == (planned.verdict, planned.revision)
        if not is_as_planned:
            return CHANGED
        if key is not None:
            self._gone_keys.add(key)
        return None

    def _may_follow(self, group: str) -> bool:
        """Return whether a letter of a group has succeeded, or none was tried."""
        tried = self.trials.get(group)
        return tried is None or _best(tried.values()) is Trial.SUCCEEDED

    def _may_be_tried(self, planned: P) -> bool:
        """Return whether a letter is worth a trial, and all of its group have failed so far."""
        tried = self.trials.get(planned.letter.group, {})
        have_failed = all(each.trial is Trial.FAILED for each in tried.values())
        return have_failed and len(tried) < _MOST_TRIALS and self.may_fail(planned)

    def _send_first(self) -> None:
        """Try letters of each group, one after the other, until one succeeds or three failed."""
        while tried := [name for name, each in self.unsent.items() if self._may_be_tried(each)]:
            if not self._try_one_of_each(tried):
                return

    def _try_one_of_each(self, ids: Sequence[str]) -> bool:
        """Send one of these letters of each group, and find out how it went.

        One that stays after all is no trial. Return whether any of them was there.
        """
        groups = {self.unsent[letter_id].letter.group for letter_id in ids}
        sent = set[str]()
        waiting: dict[str, tuple[F, Ready]] = {}
        with closing(self._received(ids)) as letters:
            for found in letters:
                group = found.letter.group
                if group not in sent:
                    sent.add(group)
                    ready, answer = self._send(found)
                    if ready.problem is None:
                        self.note(found.letter, TrialOutcome(answer.trial, answer.says))
                    if answer.is_taken and answer.trial is Trial.UNKNOWN:
                        waiting[group] = (found, ready)
                if sent == groups:
                    break
        if waiting:
            self.wait(waiting)
        return bool(sent)

    def _send_others(self) -> None:
        """Send the letters of groups that may follow."""
        following = [
            letter_id
            for letter_id, each in self.unsent.items()
            if self._may_follow(each.letter.group)
        ]
        with closing(self._received(following)) as letters:
            for found in letters:
                self._send(found)

    def _received(self, ids: Iterable[str]) -> Generator[F]:
        """Yield the letters with these ids; all others are made visible again."""
        wanted = set(ids)
        with closing(self.read()) as letters:
            while wanted and (found := next(letters, None)):
                if found.letter.id in wanted:
                    wanted.discard(found.letter.id)
                    yield found

    def _send(self, found: F) -> tuple[Ready, TargetAnswer]:
        """Send a letter that would not return by now, and delete it if its target took it."""
        ready = self.prepare(found, self.unsent[found.letter.id])
        if ready.problem is None:
            answer = self.hand_over(found, ready)
        else:
            answer = TargetAnswer(Trial.FAILED, ready.problem, is_taken=False)
        del self.unsent[found.letter.id]
        if answer.is_taken:
            self.delete(found)
            self.sent += 1
        else:
            self.stayed[answer.says] += 1
        if ready.problem is None:
            self.sleep(self.pause_s)
        self.progressed()
        return ready, answer


def revision_of(record: Record | None) -> str:
    """Return a text that changes with every change of a record, but for renewed leases."""
    if record is None:
        return "none"
    return f"{record.status}, attempt {record.attempt}, owner {record.owner}"


def released_keys(letters: Iterable[AnyPlanned]) -> list[str]:
    """Return every key that a redrive of these letters releases, each once."""
    released = [each.letter.key for each in letters if each.verdict.releases]
    return [*dict.fromkeys(key for key in released if key is not None)]


def is_postponed(record: Record | None, before: Record | None) -> bool:
    """Return whether a delivery met a failure that used up no attempt, as one of an outage does.

    ``before`` is the record that the delivery found.
    """
    used_before = 0 if before is None else before.attempt
    return record is not None and record.status == FAILED and record.attempt <= used_before


def has_succeeded(planned: int, sent: int, failed: int) -> bool:
    """Return whether all letters that were to go went, and none that was tried has failed."""
    return sent == planned and not failed


def _best(outcomes: Iterable[TrialOutcome]) -> Trial:
    """Return how a group began: it has succeeded if one letter has; else how the last one went."""
    trials = [each.trial for each in outcomes]
    return Trial.SUCCEEDED if Trial.SUCCEEDED in trials else trials[-1]
