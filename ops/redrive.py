"""Sends dead letters to the target that they were meant for, and releases keys if asked.

A message is deleted after its target accepted the event. If the command is interrupted in between,
the event is sent again, and consumers recognise it. The preview and the redrive ask the same
`verdict_on` about each letter.
"""

import json
import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct
from msgspec.structs import replace

from carride.bus_entry import TOO_LARGE, BusEntry
from carride.decoding import FieldError, shaped
from carride.publisher import Outcome, Publisher
from carride_idempotency import DynamoDBStore, StoreError, observation
from carride_idempotency.clock import epoch_ms, to_ms
from carride_idempotency.dead_letters import BEYOND_WINDOW, CONTRACT, PAYLOAD_MISMATCH
from carride_idempotency.operators import sending
from carride_idempotency.operators.changing import ChangeRefusedError, carry_out, plan_release
from carride_idempotency.policy import DAY
from carride_idempotency.record import COMPLETED, FAILED, QUARANTINED, Record
from carride_idempotency.recovery import has_crashed, released
from carride_idempotency.stores.transport import BotocoreTransport
from ops.audit.evidence import CONSUMERS, MARKS, RECORD_TABLES
from ops.audit.queues import HIDDEN_SECONDS, json_object, waiting
from ops.dead_letters import (
    BUS,
    PRODUCER_DLQ,
    READERS,
    DeadLetter,
    Received,
    count_key,
    queues_named,
    received_from,
    url_of,
)
from ops.policies import records_of
from ops.prediction import Predictor
from ops.records import explain
from ops.stack import OperatorError, StackRef
from ops.text import counted
from ops.verbs import POSITIVE, RATE, Moment, Plan, Session, Span, acts

WAIT: Final = timedelta(minutes=5)
"""How long the outcome of letters that are tried may take. Lambda gives up an event some four
minutes after it came."""
_ANSWER_SECONDS: Final = 20.0
_COUNTED_FOR: Final = timedelta(days=30)
_POLL_SECONDS: Final = 1.0
_REPORT_SECONDS: Final = 2.0

RUNS: Final = "the consumer processes it"
RELEASED: Final = f"its key is released, and {RUNS}"
PUBLISHED: Final = "the bus publishes it to every consumer"
_UNKNOWN: Final = (
    "the letter is not back. Lambda repeats a failed delivery for some minutes: "
    "read the function's log, then try again"
)
_GOES: Final = {
    **dict.fromkeys(observation.COMMITTED, RUNS),
    observation.DUPLICATE: "the consumer recognises it: it has taken effect",
    observation.EXPIRED: "the consumer drops it: its expirytime has passed",
}
_STAYS: Final = {
    CONTRACT: "it breaks the contract and would come back",
    PAYLOAD_MISMATCH: "another event has its idempotency id: it would come back",
    BEYOND_WINDOW: "it is older than records are kept and would come back",
}
_NO_TARGET: Final = "redrive knows no target of its queue: the queue's runbook says what to do"
_HELD_BY_ANOTHER: Final = (
    "an attempt may be running: wait until its lease has been over for a minute"
)
_CLOCKS_DIFFER_MS: Final = 60_000


class Planned(NamedTuple):
    """A letter, without its event, and what a redrive would do with it."""

    letter: DeadLetter
    verdict: sending.Verdict
    revision: str = "none"
    """Status, attempt and owner of the record that the letter's key has."""
    event: str = ""
    """The hash of the event that is sent."""


class RedrivePlan(NamedTuple):
    """What a redrive would do."""

    queue: str
    """As it was named: a consumer, which has two, the bus, or a logical id."""
    target: str
    letters: tuple[Planned, ...]
    """The selected letters, the oldest first. A redrive sends no others."""
    others: int
    """Letters that were not selected."""
    hidden: int
    """Messages that another reader hides."""
    release: bool
    queues: tuple[str, ...] = ()
    """The logical ids of the queues."""

    def exact(self) -> Mapping[str, Any]:
        """Return the letters that go, in what state they are, and where to."""
        letters = [
            {
                "id": each.letter.id,
                "key": each.letter.key,
                "type": each.letter.type,
                "ride": each.letter.ride,
                "verdict": each.verdict,
                "record": each.revision,
                "event": each.event,
            }
            for each in self.letters
        ]
        return {"target": self.target, "letters": letters}


class Tried(NamedTuple):
    """A letter that was tried before the others of its group, and how it went."""

    group: str
    key: str | None
    type: str | None
    ride: str | None
    trial: sending.Trial
    says: str
    """What became of it: its error, if it failed again."""
    fact: str | None = None
    """Idempotency id of its event."""


class Redriven(NamedTuple):
    """What a redrive has done."""

    planned: int
    """Letters that were to go."""
    sent: int
    stayed: Mapping[str, int]
    """Letters that are still in the queue, by reason."""
    gone: int
    """Planned letters that were no longer in the queue, or hidden by another reader."""
    first: Mapping[str, sending.Trial]
    """How each group began: it has succeeded if one of the letters has that were tried."""
    tried: tuple[Tried, ...] = ()
    """The letters that were tried, up to three of a group."""
    released: int = 0
    """Keys that were released, each once: several letters may have one key."""

    @property
    def succeeded(self) -> bool:
        """Whether all letters that were to go were sent, and none that was tried has failed."""
        failed = sum(each.trial is not sending.Trial.SUCCEEDED for each in self.tried)
        return sending.has_succeeded(self.planned, self.sent, failed)


class _Envelope(Struct, rename={"detail_type": "detail-type"}):
    source: str
    detail_type: str
    time: datetime
    detail: Any
    resources: tuple[str, ...] = ()


def target_of(stack: StackRef, queue: str) -> str:
    """Return the ARN of the target that a queue's messages were meant for."""
    events = stack.client("events")
    bus = stack.outputs["CarRideBusName"]
    if queue == PRODUCER_DLQ:
        return str(events.describe_event_bus(Name=bus)["Arn"])
    if queue not in READERS:
        known = ", ".join([*(each.name for each in CONSUMERS), BUS])
        raise OperatorError(
            f"this command knows the queues of {known}; the page of {queue} in ops/docs/runbooks "
            "says what to do"
        )
    rule = stack.named("AWS::Events::Rule")[f"{READERS[queue].resources}Rule"]
    (target,) = events.list_targets_by_rule(Rule=rule, EventBusName=bus)["Targets"]
    return str(target["Arn"])


def verdict_on(
    letter: DeadLetter, record: Record | None, predictor: Predictor | None, *, release: bool = False
) -> sending.Verdict:
    """Return what a redrive would do with a letter whose key has this record.

    ``predictor`` is that of the consumer, and None for the bus.
    """
    event = letter.event
    if not isinstance(event, Mapping) or event.get("detail") is None or "detailBytes" in event:
        return sending.Verdict(False, "the event is not in it")
    if predictor is None:
        return _verdict_of_bus(event)
    return _verdict_of_consumer(_redriven(event), record, predictor, release=release)


def verdict_if_released(
    letter: DeadLetter, record: Record | None, predictor: Predictor | None
) -> sending.Verdict:
    """Return what a redrive would do that may release the letter's key."""
    if letter.queue not in READERS and letter.queue != PRODUCER_DLQ:
        return sending.Verdict(False, _NO_TARGET)
    return verdict_on(letter, record, predictor, release=True)


def is_uncertain(verdict: sending.Verdict) -> bool:
    """Return whether a letter that goes may fail again."""
    return verdict.goes and verdict.why in (RUNS, RELEASED, PUBLISHED)


def _redriven(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as a redrive sends it.

    The name of a replay that delivered it is left out: a consumer acknowledges a replay of an event
    whose letter is in the queue, but a redrive takes the letter out.
    """
    return {name: value for name, value in event.items() if name != "replay-name"}


def _verdict_of_bus(event: Mapping[str, Any]) -> sending.Verdict:
    try:
        entry = entry_in(event)
    except FieldError as error:
        return sending.Verdict(False, f"its {error.field} cannot be read")
    if entry.size >= TOO_LARGE or json_object(entry.detail) is None:
        return sending.Verdict(False, "the bus would refuse it")
    return sending.Verdict(True, PUBLISHED)


def _verdict_of_consumer(
    event: Mapping[str, Any], record: Record | None, predictor: Predictor, *, release: bool
) -> sending.Verdict:
    if record is None:
        predictor.start()
    else:
        # A consumer would acknowledge a letter whose key an attempt holds, and which may not come
        # again. Clocks differ.
        lease_ms = None if record.lease_ms is None else record.lease_ms + _CLOCKS_DIFFER_MS
        record = record._replace(lease_ms=lease_ms)
        predictor.start(record)
    seen = predictor.observe(event)
    if seen.outcome in _GOES:
        return sending.Verdict(True, _GOES[seen.outcome])
    may_be_released = record is not None and seen.outcome != observation.BUSY
    if record is not None and may_be_released and _would_go(event, record, predictor):
        return _verdict_on_release(record, release=release)
    return sending.Verdict(False, _STAYS.get(seen.reason or "", _HELD_BY_ANOTHER))


def _would_go(event: Mapping[str, Any], record: Record, predictor: Predictor) -> bool:
    """Return whether a consumer would take an event whose key was released."""
    predictor.start(released(record, "", epoch_ms(), DAY))
    return predictor.observe(event).outcome in _GOES


def _verdict_on_release(record: Record, *, release: bool) -> sending.Verdict:
    if release:
        return sending.Verdict(True, RELEASED, releases=True)
    problem = "key is quarantined"
    if has_crashed(record, epoch_ms()):
        problem = "attempts are used up"
    return sending.Verdict(False, f"its {problem}: add --release when the cause is fixed")


@acts("redrive", status=lambda done: 0 if done.succeeded else 1)
def redrive(
    session: Session,
    name: str,
    /,
    *,
    key: str | None = None,
    reason: str | None = None,
    group: str | None = None,
    letter: str | None = None,
    limit: Annotated[int | None, POSITIVE] = None,
    rate: Annotated[float | None, RATE] = None,
    release: bool = False,
    since: Moment | None = None,
    until: Moment | None = None,
    no_canary: bool = False,
    wait: Span = WAIT,
) -> Plan:
    """Send dead letters to the target that they were meant for. Other targets do not receive them.

    Letters that would only return stay in the queue. One letter of each group goes first, and up
    to two others if it fails again. The rest of the group follows only if the consumer has
    completed one of them.

    Args:
        name: A consumer, such as payment: its two queues; bus; or the logical id of one queue.
        key: Only the letters of this key, CONSUMER#ID.
        reason: Only letters with this reason.
        group: Only letters of this group; `carride letters` shows the groups.
        letter: Only the letter whose id begins so; `carride letters` shows the beginnings.
        limit: The most letters; the oldest go.
        rate: The most letters a second.
        release: Release quarantined keys and keys whose attempts are used up; their cause is fixed.
        since: Only letters that were sent to the queue since this time.
        until: Only letters that were sent to the queue before this time.
        no_canary: Send all letters at once, without trying some of each group first.
        wait: How long to wait for the outcome of letters that are tried.
    """
    stack = session.stack
    queues_named(stack, name)  # which refuses another name
    session.say(f"reading the letters of {name}, and the records of their keys")
    planned = plan_redrive(
        stack,
        name,
        key=key,
        reason=reason,
        group=group,
        id=letter,
        limit=limit,
        release=release,
        since=since,
        until=until,
    )
    the_redrive = Redrive(
        stack, planned, canary=not no_canary, rate=rate, wait=wait, report=session.say
    )
    return Plan(
        planned,
        the_redrive.carry_out,
        (stack,),
        exact=planned.exact(),
        is_empty=not any(each.verdict.goes for each in planned.letters),
        must_be_shown=release,
    )


def plan_redrive(
    stack: StackRef,
    name: str,
    *,
    limit: int | None = None,
    release: bool = False,
    since: datetime | None = None,
    until: datetime | None = None,
    **chosen: str | None,
) -> RedrivePlan:
    """Return what a redrive would do with each letter, and change nothing.

    ``chosen`` are fields of letters: key, reason, group, or the beginning of an id. ``since`` and
    ``until`` bound the time at which letters were sent to the queue.

    Raises:
        OperatorError: no letter was chosen, or more than one by the beginning of an id.
    """
    queues = queues_named(stack, name)
    target = target_of(stack, queues[0])
    hidden = sum(waiting(stack.client("sqs"), url_of(stack, queue)) for queue in queues)
    predictor = predictor_of(stack, queues[0])
    selected = list[Planned]()
    others = list[DeadLetter]()
    for queue in queues:
        for found in received_from(stack, queue):
            if _is_between(found.letter, since, until) and _is_chosen(found.letter, chosen):
                selected.append(_judged(found, predictor, release=release))
            else:
                others.append(found.letter)
    if others and not selected:
        groups = sorted({f"{letter.group} ({letter.reason})" for letter in others})
        raise OperatorError(f"{name} has no such letter: its groups are {', '.join(groups)}")
    if chosen.get("id") and len(selected) > 1:
        ids = ", ".join(each.letter.id for each in selected)
        raise OperatorError(f"{chosen['id']} begins more than one id: {ids}")
    selected.sort(key=lambda each: each.letter.sent)
    taken = tuple(selected[:limit])
    left_out = len(others) + len(selected) - len(taken)
    return RedrivePlan(name, target, taken, left_out, hidden, release, tuple(queues))


def _judged(found: Received, predictor: Predictor | None, *, release: bool) -> Planned:
    """Return a letter without its event, and what a redrive would do with it now."""
    letter = found.letter
    return Planned(
        letter=replace(letter, event=None),
        verdict=verdict_on(letter, found.record, predictor, release=release),
        revision=sending.revision_of(found.record),
        event=_hash_of(letter.event),
    )


def _hash_of(event: object) -> str:
    text = _json(event)
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def _is_between(letter: DeadLetter, since: datetime | None, until: datetime | None) -> bool:
    """Return whether a letter was sent in a time; None is no bound."""
    return (since is None or letter.sent >= since) and (until is None or letter.sent < until)


def _is_chosen(letter: DeadLetter, chosen: Mapping[str, str | None]) -> bool:
    """Return whether a letter has the values that were asked for; None asks for none."""
    for name, wanted in chosen.items():
        if wanted is not None and not _has(letter, name, wanted):
            return False
    return True


def _has(letter: DeadLetter, name: str, wanted: str) -> bool:
    value = getattr(letter, name)
    if name == "id":
        return str(value).startswith(wanted)
    return bool(value == wanted)


def predictor_of(stack: StackRef, queue: str) -> Predictor | None:
    """Return the predictor of the consumer that a queue belongs to; None for the bus."""
    if queue not in READERS:
        return None
    return Predictor(stack, READERS[queue])


class Redrive(sending.Sending[Planned, Received]):
    """One redrive.

    Args:
        stack: the stack.
        plan: what is to be done.
        canary: whether to try letters of each group first, and send the others only if the consumer
            has completed one.
        rate: the most letters a second.
        wait: how long the outcome of letters that are tried may take.
        report: takes the progress, in words.
        sleep: waits, in seconds.
    """

    def __init__(
        self,
        stack: StackRef,
        plan: RedrivePlan,
        *,
        canary: bool = True,
        rate: float | None = None,
        wait: timedelta = WAIT,
        report: Callable[[Any], object] = print,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(plan.letters, rate=rate, report=report, sleep=sleep)
        self._stack = stack
        self._plan = plan
        self._canary = canary
        self._wait_s = wait.total_seconds()
        self._began = datetime.now(UTC)
        self._tried: dict[str, Tried] = {}
        self._released_keys = set[str]()
        self._predictor = predictor_of(stack, plan.queues[0])
        transport = BotocoreTransport(stack.client("dynamodb"), _ANSWER_SECONDS)
        self._stores = {
            table: DynamoDBStore(stack.outputs[f"{table}Name"], transport=transport)
            for table in RECORD_TABLES
        }
        self._reported = time.monotonic()
        # A receive returns ten messages, and the last of them must still be hidden when its turn
        # comes.
        self._hidden_s = max(HIDDEN_SECONDS, math.ceil(20 * self.pause_s))

    def carry_out(self) -> Redriven:
        """Send the letters of the plan to their target.

        If it ends early, the error says how far it has come.
        """
        try:
            self.send_all(tries_one=self._canary)
        except (BotoCoreError, ClientError, StoreError) as error:
            raise OperatorError(f"{self.state}. It ended early: {error}") from error
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(self.state) from error
        return Redriven(
            planned=self.planned,
            sent=self.sent,
            stayed=self.stayed_in_all(),
            gone=len(self.unsent) - self.held_back(),
            first=self.first(),
            tried=tuple(self._tried.values()),
            released=len(self._released_keys),
        )

    @property
    def state(self) -> str:
        """How far it has come, in words."""
        return self.account(self._plan.queue, self._hidden_s)

    def may_fail(self, planned: Planned) -> bool:
        """Return whether a letter may fail again; otherwise it is not worth a trial."""
        return is_uncertain(planned.verdict)

    def read(self) -> Generator[Received]:
        """Receive the letters of the queues, each with its record."""
        for queue in self._plan.queues:
            letters = received_from(self._stack, queue, at_once=1, hidden_s=self._hidden_s)
            with closing(letters):
                yield from letters

    def prepare(self, found: Received, planned: Planned) -> sending.Ready:
        """Judge a letter again, and release its key if that is due."""
        judged = _judged(found, self._predictor, release=self._plan.release)
        if judged.verdict.goes and judged.event != planned.event:
            return sending.Ready(sending.CHANGED, found.record)
        problem = self.why_it_stays(planned, judged.verdict, judged.revision)
        if problem is not None or not judged.verdict.releases or found.record is None:
            return sending.Ready(problem, found.record)
        return self._released(found.record)

    def _released(self, record: Record) -> sending.Ready:
        """Release a key if its record is still as it was read."""
        store = self._stores[records_of(record.key)]
        try:
            # A verdict that releases a failed key has found that its attempts are used up.
            change = plan_release(record, explain(record, datetime.now(UTC)), used_up=True)
        except ChangeRefusedError:
            return sending.Ready(sending.CHANGED, record)
        if not carry_out(store, change):
            return sending.Ready(sending.CHANGED, record)
        self._released_keys.add(record.key)
        return sending.Ready(None, store.read(record.key))

    def hand_over(
        self,
        found: Received,
        ready: sending.Ready,  # noqa: ARG002 - no target of CarRide's tells how it went
    ) -> sending.TargetAnswer:
        """Send a letter. A consumer's answer is not known yet; the bus has none."""
        problem = send_to(self._stack, self._plan.target, _redriven(found.letter.event))
        if problem is not None:
            return sending.TargetAnswer(sending.Trial.FAILED, problem, is_taken=False)
        trial = sending.Trial.UNKNOWN if found.letter.consumer else sending.Trial.SUCCEEDED
        return sending.TargetAnswer(trial, "it was sent", is_taken=True)

    def delete(self, found: Received) -> None:
        """Delete a letter that was sent, and count that it was."""
        _count(self._stack, found.letter)
        url = url_of(self._stack, found.letter.queue)
        self._stack.client("sqs").delete_message(QueueUrl=url, ReceiptHandle=found.receipt)

    def wait(self, waiting: dict[str, tuple[Received, sending.Ready]]) -> None:
        """Wait until the outcome of each letter is known, or the time is over."""
        letters = counted(len(waiting), "letter")
        self.report(f"waiting for the outcome of {letters}, up to {self._wait_s:.0f} s")
        end = time.monotonic() + self._wait_s
        (some, _), *_others = waiting.values()
        returned = _Returned(self._stack, some.letter.consumer, self._began)
        while waiting:
            is_over = time.monotonic() >= end
            back = returned.look(again=is_over)
            for group, (found, ready) in list(waiting.items()):
                letter = found.letter
                outcome = self._outcome(
                    letter, ready.record, back.get(letter.fact), is_over=is_over
                )
                if outcome is not None:
                    self.note(letter, outcome)
                    del waiting[group]
            if waiting:
                self._progress(f"outcomes that are not known yet: {len(waiting)}")
                self.sleep(_POLL_SECONDS)

    def _outcome(
        self,
        letter: DeadLetter,
        before: Record | None,
        back: DeadLetter | None,
        *,
        is_over: bool,
    ) -> sending.TrialOutcome | None:
        """Return how a letter went, by its record or as it is ``back``; None while unknown."""
        key = letter.key or ""
        record = self._stores[records_of(key)].read(key)
        if record is not None and record.status == COMPLETED:
            return sending.TrialOutcome(sending.Trial.SUCCEEDED, "completed")
        # What used up no attempt, as in an outage, is delivered again.
        has_ended = record != before and not sending.is_postponed(record, before)
        if record is not None and has_ended and record.status in (FAILED, QUARANTINED):
            again = "it failed again, and comes back when its attempts are used up"
            return sending.TrialOutcome(sending.Trial.FAILED, f"{again}: {record.error}")
        if back is not None:
            says = f"it is back in {back.queue}: {back.reason} {back.error}"
            return sending.TrialOutcome(sending.Trial.FAILED, says.rstrip())
        if is_over:
            silent = f"{letter.consumer} has not answered"
            return sending.TrialOutcome(
                sending.Trial.UNKNOWN, f"unknown so far: {silent}, and {_UNKNOWN}"
            )
        return None

    def note(self, letter: Any, outcome: sending.TrialOutcome) -> None:
        """Keep and report how a letter went that was tried."""
        super().note(letter, outcome)
        self._tried[letter.id] = Tried(
            letter.group,
            letter.key,
            letter.type,
            letter.ride,
            outcome.trial,
            outcome.says,
            letter.fact,
        )

    def progressed(self) -> None:
        """Report now and then how many letters are sent."""
        self._progress(f"letters that are sent: {self.sent:,} of {self.planned:,}")

    def _progress(self, says: str) -> None:
        if time.monotonic() - self._reported >= _REPORT_SECONDS:
            self.report(says)
            self._reported = time.monotonic()


class _Returned:
    """Looks for letters that have come back to the queue of a consumer."""

    def __init__(self, stack: StackRef, consumer: str | None, since: datetime) -> None:
        self._stack = stack
        self._since = since
        self._queue = next(name for name, each in READERS.items() if each.name == consumer)
        self._seen = -1

    def look(self, *, again: bool) -> dict[str | None, DeadLetter]:
        """Return them by fact, or none if the queue is as long as before, unless ``again``."""
        url = url_of(self._stack, self._queue)
        count = waiting(self._stack.client("sqs"), url, taken=False, visible=True)
        is_unchanged = count == self._seen
        self._seen = count
        if is_unchanged and not again:
            return {}
        letters = [found.letter for found in received_from(self._stack, self._queue)]
        return {letter.fact: letter for letter in letters if letter.sent >= self._since}


def _count(stack: StackRef, letter: DeadLetter) -> None:
    """Count that a letter was redriven, and say when: the audit calls its event in flight then."""
    key = count_key(letter)
    if key is None:
        return
    now = datetime.now(UTC)
    end = now + _COUNTED_FOR
    stack.client("dynamodb").update_item(
        TableName=stack.outputs[f"{MARKS}Name"],
        Key={"id": {"S": key}},
        UpdateExpression="SET expiryTimestamp = :end, redrivenAt = :now ADD redriven :one",
        ExpressionAttributeValues={
            ":now": {"N": str(to_ms(now))},
            ":end": {"N": str(int(end.timestamp()))},
            ":one": {"N": "1"},
        },
    )


def send_to(stack: StackRef, arn: str, event: Mapping[str, Any]) -> str | None:
    """Send an event to a target, and return why it was refused, or None."""
    service = arn.split(":")[2]
    try:
        if service == "lambda":
            functions = stack.client("lambda")
            functions.invoke(FunctionName=arn, InvocationType="Event", Payload=_json(event))
        elif service == "sqs":
            sqs = stack.client("sqs")
            url = sqs.get_queue_url(QueueName=arn.rpartition(":")[2])["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody=_json(event))
        else:
            return _publish(stack, event)
    except ClientError as error:
        return f"refused: {error.response['Error']['Code']}"
    return None


def _publish(stack: StackRef, event: Mapping[str, Any]) -> str | None:
    """Publish an event on the bus, and return why it was refused, or None."""
    bus = stack.outputs["CarRideBusName"]
    dlq = stack.outputs[f"{PRODUCER_DLQ}Url"]
    publisher = Publisher(stack.client("events"), stack.client("sqs"), bus, dlq)
    # `put` makes no second message.
    (receipt,) = publisher.put([entry_in(event)], lambda: math.inf)
    if receipt.outcome is Outcome.PUBLISHED:
        return None
    return f"refused: {receipt.code}"


def entry_in(event: Mapping[str, Any]) -> BusEntry:
    """Return the entry in a dead letter of the publisher.

    Raises:
        FieldError: a field is missing, or has another form.
    """
    envelope = shaped(event, _Envelope)
    detail = envelope.detail
    return BusEntry(
        source=envelope.source,
        detail_type=envelope.detail_type,
        detail=detail if isinstance(detail, str) else _json(detail),
        time=_in_utc(envelope.time),
        resources=envelope.resources,
    )


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError as error:
        raise FieldError("time", "not in the calendar of UTC") from error


def _json(event: object) -> str:
    """Return compact JSON in UTF-8, with the two characters that SQS refuses as escapes."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")
