"""The bus's archive and its replays, and the operations of EventBridge's client on them.

A replay goes through the window minute by minute, by the times in the events, and the events of a
minute come in any order:
https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-replay-archived-event.html
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import Any, Final

from tests.world.bus import Bus
from tests.world.cloud import Cloud
from tests.world.patterns import matches
from tests.world.wiring import ACCOUNT

_LATE: Final = 0.05
_ARCHIVED_IN_S: Final = 600.0
"""https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-archive-event.html"""
_STARTS_IN_S: Final = 180.0
_MINUTE_TAKES_S: Final = 2.0

type Event = Mapping[str, Any]


class UnknownReplayError(Exception):
    """EventBridge's error for a replay that is not there."""


@dataclass(eq=False)
class Replay:
    """A replay, as EventBridge describes it."""

    name: str
    since: datetime
    until: datetime
    started: datetime
    state: str = "STARTING"


class Archive:
    """Keeps the events of the bus, and replays them.

    It has the operations of a client of EventBridge that are about archives and replays.
    """

    exceptions = SimpleNamespace(ResourceNotFoundException=UnknownReplayError)

    def __init__(self, cloud: Cloud, bus: Bus) -> None:
        self._cloud = cloud
        self._bus = bus
        (self._spec,) = cloud.wiring.archives.values()
        self._arn = cloud.wiring.outputs["CarRideArchiveArn"]
        self._events: list[Event] = []
        self._replays: dict[str, Replay] = {}
        bus.accepted = self._take

    def _take(self, event: Event) -> None:
        """Take an event that the bus has accepted; it arrives a moment or some minutes later."""
        if not matches(self._spec.pattern, event):
            return
        late_s = 0.5
        if self._cloud.happens("an event late in the archive", _LATE, event["id"]):
            late_s = _ARCHIVED_IN_S * self._cloud.roll(f"archived {event['id']}")
        self._cloud.simulation.after(late_s, partial(self._events.append, event))

    # ── As a client of EventBridge ────────────────────────────────────────────────────────────────

    def describe_archive(self, **_: object) -> dict[str, int]:
        return {"EventCount": len(self._events), "RetentionDays": self._spec.days}

    def describe_rule(self, *, Name: str, **_: object) -> dict[str, str]:  # noqa: N803 - boto3's names
        is_enabled = self._cloud.wiring.rules[Name].enabled
        return {"State": "ENABLED" if is_enabled else "DISABLED", "Arn": self._rule_arn(Name)}

    def get_paginator(self, operation: str) -> Any:
        pages = {"list_rules": self._rules, "list_rule_names_by_target": self._rules_to}
        return SimpleNamespace(paginate=lambda **request: [pages[operation](**request)])

    def _rules(self, **_: object) -> dict[str, Any]:
        names = self._cloud.wiring.rules
        return {"Rules": [{"Name": name, "Arn": self._rule_arn(name)} for name in names]}

    def _rules_to(self, *, TargetArn: str, **_: object) -> dict[str, Any]:  # noqa: N803
        wanted = TargetArn.rpartition(":")[2]
        rules = self._cloud.wiring.rules.values()
        names = [rule.name for rule in rules if wanted in {target.to for target in rule.targets}]
        return {"RuleNames": names}

    def _rule_arn(self, name: str) -> str:
        region = self._cloud.wiring.region
        return f"arn:aws:events:{region}:{ACCOUNT}:rule/CarRideBus/{name}"

    def put_events(self, *, Entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:  # noqa: N803
        """Publish events on the bus of this region."""
        for entry in Entries:
            time = entry["Time"].isoformat().replace("+00:00", "Z")
            detail = json.loads(entry["Detail"])
            self._bus.put(detail, entry["Source"], entry["DetailType"], time)
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "published"} for _ in Entries]}

    def start_replay(
        self,
        *,
        ReplayName: str,  # noqa: N803
        EventSourceArn: str,  # noqa: N803
        Destination: Mapping[str, Any],  # noqa: N803
        EventStartTime: datetime,  # noqa: N803
        EventEndTime: datetime,  # noqa: N803
    ) -> dict[str, str]:
        assert EventSourceArn == self._arn
        replay = Replay(ReplayName, EventStartTime, EventEndTime, datetime.now(UTC))
        self._replays[ReplayName] = replay
        rules = {each.rpartition("/")[2] for each in Destination.get("FilterArns", ())}
        names = rules or set(self._cloud.wiring.rules)
        begins_in_s = _STARTS_IN_S * self._cloud.roll(f"replay {ReplayName}")
        self._cloud.simulation.after(begins_in_s, partial(self._run, replay, names))
        return {"State": replay.state}

    def describe_replay(self, *, ReplayName: str) -> dict[str, Any]:  # noqa: N803
        if ReplayName not in self._replays:
            raise UnknownReplayError
        replay = self._replays[ReplayName]
        return {
            "EventSourceArn": self._arn,
            "State": replay.state,
            "EventStartTime": replay.since,
            "EventEndTime": replay.until,
            "ReplayStartTime": replay.started,
        }

    def list_replays(self, **_: object) -> dict[str, Any]:
        found = self._replays.values()
        return {
            "Replays": [
                {"ReplayName": each.name, "State": each.state, "ReplayStartTime": each.started}
                for each in found
            ]
        }

    # ── A replay ──────────────────────────────────────────────────────────────────────────────────

    def _run(self, replay: Replay, rules: set[str]) -> None:
        """Hand over the events of the window, minute by minute."""
        replay.state = "RUNNING"
        oldest = datetime.now(UTC) - timedelta(days=self._spec.days)
        since = max(replay.since, oldest)
        chosen = [each for each in self._events if since <= _time(each) <= replay.until]
        chosen.sort(key=_time)
        self._cloud.say(f"replays {len(chosen)} events as {replay.name}", "archive")
        after_s = 0.0
        for _, minute in groupby(chosen, key=lambda each: each["time"][:16]):
            events = list(minute)
            before = list(events)
            events.sort(key=lambda each: self._cloud.roll(f"{replay.name} {each['id']}"))
            if events != before:
                self._cloud.use("replayed events in another order")
            for event in events:
                self._cloud.simulation.after(after_s, partial(self._replay, event, replay, rules))
            after_s += _MINUTE_TAKES_S
        self._cloud.simulation.after(after_s, partial(setattr, replay, "state", "COMPLETED"))

    def _replay(self, event: Event, replay: Replay, rules: set[str]) -> None:
        self._cloud.use("an event replayed from the archive")
        self._bus.replay(event, replay.name, rules)


def _time(event: Event) -> datetime:
    return datetime.fromisoformat(event["time"])
