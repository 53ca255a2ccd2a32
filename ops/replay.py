"""Replays of the archive: named for the region that is to work on them, and never in two regions at once."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from ops.fence import fenced_since
from ops.site import OperatorError, Site

_UNFINISHED: Final = frozenset({"STARTING", "RUNNING", "CANCELLING"})
_POLL_SECONDS: Final = 1.0


def name_for(region: str, now: datetime) -> str:
    """Return a name for a replay: rules take those that begin with the name of their region."""
    return f"{region}.{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"


def unfinished(site: Site) -> list[str]:
    """Return the names of the replays of the site's archive that are going on."""
    request: dict[str, Any] = {"EventSourceArn": site.outputs["CarRideArchiveArn"]}
    found: list[str] = []
    while True:
        answer = site.client("events").list_replays(**request)
        found += [replay["ReplayName"] for replay in answer["Replays"] if replay["State"] in _UNFINISHED]
        if not answer.get("NextToken"):
            return found
        request["NextToken"] = answer["NextToken"]


def check(site: Site, *, accept_duplicates: bool = False) -> None:
    """See to it that no other region works on the events that a replay would hand over.

    Raises:
        OperatorError: the other region has a replay running, is the one that events go to, or cannot be asked.
    """
    peer = site.peer()
    if peer is None or accept_duplicates:
        return
    try:
        going_on = unfinished(peer)
        fenced = {each.region: fenced_since(each) is not None for each in (site, peer)}
    except (BotoCoreError, ClientError) as error:
        raise OperatorError(
            f"{peer.region} cannot be asked whether it works on the same events ({error}): wait for it, or take "
            "--accept-duplicates"
        ) from error
    if going_on:
        raise OperatorError(
            f"{peer.region} has a replay running ({going_on[0]}), and what two regions work on at once takes effect "
            "twice: wait until it has ended"
        )
    if fenced[site.region]:
        raise OperatorError(f"{site.region} is fenced, and would hand a replay to nobody: replay in {peer.region}")
    if site.role == "secondary" and not fenced[peer.region]:
        raise OperatorError(
            f"{peer.region} is at work, and what two regions work on at once takes effect twice: replay in "
            f"{peer.region}, or fail over first"
        )


def start(site: Site, name: str, since: datetime, until: datetime, *, only: str | None = None) -> None:
    """Start a replay.

    Args:
        site: whose archive is replayed, to its own bus.
        name: by `name_for`.
        since: time of the oldest event.
        until: time of the newest event.
        only: logical id of the one rule that is to have the events; left out, every rule.

    Raises:
        OperatorError: there is no such rule.
    """
    events = site.client("events")
    bus = site.outputs["CarRideBusName"]
    destination: dict[str, Any] = {"Arn": events.describe_event_bus(Name=bus)["Arn"]}
    if only is not None:
        rules = site.named("AWS::Events::Rule")
        if only not in rules:
            raise OperatorError(f"the stack has no rule {only}: it has {', '.join(sorted(rules))}")
        destination["FilterArns"] = [events.describe_rule(Name=rules[only], EventBusName=bus)["Arn"]]
    events.start_replay(
        ReplayName=name,
        EventSourceArn=site.outputs["CarRideArchiveArn"],
        EventStartTime=since,
        EventEndTime=until,
        Destination=destination,
    )


def wait(site: Site, name: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until a replay has ended.

    Raises:
        OperatorError: it failed, or was cancelled.
    """
    while True:
        replay = site.client("events").describe_replay(ReplayName=name)
        if replay["State"] == "COMPLETED":
            return
        if replay["State"] not in _UNFINISHED:
            raise OperatorError(f"the replay {name} has ended as {replay['State']}: {replay.get('StateReason', '')}")
        sleep(_POLL_SECONDS)
