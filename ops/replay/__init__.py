"""Replays of the archive. A replay is named for one region, and two regions never process the same replayed events."""

from ops.replay.archive import (
    ARCHIVED_IN,
    ReplayState,
    cancel,
    check,
    describe,
    name_for,
    partner_rules,
    run,
    start,
    status,
    unfinished,
    warnings,
)
from ops.replay.planning import ReplayPlan, plan
from ops.replay.prediction import Fate, fate_of
from ops.replay.progress import Progress, watch

__all__ = [
    "ARCHIVED_IN",
    "Fate",
    "Progress",
    "ReplayPlan",
    "ReplayState",
    "cancel",
    "check",
    "describe",
    "fate_of",
    "name_for",
    "partner_rules",
    "plan",
    "run",
    "start",
    "status",
    "unfinished",
    "warnings",
    "watch",
]
