"""What this machine's log of changes knows of replays: predictions, and what became of runs."""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
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


class Match(NamedTuple):
    """The prediction that comes nearest to the window of a replay."""

    prediction: Prediction
    differs: str
    """How its window differs; empty if it does not."""
    is_same: bool
    """Whether the same words would have given both windows, so that they can be compared."""


def prediction_for(
    stack: StackRef, since: datetime, until: datetime, planned: datetime
) -> Match | None:
    """Return the newest prediction that fits a replay; else the nearest; None if there is none.

    One of exactly its window fits, or else one whose edges are apart by no more than the time
    between the prediction and the plan: a time such as ``20m`` means another one each time.
    """
    known = predictions(stack)
    # Python's sort keeps the newest first among equals.
    known.sort(key=lambda each: (each.since, each.until) != (since, until))
    for each in known:
        passed = abs(planned - each.made) + _READ_WITHIN
        apart = _apart(each, since, until)
        if max(apart) <= min(passed, (until - since) / 2):
            return Match(each, window_differs(each, since, until), is_same=True)
    nearest = min(known, key=lambda each: sum(_apart(each, since, until), _NONE), default=None)
    if nearest is None:
        return None
    return Match(nearest, window_differs(nearest, since, until), is_same=False)


_READ_WITHIN: Final = timedelta(seconds=2)
"""How long a command may take until it has read its times, which are whole seconds."""
_NONE: Final = timedelta()


def _apart(found: Prediction, since: datetime, until: datetime) -> tuple[timedelta, timedelta]:
    """Return how far the edges of a prediction's window are from those of another one."""
    return abs(found.since - since), abs(found.until - until)


_SAME_S: Final = 2.0
"""Two windows are as long as each other if their lengths differ by no more: times are typed in
seconds."""


def window_differs(found: Prediction, since: datetime, until: datetime) -> str:
    """Return how the window of a prediction differs from another; empty if it does not."""
    begins_s = (found.since - since).total_seconds()
    ends_s = (found.until - until).total_seconds()
    if begins_s * ends_s > 0 and abs(begins_s - ends_s) <= _SAME_S:
        about = "" if begins_s == ends_s else "about "
        return f"{about}{_length(begins_s)} {'older' if begins_s < 0 else 'newer'}"
    differs = []
    for edge, apart_s in (("begins", begins_s), ("ends", ends_s)):
        if apart_s:
            differs.append(f"{edge} {_length(apart_s)} {'earlier' if apart_s < 0 else 'later'}")
    return f"which {' and '.join(differs)}" if differs else ""


def _length(seconds: float) -> str:
    from ops.desk.words import span  # noqa: PLC0415 - the desk imports this module

    return span(1000 * abs(seconds))


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
