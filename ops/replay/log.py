"""What the log of changes of this machine knows of replays: predictions, and results."""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from ops.change_log import newest_lines
from ops.replay.fates import Comparison, comparison_in
from ops.stack import StackRef
from ops.text import counted, span


class Prediction(NamedTuple):
    """A prediction of a replay, as the log has it."""

    made: datetime
    since: datetime
    until: datetime
    events: int
    fates: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Numbers of deliveries by consumer, type of event and fate."""
    outdated: tuple[str, ...] = ()
    """What operators did since that decides what runs anew, each in a clause."""


def predictions(stack: StackRef) -> list[Prediction]:
    """Return the predictions for a stack, the newest first."""
    found = []
    told = [*_told(stack, ("replay", *_DECIDE))]
    for place, each in enumerate(told):
        result = each.get("result")
        if not isinstance(result, Mapping) or "fates" not in result:
            continue
        made = datetime.fromisoformat(each["time"])
        # A line is written when its command ends: one before it may have run meanwhile.
        before = told[place + 1 :]
        later = [*told[:place], *(one for one in before if _time_of(one) >= made)]
        since = datetime.fromisoformat(result["since"])
        until = datetime.fromisoformat(result["until"])
        outdated = tuple(_deeds(later))
        prediction = Prediction(made, since, until, result["events"], result["fates"], outdated)
        found.append(prediction)
    return found


_DECIDE: Final = ("release", "redrive", "forget", "settle", "erase")
"""The other verbs that decide which events would run anew."""


def _time_of(told: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(told["time"])


def _deeds(told: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what changes of the log did that decides which events would run anew, in clauses."""
    counts = Counter[tuple[str, str]]()
    for each in told:
        counts.update(_deeds_in(each))
    for (what, done), count in counts.items():
        if count:
            verb = "was" if count == 1 else "were"
            yield f"{counted(count, what)} {verb} {done}"


def _deeds_in(told: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return how many things a change has changed, each by what it is and what was done to it."""
    result = told.get("result")
    verb = _verb_of(told)
    if not isinstance(result, Mapping):
        # A redrive, replay or erasure that ended early has done a part; the others have not begun.
        return {_ENDED_EARLY[verb]: 1} if verb in _ENDED_EARLY else {}
    if verb == "redrive":
        keys = result.get("released", 0)
        return {("key", "released"): keys, ("letter", "redriven"): result.get("sent", 0)}
    return {_DEEDS[verb]: 1} if verb in _DEEDS else {}


def _verb_of(told: Mapping[str, Any]) -> str:
    _, *words = shlex.split(str(told["command"]))
    if words[:2] == ["replay", "run"]:
        return "replay run"
    return words[0] if words else ""


_DEEDS: Final = {
    "release": ("key", "released"),
    "forget": ("record", "forgotten"),
    "settle": ("call", "settled"),
    "erase": ("customer", "erased"),
    "replay run": ("replay", "run"),
}
_ENDED_EARLY: Final = {
    "redrive": ("redrive", "begun"),
    "erase": ("erasure", "begun"),
    "replay run": ("replay", "begun"),
}


class Match(NamedTuple):
    """The prediction that comes nearest to the window of a replay."""

    prediction: Prediction
    differs: str
    """How its window differs; empty if it does not."""
    is_same: bool
    """Whether the same words would have given both windows, so that they can be compared."""


def prediction_for(
    stack: StackRef,
    since: datetime,
    until: datetime,
    planned: datetime,
    *,
    made_after: datetime | None = None,
) -> Match | None:
    """Return the newest prediction that fits a replay; else the nearest; None if there is none.

    One of exactly its window fits, or else one whose edges are apart by no more than the time
    between the prediction and the plan: a time such as ``20m`` means another one each time. Those
    that are not younger than ``made_after`` are left out, if it is given.
    """
    known = predictions(stack)
    if made_after is not None:
        known = [each for each in known if each.made > made_after]
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
    return span(1000 * abs(seconds))


def comparisons(stack: StackRef) -> dict[str, Comparison]:
    """Return what became of the deliveries of replays that have ended, by the replays' names."""
    found = dict[str, Comparison]()
    for told in _told(stack, ("replay",)):
        result = told.get("result")
        if isinstance(result, Mapping) and "compared" in result:
            found.setdefault(result["replay"], comparison_in(result["compared"]))
    return found


def _told(stack: StackRef, verbs: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the log's lines about a stack that begin with one of these verbs, the newest first."""
    begins = [f"carride {verb} " for verb in verbs]
    for text in reversed(newest_lines()):
        if not any(begin in text for begin in begins):
            continue
        try:
            told = json.loads(text)
            regions = told["region"].split(", ")
            is_here = told["stack"] == stack.name and stack.region in regions
            if is_here and told["time"] and told["command"]:
                yield told
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line of another version, or one that is cut
