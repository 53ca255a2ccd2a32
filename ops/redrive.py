"""Sends dead letters to the target that they were meant for, and releases keys if asked.

The library redrives; this is where it works: the queues of a stack, the records and the targets of
its consumers, and its bus.
"""

from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from carride_idempotency.clock import to_ms
from carride_idempotency.operators.redriving import (
    WAIT_S,
    LetterChoice,
    Redrive,
    RedriveError,
    Redriven,
    RedrivePlan,
    plan_redrive,
)
from carride_idempotency.operators.site import Received, Site, TargetAnswer, Trial, Verdict
from ops.audit.evidence import CONSUMERS, MARKS
from ops.audit.queues import peek, waiting
from ops.bus import send_to
from ops.dead_letters import (
    BUS,
    PRODUCER_DLQ,
    READERS,
    DeadLetter,
    count_key,
    letter_of,
    name_of,
    queues_named,
    received_from,
    url_of,
)
from ops.records import StackRecords
from ops.stack import OperatorError, StackRef
from ops.verbs import POSITIVE, RATE, Moment, Plan, Session, Span, acts
from ops.verdicts import as_sent, predictor_of, verdict_by_code

_WAIT: Final = timedelta(seconds=WAIT_S)
_COUNTED_FOR: Final = timedelta(days=30)


class StackSite(Site[DeadLetter]):
    """The queues of a consumer, or of the bus, in a stack.

    Args:
        stack: the stack.
        name: a consumer, which has two queues, the bus, or the logical id of one queue.

    Raises:
        OperatorError: there is no such name, or no target is known for its queues.
    """

    def __init__(self, stack: StackRef, name: str) -> None:
        self.name = name
        self.queues = tuple(queues_named(stack, name))
        self.target = target_of(stack, self.queues[0])
        # A function that cannot be invoked, and one that cannot start, send to different queues.
        self._return_to = tuple(queues_named(stack, name_of(self.queues[0])))
        self._stack = stack
        self._predictor = predictor_of(stack, self.queues[0])
        self.records = StackRecords(stack)

    def letters(
        self, ids: Collection[str] | None = None, hidden_s: int | None = None
    ) -> Generator[Received[DeadLetter]]:
        """Receive the letters of the queues, each with its record."""
        how: dict[str, Any] = {"ids": ids}
        if hidden_s is not None:
            how |= {"at_once": 1, "hidden_s": hidden_s}
        for queue in self.queues:
            with closing(received_from(self._stack, queue, **how)) as letters:
                yield from letters

    def count(self, *, hidden: bool) -> int:
        """Return about how many letters are hidden by other readers, or wait where they return."""
        sqs = self._stack.client("sqs")
        queues = self.queues if hidden else self._return_to
        urls = [url_of(self._stack, queue) for queue in queues]
        return sum(waiting(sqs, url, taken=hidden, visible=not hidden) for url in urls)

    def sent_since(self, start_ms: int) -> Iterator[DeadLetter]:
        """Yield the letters that were sent since a time to a queue where letters return."""
        sqs = self._stack.client("sqs")
        for queue in self._return_to:
            with closing(peek(sqs, url_of(self._stack, queue))) as messages:
                for message in messages:
                    letter = letter_of(queue, message)
                    if to_ms(letter.sent) >= start_ms:
                        yield letter

    def verdict(
        self,
        found: Received[DeadLetter],
        now_ms: int,  # noqa: ARG002 - the consumer's code has its own clock
        *,
        releases: bool,
    ) -> Verdict:
        """Return what the consumer's own code would do with a letter, or the bus."""
        return verdict_by_code(found.letter, found.record, self._predictor, release=releases)

    def send(self, letter: DeadLetter) -> TargetAnswer:
        """Send a letter. A consumer's answer is not known yet; the bus has none."""
        problem = send_to(self._stack, self.target, as_sent(letter.event))
        if problem is not None:
            return TargetAnswer(Trial.FAILED, problem, is_taken=False)
        trial = Trial.UNKNOWN if letter.consumer else Trial.SUCCEEDED
        return TargetAnswer(trial, "it was sent", is_taken=True)

    def delete(self, found: Received[DeadLetter]) -> None:
        """Delete a letter that was sent, and count that it was."""
        _count(self._stack, found.letter)
        url = url_of(self._stack, found.letter.queue)
        self._stack.client("sqs").delete_message(QueueUrl=url, ReceiptHandle=found.receipt)


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
    wait: Span = _WAIT,
) -> Plan[Redriven, RedrivePlan[DeadLetter]]:
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
    site = StackSite(session.stack, name)
    session.say(f"reading the letters of {name}, and the records of their keys")
    planned = plan_of(
        site,
        key=key,
        reason=reason,
        group=group,
        id=letter,
        limit=limit,
        release=release,
        since=since,
        until=until,
    )

    def do() -> Redriven:
        return carried_out(
            site,
            planned,
            tries_one=not no_canary,
            rate=rate,
            wait_s=wait.total_seconds(),
            report=session.say,
        )

    return Plan(
        planned,
        do,
        (session.stack,),
        exact=planned.exact(),
        is_empty=not planned.goes,
        must_be_shown=release,
    )


def plan_of(
    site: StackSite,
    *,
    limit: int | None = None,
    release: bool = False,
    since: datetime | None = None,
    until: datetime | None = None,
    **chosen: str | None,
) -> RedrivePlan[DeadLetter]:
    """Return what a redrive would do with each letter, and change nothing.

    ``chosen`` are fields of letters: key, reason, group, or the beginning of an id. ``since`` and
    ``until`` bound the time at which letters were sent to the queue.

    Raises:
        OperatorError: no letter was chosen, or more than one by the beginning of an id.
    """
    choice = LetterChoice(
        after_ms=None if since is None else to_ms(since),
        before_ms=None if until is None else to_ms(until),
        **chosen,
    )
    try:
        return plan_redrive(site, choice, limit=limit, releases=release)
    except RedriveError as error:
        raise OperatorError(str(error)) from error


def carried_out(site: StackSite, plan: RedrivePlan[DeadLetter], **options: Any) -> Redriven:
    """Send the letters of a plan, with options of `Redrive`.

    Raises:
        OperatorError: it has ended early: the message says how far it has come.
    """
    try:
        return Redrive(site, plan, **options).carry_out()
    except RedriveError as error:
        raise OperatorError(str(error)) from error


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
