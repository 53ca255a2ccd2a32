"""What a job's plan would do, and what its result says, in words. No I/O.

Both come as JSON from `./carride VERB --json`; a part that is missing is left out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from carride_idempotency.operators.sending import FIRST_DID_NOT_SUCCEED
from ops.dead_letters import READERS
from ops.desk.changes import RETRIED, by_event
from ops.desk.words import clip, clock_text, part, short_id, status_text
from ops.replay import fates
from ops.text import counted

_MOST_IDS: Final = 20
_MOST_STEPS: Final = 20
_MOST_ROWS: Final = 100


class Progress(StrEnum):
    """How far a step of a plan is."""

    NONE = ""
    NOW = "now"
    DONE = "done"
    PARTLY = "partly"


class Bound(NamedTuple):
    """A letter or a key that a step of a plan is bound to."""

    id: str
    """As lists show it."""
    what: str = ""
    """Its event, and its ride."""
    path: str = ""
    """The address of its event."""


class Step(NamedTuple):
    """A step of a plan."""

    title: str
    ids: tuple[Bound, ...] = ()
    """What it is bound to."""
    more: int = 0
    """Further ids that are not listed."""
    note: str = ""
    progress: Progress = Progress.NONE


class Table(NamedTuple):
    """A result with rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    quiet: tuple[tuple[str, ...], ...] = ()
    """The rows in which nothing needs a look."""


_LABELS: Final[Mapping[str, str]] = {
    "replay run": "Replay",
    "replay plan": "Replay prediction",
    "replay cancel": "Cancel of a replay",
}
"""What the desk calls a job, if not as its verb."""


def label_of(verb: str, *, asks: bool) -> str:
    """Return what the desk calls a job, as its button does; ``asks``: it makes a plan."""
    label = _LABELS.get(verb, verb.capitalize())
    return f"{label} plan" if asks else label


def scope_of(words: Sequence[str], shown: Any = None, now_ms: float = 0.0) -> str:
    """Return what a job is about, from the words after its verb, and what its plan has shown.

    A window has the times that its plan has: ``20m`` means other ones a minute later.
    """
    window = _window(shown, now_ms)
    if window:
        words = [word for word in words if not word.startswith(("--since=", "--until="))]
    return ", ".join(filter(None, [window, *map(_word, words)]))


def _window(shown: Any, now_ms: float) -> str:
    """Return the window that a plan or a prediction has shown; empty without one."""
    if not isinstance(shown, Mapping) or "since" not in shown or "until" not in shown:
        return ""
    edges = [1000 * datetime.fromisoformat(shown[name]).timestamp() for name in ("since", "until")]
    return " to ".join(clock_text(each, now_ms) for each in edges)


def _word(word: str) -> str:
    name, _, value = word.removeprefix("--").partition("=")
    if word == "--release":
        return "releasing keys"
    if word.startswith("--"):
        return f"{name} {short_id(value)}"
    return short_id(word)


def steps_of(verb: str, preview: Any) -> list[Step]:
    """Return the steps of a plan, from what its dry run has returned."""
    if not isinstance(preview, Mapping):
        return []
    if verb == "redrive":
        return list(_redrive(preview))
    if verb == "release":
        return list(_release(preview))
    found = []
    for step in preview.get("plan", ()):
        text = clip(str(step))
        found.append(Step(text[:1].upper() + text[1:]))
    return found[:_MOST_STEPS]


def _redrive(preview: Mapping[str, Any]) -> Iterator[Step]:
    letters = preview.get("letters", ())
    queue = preview.get("queue")
    going = [each for each in letters if each["verdict"]["goes"]]
    staying = [each for each in letters if not each["verdict"]["goes"]]
    released = [each for each in going if each["verdict"].get("releases")]
    if released:
        yield _releasing(released)
    if going:
        yield _sending(going, _target_of(str(queue), str(preview.get("target", ""))))
        yield _deleting(len(going), str(queue))
    if staying:
        leaving = counted(len(staying), "letter")
        where = "where it is" if len(staying) == 1 else "where they are"
        yield Step(f"Leave {leaving} {where}", note="; ".join(_reasons_of(staying)))
    others = preview.get("others")
    if others:
        rest = "letter" if others == 1 else f"{others:,} letters"
        yield Step(f"Leave the other {rest} of {queue}", note="not chosen")


def _deleting(count: int, queue: str) -> Step:
    if count == 1:
        return Step(f"Delete it from {queue} once its target has accepted it")
    first = "one letter of each failure goes first, the others follow if it succeeds"
    return Step(f"Delete each from {queue} once its target has accepted it", note=first)


def _bound(letter: Mapping[str, Any], name: str) -> Bound:
    """Return a letter, or its key, with its event."""
    what = _event_in(letter)
    path = _path_of(letter.get("fact"))
    return Bound(short_id(name), clip(what, 120), path)


def _event_in(letter: Mapping[str, Any]) -> str:
    """Return the type of a letter's event and its ride, as far as they are known."""
    kind = str(letter.get("type") or "")
    ride = letter.get("ride")
    if kind and ride:
        return f"{kind} of {ride}"
    return kind


def _path_of(fact: str | None) -> str:
    """Return the address of an event; empty if it has no id."""
    if not fact:
        return ""
    return f"/event/{part(fact)}"


def about(preview: Any) -> str:
    """Return the event of the only letter that a plan sends; empty if it is another plan."""
    if not isinstance(preview, Mapping):
        return ""
    going = [each["letter"] for each in preview.get("letters", ()) if each["verdict"]["goes"]]
    facts = {letter.get("fact") for letter in going}
    if len(facts) != 1 or facts == {None}:
        return ""
    return _event_in(going[0])


def _releasing(letters: Sequence[Mapping[str, Any]]) -> Step:
    keys = dict[str, Bound]()
    for each in letters:
        letter = each["letter"]
        key = str(letter["key"])
        keys[key] = _bound(letter, key)
    number = counted(len(keys), "key")
    revision = str(letters[0].get("revision"))
    state, _, _ = revision.partition(", owner")
    status, comma, attempt = state.partition(",")
    note = f"now {status_text(status)}{comma}{attempt}; the next delivery runs as attempt 1"
    return _step(f"Release {number}", [*keys.values()], clip(note))


def _target_of(queue: str, arn: str) -> str:
    """Return where the letters of a queue go: a consumer by its name, or what the ARN names."""
    if queue in READERS:
        return READERS[queue].name
    _, _, target = arn.rpartition(":")
    return clip(target, 80)


def _sending(letters: Sequence[Mapping[str, Any]], target: str) -> Step:
    ids = []
    keys = set[str | None]()
    for each in letters:
        letter = each["letter"]
        ids.append(_bound(letter, str(letter["id"])))
        keys.add(letter.get("key"))
    number = counted(len(letters), "letter")
    if _are_copies(len(letters), keys):
        number += ", all of one event,"
    title = f"Send {number} to {target}"
    return _step(title, ids, _why_sent(letters))


def _are_copies(letters: int, keys: Collection[str | None]) -> bool:
    """Return whether several letters have one key."""
    return letters > 1 and len(keys) == 1 and None not in keys


def _why_sent(letters: Sequence[Mapping[str, Any]]) -> str:
    """Return why letters are sent; a count only tells several reasons apart."""
    reasons = _reasons_of(letters)
    if len(reasons) > 1:
        return "; ".join(reasons)
    verdict = letters[0]["verdict"]
    return str(verdict["why"])


def _reasons_of(letters: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the three most frequent reasons of the letters' verdicts, each with its count."""
    counts = Counter(each["verdict"]["why"] for each in letters)
    return [f"{count:,}: {why}" for why, count in counts.most_common(3)]


def _step(title: str, ids: list[Bound], note: str) -> Step:
    return Step(title, tuple(ids[:_MOST_IDS]), max(0, len(ids) - _MOST_IDS), clip(note))


def _release(preview: Mapping[str, Any]) -> Iterator[Step]:
    record = preview.get("record", {})
    status = status_text(str(record.get("status")))
    attempt = record.get("attempt")
    says = record.get("says")
    note = f"{status}, attempt {attempt}: {says}"
    key = str(record.get("key"))
    _, _, fact = key.partition("#")
    bound = Bound(short_id(key), path=_path_of(fact))
    yield Step("Release 1 key", (bound,), note=clip(note))


def afterwards_of(verb: str, preview: Any) -> str:
    """Return what an operator has to do once a plan was carried out; empty if nothing."""
    if verb != "release" or not isinstance(preview, Mapping):
        return ""
    return clip(str(preview.get("then") or ""))


def result_of(verb: str, result: Any) -> str:
    """Return what a job has done, in a sentence; empty if it has returned nothing."""
    if not isinstance(result, Mapping):
        return ""
    return clip(_SENTENCES[verb](result)) if verb in _SENTENCES else ""


def _redriven(result: Mapping[str, Any]) -> str:
    tried = [*result.get("tried", ())]
    if result.get("planned") == 1 and len(tried) == 1:
        (only,) = tried
        how = _HOW.get(only["trial"], "was sent")
        return f"{_named(only)} {how}."
    return "; ".join(_redriven_many(result, tried)) + "."


def _redriven_many(result: Mapping[str, Any], tried: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what became of the letters of a redrive: how many were sent, and the rest by reason.

    ``tried`` are the first letters of groups. An event is named once, however many it has.
    """
    by_trial = defaultdict[str, list[Mapping[str, Any]]](list)
    for each in by_event(tried):
        by_trial[each["trial"]].append(each)
    failed = by_trial["failed"]
    retried = by_trial[RETRIED]
    succeeded = by_trial["succeeded"]
    sent = result.get("sent", 0)
    planned = counted(result.get("planned", 0), "letter")
    released = result.get("released", 0)
    if released:
        yield f"{counted(released, 'key')} released"
    yield f"{sent:,} of {planned} sent"
    if failed:
        yield f"{_joined(failed)} failed again"
    if retried:
        verb = "is" if len(retried) == 1 else "are"
        yield f"{_joined(retried)} {verb} being retried"
    for why, count in result.get("stayed", {}).items():
        reason = why
        if why == FIRST_DID_NOT_SUCCEED and (failed or retried):
            reason = "its group waits"  # whose first letter is named already
        yield f"{count:,} stayed: {reason}"
    gone = result.get("gone")
    if gone:
        yield f"{gone:,} were gone before"
    if succeeded and not failed:
        yield f"{_joined(succeeded)} took effect"


_HOW: Final = {
    "succeeded": "was sent, and took effect",
    "failed": "was sent, and failed again",
    RETRIED: "was sent, has failed so far, and is being retried",
    "unknown": "was sent, and its consumer has not answered",
}
"""What became of a letter that was tried."""
_FEW: Final = 2


def _named(tried: Mapping[str, Any]) -> str:
    return _bound(tried, "").what or "The letter"


def _joined(tried: Sequence[Mapping[str, Any]]) -> str:
    """Return the names of some letters."""
    names = [_named(each) for each in tried]
    if len(names) <= _FEW:
        return " and ".join(names)
    return f"{names[0]} and {len(names) - 1:,} others"


class Ended(NamedTuple):
    """How far a job is that carries out a plan."""

    has_ended: bool
    step: int | None
    """The step that it is at, from 1, if it has told."""
    result: Any


def progress_of(verb: str, steps: Sequence[Step], job: Ended) -> list[Step]:
    """Return the steps of a plan that is carried out, each with how far it is."""
    if not job.has_ended:
        now = job.step or 1
        return [_at(step, number, now) for number, step in enumerate(steps, 1)]
    if verb == "release":
        return [step._replace(progress=Progress.DONE, note="") for step in steps]
    if verb != "redrive" or not isinstance(job.result, Mapping):
        return [step._replace(progress=Progress.DONE) for step in steps]
    return [_done(step, job.result) for step in steps]


def _done(step: Step, result: Mapping[str, Any]) -> Step:
    """Return a step of a redrive that has ended: what it did with keys, or with letters."""
    if step.title.startswith("Leave"):
        return step
    planned = result.get("planned", 0)
    done = result.get("sent", 0)
    unit = "letter"
    if step.title.startswith("Release"):
        planned = len(step.ids) + step.more
        done = result.get("released", 0)
        unit = "key"
    if done == planned:
        return step._replace(progress=Progress.DONE, note=step.note.removeprefix("now "))
    progress = Progress.PARTLY if done else Progress.NONE
    return step._replace(progress=progress, note=f"{done:,} of {counted(planned, unit)}")


def _at(step: Step, number: int, now: int) -> Step:
    if number < now:
        return step._replace(progress=Progress.DONE)
    return step._replace(progress=Progress.NOW if number == now else Progress.NONE)


def _predicted(result: Mapping[str, Any]) -> str:
    return fates.sentence(result.get("events", 0), result.get("fates", {}))


def _cancelled(result: Mapping[str, Any]) -> str:
    state = str(result.get("state"))
    if state in ("COMPLETED", "FAILED"):
        return f"The replay had {state.lower()} before: there was nothing left to cancel."
    return f"The replay is {state.lower()}."


_SENTENCES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "redrive": _redriven,
    "release": lambda _: "The key is released: its next delivery runs as attempt 1.",
    "replay run": lambda result: (
        f"The replay has ended. The audit says: {result.get('audit', {}).get('verdict')}."
    ),
    "replay cancel": _cancelled,
    "replay plan": _predicted,
}


def table_of(verb: str, result: Any) -> Table | None:
    """Return the rows of a prediction: what would become of events, by consumer and type."""
    if verb != "replay plan" or not isinstance(result, Mapping):
        return None
    found = fates.rows(result.get("fates", {}))
    columns = ("consumer", "type", *found.heads)
    return Table(columns, _cells(found.looked_for), _cells(found.quiet))


def _cells(rows: Sequence[fates.Row]) -> tuple[tuple[str, ...], ...]:
    found = []
    for row in rows[:_MOST_ROWS]:
        numbers = map("{:,}".format, row.numbers)
        found.append((row.consumer, row.type, *numbers))
    return tuple(found)
