"""Replays of the archive.

A replay is named for one region, and two regions never process the same replayed events.
"""

import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from ops.audit.evidence import ALWAYS, CONSUMERS
from ops.audit.queues import waiting
from ops.fence import fenced
from ops.stack import OperatorError, StackRef

PLAN_PREFIX: Final = "plan."
"""The beginning of the names of replays that only predict. No rule of the template takes such a
replay."""
ARCHIVED_IN: Final = timedelta(minutes=10)
"""How long an event may take until it is in the archive (EventBridge, eb-archive.html)."""

_UNFINISHED: Final = frozenset({"STARTING", "RUNNING", "CANCELLING"})
_POLL_SECONDS: Final = 1.0
_SHOWN: Final = 10


class ReplayState(NamedTuple):
    """A replay as EventBridge describes it, and the consumers' queues. Times have time zones."""

    name: str
    state: str
    """``STARTING``, ``RUNNING``, ``COMPLETED``, ``CANCELLING``, ``CANCELLED`` or ``FAILED``."""
    since: datetime
    until: datetime
    started: datetime
    replayed_until: datetime | None
    """The time of the last replayed event, if EventBridge tells."""
    waiting: int
    """Messages in the queues of consumers: waiting or being processed, of any origin."""
    reason: str
    running: int | None = None
    """Deliveries that a local engine has not finished; None on AWS, which does not tell."""
    logged: datetime | None = None
    """When a consumer last logged a delivery, of any origin; None if none has lately."""

    @property
    def handed_over(self) -> bool:
        """Whether EventBridge delivers nothing more. Consumers may still have to process events."""
        return self.state not in _UNFINISHED

    @property
    def ended(self) -> bool:
        """Whether nothing is in flight. EventBridge and SQS do not see Lambda's retries."""
        return self.handed_over and not self.waiting

    def check(self) -> None:
        """Raise an OperatorError unless the replay is completed."""
        if self.state in ("CANCELLING", "CANCELLED"):
            last = self.replayed_until
            until = (
                f"with a time until {last:%Y-%m-%d %H:%M:%S %Z}" if last else "that it began with"
            )
            raise OperatorError(
                f"somebody cancelled the replay {self.name}. Consumers process the events {until}; "
                "`./carride replay run` with the same window replays all, and they recognise those"
            )
        if self.state != "COMPLETED":
            why = (
                self.reason or "EventBridge gives no reason; `./carride replay run` starts another"
            )
            raise OperatorError(f"the replay {self.name} is {self.state}: {why}")


def name_for(region: str, now: datetime) -> str:
    """Return a name for a replay. A region's rules accept replays whose name begins with it."""
    return f"{region}.{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"


def unfinished(stack: StackRef) -> list[str]:
    """Return the names of a stack's unfinished replays, without those that only predict."""
    return [each["ReplayName"] for each in _replays(stack) if each["State"] in _UNFINISHED]


def _replays(stack: StackRef) -> Iterator[dict[str, Any]]:
    """Yield the replays of a stack's archive, without those that only predict."""
    request: dict[str, Any] = {"EventSourceArn": stack.outputs["CarRideArchiveArn"]}
    while True:
        answer = stack.client("events").list_replays(**request)
        for each in answer["Replays"]:
            if not each["ReplayName"].startswith(PLAN_PREFIX):
                yield each
        if not answer.get("NextToken"):
            return
        request["NextToken"] = answer["NextToken"]


def check(stack: StackRef, *, accept_duplicates: bool = False) -> None:
    """Refuse a replay if the other region may process the same events, or cannot be asked."""
    peer = stack.peer()
    if peer is None or accept_duplicates:
        return
    try:
        running = unfinished(peer)
        is_fenced = fenced(stack) is not None
        peer_is_fenced = fenced(peer) is not None
    except (BotoCoreError, ClientError) as error:
        why = f"{peer.region} cannot be asked whether it works on the same events ({error})"
        raise OperatorError(f"{why}: wait for it, or take --accept-duplicates") from error
    twice = "and events that two regions process at once take effect twice"
    if running:
        raise OperatorError(
            f"{peer.region} has a replay running ({running[0]}), {twice}: wait until it has ended"
        )
    if is_fenced:
        raise OperatorError(
            f"{stack.region} is fenced and would process nothing: replay in {peer.region}"
        )
    if stack.role == "secondary" and not peer_is_fenced:
        raise OperatorError(
            f"{peer.region} is at work, {twice}: replay in {peer.region}, or fail over first"
        )


def warnings(stack: StackRef, since: datetime, until: datetime, now: datetime) -> list[str]:
    """Return why a replay of a window may leave out events; refuse one that has none."""
    if since >= now:
        raise OperatorError(
            f"the window begins in the future, at {since:%Y-%m-%d %H:%M %Z}: "
            "take an earlier --since"
        )
    name = stack.outputs["CarRideArchiveArn"].rpartition("/")[2]
    archive = stack.client("events").describe_archive(ArchiveName=name)
    days = archive.get("RetentionDays", 0)
    oldest = now - timedelta(days=days) if days else ALWAYS
    begins = f"{oldest:%Y-%m-%d %H:%M %Z}"
    kept = f"the archive keeps events for {days} days, so it has none before {begins}"
    if until <= oldest:
        raise OperatorError(f"{kept}: take a later --until")
    found = []
    if since < oldest:
        found.append(kept)
    newest = now - ARCHIVED_IN
    if until > newest and stack.local is None:
        found.append(
            "an event may take ten minutes to arrive in the archive: events after "
            f"{newest:%H:%M:%S %Z} may be left out"
        )
    return found


def receivers(stack: StackRef, *, only: str | None = None, partners: bool = False) -> list[str]:
    """Return the ARNs of the rules that receive a replay; an empty list means every rule.

    ``only`` is one consumer, or the logical id of one rule. Without ``partners``, the rules of
    partners get nothing.
    """
    events = stack.client("events")
    bus = stack.outputs["CarRideBusName"]
    if only is not None:
        names = stack.named("AWS::Events::Rule")
        of_consumers = {each.name: f"{each.resources}Rule" for each in CONSUMERS}
        only = of_consumers.get(only, only)
        if only not in names:
            known = ", ".join([*of_consumers, *sorted(names)])
            raise OperatorError(f"the stack has no rule of {only}: write one of {known}")
        return [events.describe_rule(Name=names[only], EventBusName=bus)["Arn"]]
    if partners:
        return []
    left_out = _rules_to(stack, stack.outputs["PartnersTopicArn"])
    pages = events.get_paginator("list_rules").paginate(EventBusName=bus)
    # AWS's own rules, for archives and endpoints, do not receive replays.
    rules = [rule for page in pages for rule in page["Rules"] if "ManagedBy" not in rule]
    # The rule of a prediction takes its own replay only, and is gone when the prediction ends.
    return [
        rule["Arn"]
        for rule in rules
        if rule["Name"] not in left_out and not rule["Name"].startswith(PLAN_PREFIX)
    ]


def _rules_to(stack: StackRef, target: str) -> set[str]:
    """Return the names of the rules that have a target."""
    pager = stack.client("events").get_paginator("list_rule_names_by_target")
    pages = pager.paginate(TargetArn=target, EventBusName=stack.outputs["CarRideBusName"])
    return {name for page in pages for name in page["RuleNames"]}


def start(
    stack: StackRef, name: str, since: datetime, until: datetime, rules: Collection[str]
) -> None:
    """Start a replay of the archive to the rules with these ARNs, or to every rule for none."""
    events = stack.client("events")
    destination: dict[str, Any] = {
        "Arn": events.describe_event_bus(Name=stack.outputs["CarRideBusName"])["Arn"]
    }
    if rules:
        destination["FilterArns"] = list(rules)
    archive = stack.outputs["CarRideArchiveArn"]
    window = {"EventStartTime": since, "EventEndTime": until}
    events.start_replay(ReplayName=name, EventSourceArn=archive, Destination=destination, **window)


def handed_over(stack: StackRef, name: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until EventBridge has handed over a replay; refuse one that failed or was cancelled."""
    replay = describe(stack, name)
    while not replay.handed_over:
        sleep(_POLL_SECONDS)
        replay = describe(stack, name)
    replay.check()


def describe(stack: StackRef, name: str) -> ReplayState:
    """Return a replay of the stack's archive by its name."""
    return _described(stack, name, _waiting_for_consumers(stack))


def _described(stack: StackRef, name: str, waits: int) -> ReplayState:
    events = stack.client("events")
    try:
        found = events.describe_replay(ReplayName=name)
    except events.exceptions.ResourceNotFoundException:
        found = {}
    if found.get("EventSourceArn") != stack.outputs["CarRideArchiveArn"]:
        names = ", ".join(unfinished(stack)) or "none"
        raise OperatorError(
            f"{stack.name} has no replay {name} in {stack.region}: unfinished are {names}"
        )
    return ReplayState(
        name=name,
        state=found["State"],
        since=found["EventStartTime"],
        until=found["EventEndTime"],
        started=found["ReplayStartTime"],
        replayed_until=found.get("EventLastReplayedTime"),
        waiting=waits,
        reason=found.get("StateReason", ""),
    )


def _waiting_for_consumers(stack: StackRef) -> int:
    """Return how many messages the queues of consumers have, waiting or being processed."""
    sqs = stack.client("sqs")
    messages = 0
    for each in CONSUMERS:
        url = stack.outputs.get(f"{each.resources}QueueUrl")
        if url is not None:
            messages += waiting(sqs, url, visible=True)
    return messages


def status(stack: StackRef) -> list[ReplayState]:
    """Return the last replays of a stack, the newest first, without those that only predict."""
    replays = sorted(_replays(stack), key=itemgetter("ReplayStartTime"), reverse=True)
    waits = _waiting_for_consumers(stack) if replays else 0
    return [_described(stack, each["ReplayName"], waits) for each in replays[:_SHOWN]]
