"""Delivers dead letters again, and deletes each one only after its target has taken it.

One letter of each failure goes first, and up to two others if it fails. The rest of its group
follows only if one of them succeeded.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, Protocol

from botocore.exceptions import ClientError

from carride_idempotency import errors, observation
from carride_idempotency.clock import Clock, epoch_ms, to_ms
from carride_idempotency.dead_letters import BEYOND_WINDOW, PAYLOAD_MISMATCH, fifo_ids
from carride_idempotency.operators.explaining import is_held
from carride_idempotency.operators.letters import (
    Letter,
    as_delivered,
    as_message,
    letter_in,
)
from carride_idempotency.operators.queues import peek, waiting
from carride_idempotency.operators.sending import (
    CHANGED,
    Ready,
    Sending,
    TargetAnswer,
    Trial,
    TrialOutcome,
    Verdict,
    has_succeeded,
    is_postponed,
    revision_of,
)
from carride_idempotency.protocol.decision import has_crashed, is_corrupt
from carride_idempotency.record import COMPLETED, FAILED, QUARANTINED, Record, unknown_calls
from carride_idempotency.recovery import release
from carride_idempotency.stores import Store

RUNS: Final = "its consumer processes it"
_RELEASED: Final = f"its key is released, and {RUNS}"
_WOULD_RETURN: Final = {
    PAYLOAD_MISMATCH: "another event has its idempotency key: it would come back",
    BEYOND_WINDOW: "it is older than records are kept, and would come back",
}
_POSTPONED: Final = "it could not be processed now, which used up no attempt: try it again later"
_REFUSES_ONE: Final = frozenset(
    {
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidRequestContentException",
        "RequestTooLargeException",
    }
)
"""What SQS and Lambda answer to an event that is too large, or that they cannot read."""
_HIDDEN_SECONDS: Final = 600
"""For how long letters are hidden while they are delivered."""
_POLL_SECONDS: Final = 1.0
_SUCCEEDS: Final = observation.COMMITTED | {
    observation.DUPLICATE,
    observation.EXPIRED,
    observation.UNPROTECTED,
}
"""The outcomes after which a letter is no longer needed, because its event has taken effect."""


class PlannedLetter(NamedTuple):
    """A letter, and what a redrive would do with it."""

    letter: Letter
    verdict: Verdict
    revision: str
    """Status, attempt and owner of the record that its key has."""


class Target(Protocol):
    """Where letters go."""

    address: str
    answers: bool
    """Whether `send` tells how the delivery went. Otherwise the record does, later."""

    def send(self, letter: Letter) -> TargetAnswer:
        """Deliver the event of a letter."""
        ...


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
    first: Mapping[str, str]
    """How each group began: it has succeeded if one of the letters has that were tried."""
    failed: int = 0
    """Letters that were tried and have not succeeded."""

    @property
    def succeeded(self) -> bool:
        """Whether all letters that were to go were taken, and none that was tried has failed."""
        return has_succeeded(self.planned, self.sent, self.failed)


# ── Targets ───────────────────────────────────────────────────────────────────────────────────────


class FunctionTarget:
    """A Lambda function, which is invoked and waited for: its answer says how a delivery went."""

    answers = True

    def __init__(self, functions: Any, name: str) -> None:
        self.address = name
        self._functions = functions

    def send(self, letter: Letter) -> TargetAnswer:
        """Invoke the function with an event, or with a batch of one record."""
        payload = json.dumps(as_delivered(letter.event), separators=(",", ":"))
        try:
            answer = self._functions.invoke(FunctionName=self.address, Payload=payload)
        except ClientError as error:
            return _refused(error)
        try:
            returned = json.loads(answer["Payload"].read() or "null")
        except ValueError:
            returned = None
        if "FunctionError" in answer:
            raised = returned if isinstance(returned, Mapping) else {}
            says = f"{raised.get('errorType', 'Error')}: {raised.get('errorMessage', 'no message')}"
            if _says_later(raised.get("errorType")):
                return TargetAnswer(Trial.FAILED, f"{_POSTPONED}: {says}", is_taken=False)
            return TargetAnswer(Trial.FAILED, f"it failed again: {says}", is_taken=False)
        return _judged(returned)


def _says_later(kind: object) -> bool:
    """Return whether an error, by the name of its class, is one of ours that says "later"."""
    known = getattr(errors, str(kind), None)
    is_of_a_batch = known is errors.BatchFailedError  # whose record says what has failed
    is_retryable = isinstance(known, type) and issubclass(known, errors.RetryableError)
    return is_retryable and not is_of_a_batch


def _judged(returned: Any) -> TargetAnswer:
    """Return what a function's result says of its one event."""
    if not isinstance(returned, Mapping):
        return TargetAnswer(Trial.SUCCEEDED, "the function returned", is_taken=True)
    if returned.get("batchItemFailures"):
        return TargetAnswer(Trial.FAILED, "it failed again, as its batch says", is_taken=False)
    outcome = returned.get("outcome")
    if outcome is None or outcome in _SUCCEEDS:
        return TargetAnswer(Trial.SUCCEEDED, str(outcome or "the function returned"), is_taken=True)
    if outcome == observation.DEAD_LETTERED:
        again = "it failed again, and its consumer sent a new letter in its place"
        return TargetAnswer(Trial.FAILED, again, is_taken=True)
    return TargetAnswer(Trial.FAILED, f"its consumer answered {outcome}", is_taken=False)


class QueueTarget:
    """A queue, from which a consumer takes the event later."""

    answers = False

    def __init__(self, sqs: Any, url: str) -> None:
        self.address = url
        self._sqs = sqs

    def send(self, letter: Letter) -> TargetAnswer:
        """Send an event as the message that it was. A FIFO queue recognises a copy of a letter."""
        message = as_message(letter.event) | fifo_ids(self.address, letter.event, letter.id)
        try:
            self._sqs.send_message(QueueUrl=self.address, **message)
        except ClientError as error:
            return _refused(error)
        return TargetAnswer(Trial.UNKNOWN, "it was sent", is_taken=True)


def _refused(error: ClientError) -> TargetAnswer:
    """Return what a target says that refuses this event, and may take others.

    Raises:
        ClientError: it refuses them all.
    """
    code = error.response["Error"].get("Code")
    if code not in _REFUSES_ONE:
        raise error
    return TargetAnswer(Trial.FAILED, f"its target refuses it: {code}", is_taken=False)


# ── Planning ──────────────────────────────────────────────────────────────────────────────────────


def verdict_on(letter: Letter, record: Record | None, now_ms: int, *, releases: bool) -> Verdict:
    """Return what a redrive does with a letter whose key has this record."""
    wrong = letter.unusable or _WOULD_RETURN.get(letter.reason)
    if wrong is not None:
        return _stays(wrong)
    if record is None:
        return _goes(RUNS)
    if is_held(record, now_ms):
        return _stays("an attempt may be running: wait until its lease has been over for a minute")
    if record.status == QUARANTINED and unknown_calls(record):
        call = unknown_calls(record)[0]
        return _stays(f"nobody knows whether {call} was called: settle it first")
    if record.status == COMPLETED:
        return _goes("its consumer recognises it: it has taken effect")
    if record.status == QUARANTINED or is_corrupt(record):
        if releases:
            return _goes(_RELEASED, releases=True)
        return _stays("its key is quarantined: add --release when the cause is fixed")
    if releases and has_crashed(record, now_ms):
        return _goes(_RELEASED, releases=True)
    return _goes(RUNS)


def _goes(why: str, *, releases: bool = False) -> Verdict:
    return Verdict(goes=True, why=why, releases=releases)


def _stays(why: str) -> Verdict:
    return Verdict(goes=False, why=why)


class RedrivePlan(NamedTuple):
    """What a redrive would do."""

    queue: str
    target: str
    letters: tuple[PlannedLetter, ...]
    """The chosen letters, the oldest first."""
    others: int
    """Letters that were not chosen."""
    releases: bool
    unread: int = 0
    """About how many letters of a FIFO queue wait behind those that were read: it shows ten of a
    group at once."""

    def exact(self) -> dict[str, Any]:
        """Return the letters that go, in what state they are, and where to."""
        letters = [
            {
                "id": each.letter.id,
                "key": each.letter.key,
                "goes": each.verdict.goes,
                "why": each.verdict.why,
                "record": each.revision,
            }
            for each in self.letters
        ]
        return {"queue": self.queue, "to": self.target, "letters": letters}


class LetterChoice(NamedTuple):
    """Which letters are meant. What is None chooses all."""

    key: str | None = None
    consumer: str | None = None
    reason: str | None = None
    cause: str | None = None
    """The id of a group, or words of its error."""
    before_ms: int | None = None
    after_ms: int | None = None

    def has(self, letter: Letter) -> bool:
        """Return whether a letter is meant."""
        sent_ms = to_ms(letter.sent)
        return (
            self.key in (None, letter.key)
            and self.consumer in (None, letter.consumer)
            and self.reason in (None, letter.reason)
            and (self.before_ms is None or sent_ms < self.before_ms)
            and (self.after_ms is None or sent_ms > self.after_ms)
            and self._has_cause(letter)
        )

    def _has_cause(self, letter: Letter) -> bool:
        if self.cause in (None, letter.group):
            return True
        return str(self.cause).casefold() in letter.error.casefold()


def plan_redrive(
    sqs: Any,
    queue: str,
    store: Store,
    target: str,
    choice: LetterChoice,
    *,
    limit: int | None = None,
    releases: bool = False,
    now_ms: int | None = None,
) -> RedrivePlan:
    """Return what a redrive would do with each letter, and change nothing."""
    now_ms = epoch_ms() if now_ms is None else now_ms
    chosen = []
    others = 0
    with closing(peek(sqs, queue)) as messages:
        for message in messages:
            letter = letter_in(message)
            if not choice.has(letter):
                others += 1
                continue
            record = _record_of(letter, store)
            verdict = verdict_on(letter, record, now_ms, releases=releases)
            chosen.append(PlannedLetter(letter, verdict, revision_of(record)))
    chosen.sort(key=lambda each: (each.letter.sent, each.letter.id))
    taken = tuple(chosen[:limit])
    others += len(chosen) - len(taken)
    unread = 0
    if queue.endswith(".fifo"):
        there = waiting(sqs, queue, taken=False, visible=True)
        unread = max(0, there - len(taken) - others)
    return RedrivePlan(queue, target, taken, others, releases, unread)


def _record_of(letter: Letter, store: Store) -> Record | None:
    return None if letter.key is None else store.read(letter.key)


# ── Doing it ──────────────────────────────────────────────────────────────────────────────────────


class _Found(NamedTuple):
    """A letter that was received."""

    letter: Letter
    receipt: str


class Redrive(Sending[PlannedLetter, _Found]):
    """One redrive.

    Args:
        sqs: botocore's or boto3's client.
        store: holds the records.
        plan: what is to be done.
        target: where letters go.
        tries_one: whether letters of each group are tried first, and the others if one succeeded.
        rate: the most letters a second.
        wait_s: how long the outcome of first letters may take, if their target does not tell.
        report: takes the progress, in words.
        sleep: waits, in seconds.
        clock: epoch milliseconds.
    """

    def __init__(
        self,
        sqs: Any,
        store: Store,
        plan: RedrivePlan,
        target: Target,
        *,
        tries_one: bool = True,
        rate: float | None = None,
        wait_s: float = 300.0,
        report: Callable[[str], object] = print,
        sleep: Callable[[float], object] = time.sleep,
        clock: Clock = epoch_ms,
    ) -> None:
        super().__init__(plan.letters, rate=rate, report=report, sleep=sleep)
        self._sqs = sqs
        self._store = store
        self._plan = plan
        self._target = target
        self._tries_one = tries_one
        self._wait_s = wait_s
        self._clock = clock

    @property
    def state(self) -> str:
        """How far it has come, in words."""
        return self.account("the queue", _HIDDEN_SECONDS)

    def carry_out(self) -> Redriven:
        """Deliver the letters of the plan."""
        self.send_all(tries_one=self._tries_one)
        return Redriven(
            planned=self.planned,
            sent=self.sent,
            stayed=self.stayed_in_all(),
            gone=len(self.unsent) - self.held_back(),
            first={group: str(trial) for group, trial in self.first().items()},
            failed=self.failed(),
        )

    def read(self) -> Generator[_Found]:
        """Receive the letters of the queue."""
        with closing(peek(self._sqs, self._plan.queue, _HIDDEN_SECONDS)) as messages:
            for message in messages:
                yield _Found(letter_in(message), message["ReceiptHandle"])

    def prepare(self, found: _Found, planned: PlannedLetter) -> Ready:
        """Judge a letter again, and release its key if that is due."""
        letter = found.letter
        record = _record_of(letter, self._store)
        verdict = verdict_on(letter, record, self._clock(), releases=self._plan.releases)
        problem = self.why_it_stays(planned, verdict, revision_of(record))
        if problem is not None or letter.key is None or not verdict.releases:
            return Ready(problem, record)
        if not release(self._store, letter.key):
            return Ready(CHANGED, record)
        return Ready(None, _record_of(letter, self._store))

    def hand_over(self, found: _Found, ready: Ready) -> TargetAnswer:
        """Send a letter to its target."""
        if self._target.answers:
            return self._answer_of(found.letter, ready.record)
        answer = self._target.send(found.letter)
        if found.letter.key is not None or not answer.is_taken:
            return answer
        return answer._replace(trial=Trial.SUCCEEDED, says="it was sent; its record is not known")

    def _answer_of(self, letter: Letter, before: Record | None) -> TargetAnswer:
        """Send a letter to a target that answers. Its record tells an outage from a failure."""
        answer = self._target.send(letter)
        if answer.trial is not Trial.FAILED:
            return answer
        record = _record_of(letter, self._store)
        if record is None or record == before or not is_postponed(record, before):
            return answer
        return answer._replace(says=f"{_POSTPONED}: {record.error}")

    def delete(self, found: _Found) -> None:
        """Delete a letter that its target has taken."""
        self._sqs.delete_message(QueueUrl=self._plan.queue, ReceiptHandle=found.receipt)

    def wait(self, waiting: dict[str, tuple[_Found, Ready]]) -> None:
        """Wait until the records of the first letters say how their delivery went."""
        self.report(
            f"waiting up to {self._wait_s:.0f} s for the consumer of {self._target.address}, which "
            f"has to be running: {len(waiting)} sent"
        )
        for _ in range(max(1, round(self._wait_s / _POLL_SECONDS))):
            for group, (found, ready) in list(waiting.items()):
                outcome = self._outcome(found.letter, ready.record)
                if outcome is not None:
                    self.note(found.letter, outcome)
                    del waiting[group]
            if not waiting:
                return
            self.sleep(_POLL_SECONDS)
        for found, ready in waiting.values():
            record = _record_of(found.letter, self._store)
            says = f"its consumer has not completed it after {self._wait_s:.0f} s"
            if record is not None and record != ready.record and is_postponed(record, ready.record):
                says = f"{_POSTPONED}: {record.error}"
            self.note(found.letter, TrialOutcome(Trial.UNKNOWN, says))

    def _outcome(self, letter: Letter, before: Record | None) -> TrialOutcome | None:
        """Return how a letter went, by its record; None while that is not known.

        A failure that used up no attempt says nothing yet: the queue delivers the message again.
        """
        record = _record_of(letter, self._store)
        if record is None or is_postponed(record, before):
            return None
        if record.status == COMPLETED:
            return TrialOutcome(Trial.SUCCEEDED, "completed")
        if record.status in (FAILED, QUARANTINED) and revision_of(record) != revision_of(before):
            return TrialOutcome(Trial.FAILED, f"it failed again: {record.error or ''}")
        return None


def groups_of(letters: Sequence[PlannedLetter]) -> list[tuple[PlannedLetter, int]]:
    """Return the first letter of each failure and verdict, with how many there are."""
    counts = Counter[Any]()
    first: dict[Any, PlannedLetter] = {}
    for each in letters:
        group = (each.letter.group, each.verdict)
        counts[group] += 1
        first.setdefault(group, each)
    return [(first[group], count) for group, count in counts.most_common()]
