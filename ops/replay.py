"""Replays of the archive. A replay is named for one region, and two regions never process the same replayed events."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from ops.fence import fenced
from ops.stack import OperatorError, StackRef

_UNFINISHED: Final = frozenset({"STARTING", "RUNNING", "CANCELLING"})
_POLL_SECONDS: Final = 1.0


def name_for(region: str, now: datetime) -> str:
    """Return a name for a replay; the rules of a region accept replays whose name begins with that region."""
    return f"{region}.{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"


def unfinished(stack: StackRef) -> list[str]:
    """Return the names of the unfinished replays of a stack's archive."""
    request: dict[str, Any] = {"EventSourceArn": stack.outputs["CarRideArchiveArn"]}
    found: list[str] = []
    while True:
        answer = stack.client("events").list_replays(**request)
        found += [replay["ReplayName"] for replay in answer["Replays"] if replay["State"] in _UNFINISHED]
        if not answer.get("NextToken"):
            return found
        request["NextToken"] = answer["NextToken"]


def check(stack: StackRef, *, accept_duplicates: bool = False) -> None:
    """Check that no other region processes the events that a replay would deliver.

    Raises:
        OperatorError: the other region has a replay running, processes new events, or cannot be asked.
    """
    peer = stack.peer()
    if peer is None or accept_duplicates:
        return
    try:
        running = unfinished(peer)
        is_fenced, peer_is_fenced = (fenced(each) is not None for each in (stack, peer))
    except (BotoCoreError, ClientError) as error:
        raise OperatorError(
            f"{peer.region} cannot be asked whether it works on the same events ({error}): wait for it, or take "
            "--accept-duplicates"
        ) from error
    twice = "and events that two regions process at once take effect twice"
    if running:
        raise OperatorError(f"{peer.region} has a replay running ({running[0]}), {twice}: wait until it has ended")
    if is_fenced:
        raise OperatorError(f"{stack.region} is fenced and would process nothing: replay in {peer.region}")
    if stack.role == "secondary" and not peer_is_fenced:
        raise OperatorError(f"{peer.region} is at work, {twice}: replay in {peer.region}, or fail over first")


def run(
    stack: StackRef,
    name: str,
    since: datetime,
    until: datetime,
    *,
    only: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Replay a stack's archive to its own bus, wait until that has ended, and return its name.

    Args:
        stack: the stack.
        name: made by `name_for`.
        since: time of the oldest event.
        until: time of the newest event.
        only: logical id of the one rule that receives the events; every rule by default.
        sleep: waits for some seconds.

    Raises:
        OperatorError: there is no such rule, or the replay failed or was cancelled.
    """
    events = stack.client("events")
    bus = stack.outputs["CarRideBusName"]
    destination: dict[str, Any] = {"Arn": events.describe_event_bus(Name=bus)["Arn"]}
    if only is not None:
        rules = stack.named("AWS::Events::Rule")
        if only not in rules:
            raise OperatorError(f"the stack has no rule {only}: it has {', '.join(sorted(rules))}")
        destination["FilterArns"] = [events.describe_rule(Name=rules[only], EventBusName=bus)["Arn"]]
    archive = stack.outputs["CarRideArchiveArn"]
    window = {"EventStartTime": since, "EventEndTime": until}
    events.start_replay(ReplayName=name, EventSourceArn=archive, Destination=destination, **window)
    while (replay := events.describe_replay(ReplayName=name))["State"] in _UNFINISHED:
        sleep(_POLL_SECONDS)
    if replay["State"] != "COMPLETED":
        raise OperatorError(f"the replay {name} ended as {replay['State']}: {replay.get('StateReason', '')}")
    return name
