"""Sends dead letters to the target that they were meant for, and releases quarantined keys first, if asked.

A message is deleted after its target accepted the event. If the command is interrupted in between,
the event is sent again, and consumers recognise it. The preview and the redrive ask the same
`verdict_on` about each letter.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct
from msgspec.structs import replace

from carride.decoding import FieldError, shaped
from carride.entry import TOO_LARGE, BusEntry
from carride.publisher import Outcome, Publisher
from carride_idempotency import DynamoDBStore, StoreError, observation
from carride_idempotency import release as release_record
from carride_idempotency.clock import epoch_ms
from carride_idempotency.dead_letters import BEYOND_WINDOW, CONTRACT, PAYLOAD_MISMATCH
from carride_idempotency.policy import DAY
from carride_idempotency.record import COMPLETED, FAILED, QUARANTINED, Record
from carride_idempotency.recovery import has_crashed, released
from carride_idempotency.stores.transport import BotocoreTransport
from ops.audit.queues import HIDDEN_SECONDS, json_object, waiting
from ops.dead_letters import READERS, DeadLetter, Received, count_key, received_from, url_of
from ops.prediction import Predictor
from ops.stack import OperatorError, StackRef
from ops.verbs import POSITIVE, Plan, Session, Span, acts

PRODUCER_DLQ: Final = "ProducerDlq"
WAIT: Final = timedelta(minutes=5)
"""How long the outcome of the first letters may take. Lambda gives up an event some four minutes
after it came."""
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
HELD: Final = "the first letter of its group did not succeed"
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
_HELD_BY_ANOTHER: Final = (
    "an attempt may be running: wait until its lease has been over for a minute"
)
_CLOCKS_DIFFER_MS: Final = 60_000


class Verdict(NamedTuple):
    """What a redrive would do with a letter, what its target would do then, and whether its key is released first."""

    goes: bool
    why: str
    releases: bool = False

    @property
    def is_uncertain(self) -> bool:
        """Whether it may fail again."""
        return self.goes and self.why in (RUNS, RELEASED, PUBLISHED)


class Planned(NamedTuple):
    """A letter, without its event, and what a redrive would do with it."""

    letter: DeadLetter
    verdict: Verdict


class RedrivePlan(NamedTuple):
    """What a redrive would do."""

    queue: str
    target: str
    letters: tuple[Planned, ...]
    """The selected letters, the oldest first. A redrive sends no others."""
    others: int
    """DeadLetters that were not selected."""
    hidden: int
    """Messages that another reader hides."""
    release: bool


class Redriven(NamedTuple):
    """What a redrive has done."""

    planned: int
    """DeadLetters that were to go."""
    sent: int
    stayed: Mapping[str, int]
    """DeadLetters that are still in the queue, by reason."""
    gone: int
    """Planned letters that were no longer in the queue, or hidden by another reader."""
    first: Mapping[str, bool | None]
    """Whether the first letter of each group succeeded; None if that is still unknown."""

    @property
    def succeeded(self) -> bool:
        """Whether all letters that were to go were sent, and no first letter failed again."""
        return self.sent == self.planned and all(self.first.values())


class _Envelope(Struct, rename={"detail_type": "detail-type"}):
    source: str
    detail_type: str
    time: datetime
    detail: Any
    resources: tuple[str, ...] = ()


def target_of(stack: StackRef, queue: str) -> str:
    """Return the ARN of the target that a queue's messages were meant for."""
    bus = stack.outputs["CarRideBusName"]
    if queue == PRODUCER_DLQ:
        return str(stack.client("events").describe_event_bus(Name=bus)["Arn"])
    if queue not in READERS:
        known = ", ".join([*READERS, PRODUCER_DLQ])
        raise OperatorError(
            f"this command knows {known}; the page of {queue} in docs/runbooks says what to do"
        )
    rule = stack.named("AWS::Events::Rule")[f"{READERS[queue].resources}Rule"]
    (target,) = stack.client("events").list_targets_by_rule(Rule=rule, EventBusName=bus)["Targets"]
    return str(target["Arn"])


def verdict_on(
    letter: DeadLetter, record: Record | None, predictor: Predictor | None, *, release: bool = False
) -> Verdict:
    """Return what a redrive would do with a letter whose key has this record; the bus has no predictor."""
    event = letter.event
    if not isinstance(event, Mapping) or event.get("detail") is None or "detailBytes" in event:
        return Verdict(False, "the event is not in it")
    if predictor is None:
        try:
            entry = entry_in(event)
        except FieldError as error:
            return Verdict(False, f"its {error.field} cannot be read")
        refused = entry.size >= TOO_LARGE or json_object(entry.detail) is None
        return Verdict(False, "the bus would refuse it") if refused else Verdict(True, PUBLISHED)
    if record is not None and record.lease_ms is not None:
        # A consumer would acknowledge a letter whose key an attempt holds, which may not come
        # again. Clocks differ.
        record = record._replace(lease_ms=record.lease_ms + _CLOCKS_DIFFER_MS)
    predictor.start(*filter(None, [record]))
    seen = predictor.observe(event)
    if seen.outcome in _GOES:
        return Verdict(True, _GOES[seen.outcome])
    if record is not None and seen.outcome != observation.BUSY:
        predictor.start(released(record, "", epoch_ms(), DAY))
        if predictor.observe(event).outcome in _GOES:
            problem = (
                "attempts are used up" if has_crashed(record, epoch_ms()) else "key is quarantined"
            )
            add = f"its {problem}: add --release when the cause is fixed"
            return Verdict(True, RELEASED, releases=True) if release else Verdict(False, add)
    return Verdict(False, _STAYS.get(seen.reason or "", _HELD_BY_ANOTHER))


@acts("redrive", status=lambda done: 0 if done.succeeded else 1)
def redrive(
    session: Session,
    queue: str,
    /,
    *,
    key: str | None = None,
    reason: str | None = None,
    group: str | None = None,
    limit: Annotated[int | None, POSITIVE] = None,
    rate: float | None = None,
    release: bool = False,
    no_canary: bool = False,
    wait: Span = WAIT,
) -> Plan:
    """Send dead letters to the target that they were meant for. Other targets do not receive them.

    DeadLetters that would only return stay in the queue. One letter of each group goes first, and the
    others of the group only if the consumer has completed it.

    Args:
        queue: Logical id of the queue: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …
        key: Only the letters of this key, CONSUMER#ID.
        reason: Only letters with this reason.
        group: Only letters of this group; `carride letters` shows the groups.
        limit: The most letters; the oldest go.
        rate: The most letters a second.
        release: Release quarantined keys and keys whose attempts are used up; their cause is fixed.
        no_canary: Send all letters at once, without waiting for the first of each group.
        wait: How long to wait for the outcome of the first letters.
    """
    if (limit is not None and limit < 1) or (rate is not None and rate <= 0):
        raise OperatorError("--limit and --rate have to be more than 0")
    stack = session.stack
    planned = plan_redrive(
        stack, queue, key=key, reason=reason, group=group, limit=limit, release=release
    )
    the_redrive = Redrive(
        stack, planned, canary=not no_canary, rate=rate, wait=wait, report=session.say
    )
    return Plan(planned, the_redrive.carry_out, (stack,))


def plan_redrive(
    stack: StackRef,
    queue: str,
    *,
    limit: int | None = None,
    release: bool = False,
    **chosen: str | None,
) -> RedrivePlan:
    """Return what a redrive would do with each letter, and change nothing. ``chosen`` are a key, reason or group."""
    url, target = url_of(stack, queue), target_of(stack, queue)
    hidden, others, found = waiting(stack.client("sqs"), url), list[str](), list[Planned]()
    predictor = predictor_of(stack, queue)
    for letter, record, _ in received_from(stack, queue):
        if all(want in (None, getattr(letter, name)) for name, want in chosen.items()):
            verdict = verdict_on(letter, record, predictor, release=release)
            found.append(Planned(replace(letter, event=None), verdict))
        else:
            others.append(f"{letter.group} ({letter.reason})")
    if others and not found:
        raise OperatorError(
            f"{queue} has no such letter: its groups are {', '.join(sorted({*others}))}"
        )
    found.sort(key=lambda each: each.letter.sent)
    taken = tuple(found[:limit])
    return RedrivePlan(queue, target, taken, len(others) + len(found) - len(taken), hidden, release)


def predictor_of(stack: StackRef, queue: str) -> Predictor | None:
    """Return the predictor of the consumer for which the messages of a queue were meant; None for the bus."""
    return Predictor(stack, READERS[queue]) if queue in READERS else None


@dataclass
class Redrive:
    """One redrive. DeadLetters that would return stay in the queue, and keep their age."""

    stack: StackRef
    plan: RedrivePlan
    canary: bool = True
    """Whether to send one letter of each group first, and the others only if the consumer completed
    it."""
    rate: float | None = None
    """The most letters a second."""
    wait: timedelta = WAIT
    """How long the outcome of the first letters may take."""
    report: Callable[[str], None] = print
    """Takes the progress, in words."""
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        """Look at the plan."""
        self.left = {each.letter.id: each for each in self.plan.letters if each.verdict.goes}
        self.going, self.sent, self.began = len(self.left), 0, datetime.now(UTC)
        self.stayed = Counter(
            each.verdict.why for each in self.plan.letters if not each.verdict.goes
        )
        self.first: dict[str, bool | None] = {}
        transport = BotocoreTransport(self.stack.client("dynamodb"), _ANSWER_SECONDS)
        self.store = DynamoDBStore(self.stack.outputs["IdempotencyTableName"], transport=transport)
        self.reported, self.predictor = time.monotonic(), predictor_of(self.stack, self.plan.queue)
        self.pause_s = 1 / self.rate if self.rate else 0.0
        # A receive returns ten messages, and the last of them must still be hidden when its turn
        # comes.
        self.hidden_s = max(HIDDEN_SECONDS, math.ceil(20 * self.pause_s))

    def carry_out(self) -> Redriven:
        """Send the letters of the plan to their target. If it ends early, the error says how far it has come."""
        try:
            if self.canary:
                self._send_first()
            # Then the letters of all groups whose first letter did not fail.
            with closing(
                self._received(
                    id_ for id_, each in self.left.items() if not self._is_held(each.letter)
                )
            ) as rest:
                for found in rest:
                    self._send(found)
        except (BotoCoreError, ClientError, StoreError) as error:
            raise OperatorError(f"{self.state}. It ended early: {error}") from error
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(self.state) from error
        held = sum(self._is_held(each.letter) for each in self.left.values())
        stayed = self.stayed + Counter({HELD: held})
        return Redriven(self.going, self.sent, dict(stayed), len(self.left) - held, self.first)

    @property
    def state(self) -> str:
        """How far it has come, in words."""
        return (
            f"{self.sent} of {self.going} letters were sent; the others are in {self.plan.queue}, where some may be "
            f"hidden for {self.hidden_s} seconds. Run the same command again to continue: consumers recognise a letter "
            "that is sent twice"
        )

    def _is_held(self, letter: DeadLetter) -> bool:
        """Return whether the first letter of its group did not succeed."""
        return not self.first.get(letter.group, True)

    def _send_first(self) -> None:
        """Send one letter of each group that runs, and wait for their outcomes."""
        runs = {
            id_: each.letter.group for id_, each in self.left.items() if each.verdict.is_uncertain
        }
        pending: dict[str, tuple[DeadLetter, Record | None]] = {}
        with closing(self._received(runs)) as messages:
            for found in messages:
                group = found.letter.group
                if group not in self.first:
                    why, record = self._send(found)
                    self._note(group, why is None, why or "it was sent")
                    if why is None and found.letter.consumer:
                        pending[group] = found.letter, record
                if len(self.first) == len(set(runs.values())):
                    break
        if pending:
            self.report(
                f"waiting for the outcome of {len(pending)} letters, up to {self.wait.total_seconds():.0f} s"
            )
            self._wait(pending)

    def _received(self, ids: Iterable[str]) -> Generator[Received]:
        """Receive the messages with these ids, and show all others again."""
        wanted = set(ids)
        with closing(
            received_from(self.stack, self.plan.queue, at_once=1, hidden_s=self.hidden_s)
        ) as received:
            while wanted and (found := next(received, None)):
                if found.letter.id in wanted:
                    wanted.discard(found.letter.id)
                    yield found

    def _send(self, found: Received) -> tuple[str | None, Record | None]:
        """Send a letter; return why it stays, or None, and the record that its delivery finds."""
        letter, record, receipt = found
        (goes, why, releases), key = (
            verdict_on(letter, record, self.predictor, release=self.plan.release),
            letter.key or "",
        )
        if releases:
            goes, why = (
                release_record(self.store, key),
                "its record changed meanwhile: run the command again",
            )
            record = self.store.read(key)
        problem = send_to(self.stack, self.plan.target, letter.event) if goes else why
        del self.left[letter.id]
        if problem is None:
            _count(self.stack, letter)
            self.stack.client("sqs").delete_message(
                QueueUrl=url_of(self.stack, letter.queue), ReceiptHandle=receipt
            )
            self.sent += 1
            self.sleep(self.pause_s)
        else:
            self.stayed[problem] += 1
        self._progress(f"{self.sent} of {self.going} letters are sent")
        return problem, record

    def _wait(self, pending: dict[str, tuple[DeadLetter, Record | None]]) -> None:
        """Wait until the record of each letter says how it went, or the letter is back in the consumer's queue."""
        end, (first, _) = time.monotonic() + self.wait.total_seconds(), next(iter(pending.values()))
        queue = next(name for name, each in READERS.items() if each.name == first.consumer)
        sqs, url, seen_there = self.stack.client("sqs"), url_of(self.stack, queue), -1
        while pending:
            is_over, there = time.monotonic() >= end, waiting(sqs, url, taken=False, visible=True)
            back: dict[str | None, DeadLetter] = {}
            if is_over or there != seen_there:
                found = (each.letter for each in received_from(self.stack, queue))
                back = {letter.fact: letter for letter in found if letter.sent >= self.began}
            seen_there = there
            for group, (letter, seen) in list(pending.items()):
                outcome = _outcome(self.store.read(letter.key or ""), seen)
                if outcome is None and (again := back.get(letter.fact)):
                    outcome = False, f"it is back in {queue}: {again.reason} {again.error}".rstrip()
                elif outcome is None and is_over:
                    outcome = (
                        None,
                        f"unknown so far: {letter.consumer} has not answered, and {_UNKNOWN}",
                    )
                if outcome is not None:
                    self._note(group, *outcome)
                    del pending[group]
            if pending:
                self._progress(f"outcomes that are not known yet: {len(pending)}")
                self.sleep(_POLL_SECONDS)

    def _note(self, group: str, succeeded: bool | None, outcome: str) -> None:
        self.first[group] = succeeded
        self.report(f"group {group}: {outcome}")

    def _progress(self, what: str) -> None:
        if time.monotonic() - self.reported >= _REPORT_SECONDS:
            self.report(what)
            self.reported = time.monotonic()


def _outcome(record: Record | None, seen: Record | None) -> tuple[bool | None, str] | None:
    """Return how a delivery ended that found the record ``seen``; None while it is not known."""
    if record is not None and record.status == COMPLETED:
        return True, "completed"
    if record is None or record == seen or record.status not in (FAILED, QUARANTINED):
        return None
    return False, f"it failed again, and comes back when its attempts are used up: {record.error}"


def _count(stack: StackRef, letter: DeadLetter) -> None:
    """Count that a letter was redriven."""
    end = str(int((datetime.now(UTC) + _COUNTED_FOR).timestamp()))
    if key := count_key(letter):
        stack.client("dynamodb").update_item(
            TableName=stack.outputs["IdempotencyTableName"],
            Key={"idempotencyKey": {"S": key}},
            UpdateExpression="SET expiryTimestamp = :end ADD redriven :one",
            ExpressionAttributeValues={":end": {"N": end}, ":one": {"N": "1"}},
        )


def send_to(stack: StackRef, arn: str, event: Mapping[str, Any]) -> str | None:
    """Send an event to a target, and return why it was refused, or None."""
    service, name = arn.split(":")[2], arn.rsplit(":", 1)[-1]
    sqs = stack.client("sqs")
    try:
        if service == "lambda":
            stack.client("lambda").invoke(
                FunctionName=arn, InvocationType="Event", Payload=_json(event)
            )
        elif service == "sqs":
            sqs.send_message(
                QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"], MessageBody=_json(event)
            )
        else:
            bus, dlq = stack.outputs["CarRideBusName"], stack.outputs[f"{PRODUCER_DLQ}Url"]
            publisher = Publisher(stack.client("events"), sqs, bus, dlq)
            # `put` makes no second message.
            (receipt,) = publisher.put([entry_in(event)], lambda: math.inf)
            return None if receipt.outcome is Outcome.PUBLISHED else f"refused: {receipt.code}"
    except ClientError as error:
        return f"refused: {error.response['Error']['Code']}"
    return None


def entry_in(event: Mapping[str, Any]) -> BusEntry:
    """Return the entry in a dead letter of the publisher; a FieldError names what is missing or has another form."""
    envelope = shaped(event, _Envelope)
    try:
        time = (
            envelope.time.astimezone(UTC)
            if envelope.time.tzinfo
            else envelope.time.replace(tzinfo=UTC)
        )
    except OverflowError as error:
        raise FieldError("time", "not in the calendar of UTC") from error
    return BusEntry(
        source=envelope.source,
        detail_type=envelope.detail_type,
        detail=envelope.detail if isinstance(envelope.detail, str) else _json(envelope.detail),
        time=time,
        resources=envelope.resources,
    )


def _json(event: object) -> str:
    """Return compact JSON in UTF-8, with the two characters that SQS refuses as escapes."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")
