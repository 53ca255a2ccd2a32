"""What this machine's log of changes knows of replays: predictions, and what became of runs."""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from ops.cli import line
from ops.stack import StackRef

_READ: Final = 2_000
"""The newest lines of the log that are looked at."""


class Prediction(NamedTuple):
    """A prediction of a replay, as the log has it."""

    made: datetime
    since: datetime
    until: datetime
    events: int
    fates: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Numbers of deliveries by consumer, type of event and fate."""


def predictions(stack: StackRef) -> list[Prediction]:
    """Return the predictions for a stack, the newest first."""
    found = []
    for told, result in _results(stack):
        if "fates" in result:
            made = datetime.fromisoformat(told["time"])
            since = datetime.fromisoformat(result["since"])
            until = datetime.fromisoformat(result["until"])
            found.append(Prediction(made, since, until, result["events"], result["fates"]))
    return found


def prediction_of(stack: StackRef, since: datetime, until: datetime) -> Prediction | None:
    """Return the newest prediction of exactly a window; None if there is none."""
    for each in predictions(stack):
        if (each.since, each.until) == (since, until):
            return each
    return None


def comparisons(stack: StackRef) -> dict[str, Mapping[str, Any]]:
    """Return what became of the deliveries of replays that have ended, by the replays' names.

    Each is a `ops.replay.fates.Comparison` as JSON.
    """
    found = dict[str, Mapping[str, Any]]()
    for _, result in _results(stack):
        if "compared" in result:
            found.setdefault(result["replay"], result["compared"])
    return found


def _results(stack: StackRef) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the log's lines about replays of a stack that have a result, the newest first."""
    for text in reversed(_newest_lines()):
        if "carride replay " not in text:
            continue
        try:
            told = json.loads(text)
            result = told.get("result")
            is_here = (told["stack"], told["region"]) == (stack.name, stack.region)
            if is_here and isinstance(result, Mapping):
                yield told, result
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line of another version, or one that is cut


def _newest_lines() -> deque[str]:
    try:
        with line.CHANGES.open(encoding="utf-8", errors="replace") as file:
            return deque(file, maxlen=_READ)
    except OSError:
        return deque()
