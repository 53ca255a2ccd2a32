"""Replays of the archive. A replay is named for one region, and two regions never process the same replayed events."""

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

    @property
    def handed_over(self) -> bool:
        """Whether EventBridge delivers nothing more. Consumers may still have to process what it delivered."""
        return self.state not in _UNFINISHED

    @property
    def ended(self) -> bool:
        """Whether nothing is in flight, as far as EventBridge and SQS can tell. They do not see Lambda's retries."""
        return self.handed_over and not self.waiting

    def check(self) -> None:
        """Raise an OperatorError unless the replay is completed."""
        if self.state != "COMPLETED":
            raise OperatorError(
                f"the replay {self.name} is {self.state}: {self.reason or 'without a reason'}"
            )


def name_for(region: str, now: datetime) -> str:
    """Return a name for a replay; the rules of a region accept replays whose name begins with that region."""
    return f"{region}.{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"


def unfinished(stack: StackRef) -> list[str]:
    """Return the names of the unfinished replays of a stack's archive, without those that only predict."""
    return [each["ReplayName"] for each in _replays(stack) if each["State"] in _UNFINISHED]


def _replays(stack: StackRef) -> Iterator[dict[str, Any]]:
    request: dict[str, Any] = {"EventSourceArn": stack.outputs["CarRideArchiveArn"]}
    while request:
        answer = stack.client("events").list_replays(**request)
        yield from (
            each for each in answer["Replays"] if not each["ReplayName"].startswith(PLAN_PREFIX)
        )
        request = {**request, "NextToken": answer["NextToken"]} if answer.get("NextToken") else {}


def check(stack: StackRef, *, accept_duplicates: bool = False) -> None:
    """Refuse a replay if another region has one running, processes new events, or cannot be asked."""
    peer = stack.peer()
    if peer is None or accept_duplicates:
        return
    try:
        running = unfinished(peer)
        is_fenced, peer_is_fenced = (fenced(each) is not None for each in (stack, peer))
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
            f"the window begins in the future, at {since:%Y-%m-%d %H:%M %Z}: take an earlier --since"
        )
    archive = stack.client("events").describe_archive(
        ArchiveName=stack.outputs["CarRideArchiveArn"].rpartition("/")[2]
    )
    days = archive.get("RetentionDays", 0)
    oldest = now - timedelta(days=days) if days else ALWAYS
    kept = f"the archive keeps events for {days} days, so it has none before {oldest:%Y-%m-%d %H:%M %Z}"
    if until <= oldest:
        raise OperatorError(kept)
    found = [kept] if since < oldest else []
    if until > now - ARCHIVED_IN and stack.local is None:
        found.append(
            f"an event may take ten minutes to arrive in the archive: events after {now - ARCHIVED_IN:%H:%M:%S %Z} may "
            "be left out"
        )
    return found


def receivers(stack: StackRef, *, only: str | None = None, partners: bool = False) -> list[str]:
    """Return the ARNs of the rules that receive a replay: ``only`` this logical id, or all; none means every rule."""
    events, bus = stack.client("events"), stack.outputs["CarRideBusName"]
    if only is not None:
        rules = stack.named("AWS::Events::Rule")
        if only not in rules:
            raise OperatorError(f"the stack has no rule {only}: it has {', '.join(sorted(rules))}")
        return [events.describe_rule(Name=rules[only], EventBusName=bus)["Arn"]]
    if partners:
        return []
    to_partners = {"TargetArn": stack.outputs["PartnersTopicArn"], "EventBusName": bus}
    pages = events.get_paginator("list_rule_names_by_target").paginate(**to_partners)
    left_out = {name for page in pages for name in page["RuleNames"]}
    pages = events.get_paginator("list_rules").paginate(EventBusName=bus)
    # AWS's own rules, for archives and endpoints, are no receivers of replays.
    found = (rule for page in pages for rule in page["Rules"] if "ManagedBy" not in rule)
    return [rule["Arn"] for rule in found if rule["Name"] not in left_out]


def start(
    stack: StackRef, name: str, since: datetime, until: datetime, rules: Collection[str]
) -> None:
    """Start a replay of the archive to the rules with these ARNs; to every rule if there are none."""
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
    """Wait until EventBridge has handed over all events of a replay; refuse one that failed or was cancelled."""
    while not (replay := describe(stack, name)).handed_over:
        sleep(_POLL_SECONDS)
    replay.check()


def describe(stack: StackRef, name: str) -> ReplayState:
    """Return a replay of the stack's archive by its name."""
    events, sqs = stack.client("events"), stack.client("sqs")
    try:
        found = events.describe_replay(ReplayName=name)
    except events.exceptions.ResourceNotFoundException:
        found = {}
    if found.get("EventSourceArn") != stack.outputs["CarRideArchiveArn"]:
        names = ", ".join(unfinished(stack)) or "none"
        raise OperatorError(
            f"{stack.name} has no replay {name} in {stack.region}: unfinished are {names}"
        )
    urls = [stack.outputs.get(f"{each.resources}QueueUrl") for each in CONSUMERS]
    since, until, started = (
        found[f"{each}Time"] for each in ("EventStart", "EventEnd", "ReplayStart")
    )
    queued = sum(waiting(sqs, url, visible=True) for url in urls if url is not None)
    last, why = found.get("EventLastReplayedTime"), found.get("StateReason", "")
    return ReplayState(name, found["State"], since, until, started, last, queued, why)


def status(stack: StackRef) -> list[ReplayState]:
    """Return the newest replays of a stack's archive, without those that only predict; the newest is first."""
    newest = sorted(_replays(stack), key=itemgetter("ReplayStartTime"), reverse=True)[:_SHOWN]
    return [describe(stack, each["ReplayName"]) for each in newest]
