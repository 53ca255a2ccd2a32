"""The pages that work: jobs and their plans, and replays of the archive."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from carride_idempotency.operators.sending import Trial
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from carride_idempotency.record_items import record_of
from ops import plans, records, replay, verbs
from ops.audit.evidence import CONSUMERS
from ops.desk.changes import RETRIED, by_event, done_ms
from ops.desk.jobs import Job, State
from ops.desk.redriven import Back, now_of
from ops.desk.registry import Next, NotThereError, Said, Seen, act, page
from ops.desk.story_known import joined
from ops.desk.told import (
    Ended,
    about,
    afterwards_of,
    label_of,
    progress_of,
    result_of,
    scope_of,
    steps_of,
    table_of,
)
from ops.desk.words import clip
from ops.replay import fates
from ops.replay.log import Prediction, comparisons, prediction_for
from ops.stack import FAILURES, reason


class Look(NamedTuple):
    """How the state of a job is shown."""

    kind: str
    icon: str


_LOOKS: Final[Mapping[State, Look]] = {
    State.PLANNING: Look("pub", "retry"),
    State.WAITS: Look("wait", "clock"),
    State.RUNNING: Look("pub", "retry"),
    State.DONE: Look("new", "check"),
    State.WRONG: Look("take", "warn"),
    State.REFUSED: Look("fail", "cross"),
    State.INTERRUPTED: Look("take", "cross"),
    State.EXPIRED: Look("dup", "clock"),
    State.NOTHING: Look("dup", "check"),
    State.DISCARDED: Look("dup", "cross"),
    State.CARRIED_OUT: Look("dup", "check"),
    State.RUNS_ELSEWHERE: Look("pub", "retry"),
    State.CUT_OFF: Look("take", "warn"),
    State.ELSEWHERE: Look("dup", "check"),
}
_LOOKS_OF_WORDS: Final[Mapping[str, Look]] = {
    "being retried": Look("wait", "clock"),
    "took effect": Look("new", "check"),
}
"""Of a redrive whose letters have failed once."""


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────


@page("/jobs", "jobs.html")
def _jobs(desk: Seen, _request: Request) -> dict[str, Any]:
    desk.jobs.look()
    known = desk.jobs.newest()
    own = {job.plan for job in known}
    others = dict[tuple[str, ...], list[Any]]()
    # The job that carried a plan out stands for it.
    shown = [job for job in known if job.state is not State.CARRIED_OUT]
    found = _by_job(desk, shown)
    jobs = [_told(job, found.get(job.id, {})) for job in shown]
    for plan in plans.saved_for(desk.feed.stack):
        if plan.id not in own and plans.waits(plan):
            others.setdefault(_as_said(plan.words), []).append(plan)
    running = desk.jobs.running()
    waiting = desk.jobs.waiting()
    return {
        "title": f"({running + waiting}) Jobs" if running or waiting else "Jobs",
        "jobs": jobs,
        "running": running,
        "waiting": waiting,
        # The same words make the same plan, unless something has changed: the newest counts.
        "others": [(same[0], len(same) - 1) for same in others.values()][:_MOST_OTHERS],
    }


def _as_said(words: Iterable[str]) -> tuple[str, ...]:
    """Return a command line so that two that plan the same are equal.

    The value of an option may follow an equals sign or a space.
    """
    return tuple(" ".join(words).replace("=", " ").split())


_ADVICE: Final = "Run the command without --yes"
"""What the command line says instead of the button "Plan again"."""


def _last_error(lines: list[str]) -> str:
    """Return the error that a command has ended with, whose lines are its last ones."""
    for place in reversed(range(len(lines))):
        if lines[place].startswith("error: "):
            return " ".join(lines[place:]).removeprefix("error: ")
    return lines[-1] if lines else ""


def _told(job: Job, found: Mapping[str, Record]) -> dict[str, Any]:
    """Return a job with what the pages say of it; ``found`` are the records of what it tried."""
    state = job.state
    result = _since(job, found)
    word = _word_of(job, result)
    until = job.ended or time.time()
    sentence = ""
    if state in {State.DONE, State.WRONG}:
        sentence = result_of(job.verb, result)
    elif state in {State.REFUSED, State.INTERRUPTED}:
        lines = [line.strip() for line in job.lines if not line.startswith(_ADVICE)]
        sentence = clip(_last_error(lines))
    elif state in {State.RUNNING, State.PLANNING} and job.stage is not None:
        sentence = clip(job.stage.says)
    shown = job.previewed if job.confirmed else job.result
    return {
        "job": job,
        "label": label_of(job.verb, asks=job.asks),
        "scope": ", ".join(filter(None, [about(shown), _scope_of(job, shown)])),
        "state": state,
        "word": word,
        "look": _LOOKS_OF_WORDS.get(word, _LOOKS[state]),
        "took_ms": 1000 * (until - job.began),
        "began_ms": 1000 * job.began,
        "sentence": sentence,
    }


def _scope_of(job: Job, shown: Any) -> str:
    return scope_of(job.words[len(job.verb.split()) :], shown, 1000 * time.time())


@page("/job/{id}", "job.html")
def _job(desk: Seen, request: Request) -> dict[str, Any]:
    desk.jobs.look()
    job = desk.jobs.get(request.path_params["id"])
    if job is None:
        raise NotThereError(
            "This job is not known here any more: the desk keeps the newest 50.",
            title="No such job",
        )
    found = _by_job(desk, [job]).get(job.id, {})
    told = _told(job, found)
    steps = []
    if job.asks:
        steps = steps_of(job.verb, job.result)
    elif job.confirmed and job.state in {State.RUNNING, State.DONE, State.WRONG}:
        step = job.stage.step if job.stage else None
        ended = Ended(job.status is not None, step, job.result)
        steps = progress_of(job.verb, steps_of(job.verb, job.previewed), ended)
    # Some say why they end both as a step and as their error.
    lines = [line for line in job.lines if not line.startswith(_ADVICE)]
    said = [*dict.fromkeys(line.removeprefix("error: ") for line in lines)]
    return told | {
        "title": f"{told['label']} {told['word']}",
        "steps": steps,
        "done_by": _done_by(desk, job),
        "done_ms": done_ms(job.plan) if job.state is State.ELSEWHERE else None,
        "elsewhere": plans.run_of(job.plan) if job.asks else None,
        "tried": _tried(desk, job, found),
        "watched": _watched(desk, job),
        "letters": _letters_of(desk, job),
        "afterwards": afterwards_of(job.verb, job.result) if told["state"] is State.WAITS else "",
        "table": table_of(job.verb, job.result),
        "refusal": said if told["state"] in {State.REFUSED, State.INTERRUPTED} else [],
        "warnings": _warnings(job),
        "expires_ms": 1000 * job.expires,
        "follows": _FOLLOWS.get(job.verb),
        "window": _window_of(job),
        "predicted": _predicted(desk, job),
        "compared": _compared(job),
    }


def _done_by(desk: Seen, job: Job) -> Job | None:
    """Return the job that has carried out the plan of another one, or does so."""
    if job.state is not State.CARRIED_OUT:
        return None
    return next(
        (each for each in desk.jobs.newest() if each.confirmed and each.plan == job.plan), None
    )


def _watched(desk: Seen, job: Job) -> replay.ReplayState | None:
    """Return the replay that a running job watches; None until EventBridge knows it.

    The job itself says how far it is only after it has read the logs of all consumers.
    """
    if job.verb != "replay run" or job.state is not State.RUNNING:
        return None
    name = job.previewed.get("replay") if isinstance(job.previewed, Mapping) else None
    if name:
        with suppress(*FAILURES):
            return replay.describe(desk.feed.stack, str(name))
    return None


def _window_of(job: Job) -> dict[str, str]:
    """Return the window of a replay's plan, or of a prediction, as options with absolute times."""
    shown = job.result
    if job.verb not in ("replay run", "replay plan") or not isinstance(shown, Mapping):
        return {}
    return {name: str(shown[name]) for name in ("since", "until") if name in shown}


class Predicted(NamedTuple):
    """A prediction of about the window of a replay's plan."""

    says: str
    made_ms: float
    stale: str
    """How its window differs from that of the plan; empty if it does not."""
    outdated: str
    """What operators did since that decides what runs anew; empty if nothing."""


def _predicted(desk: Seen, job: Job) -> Predicted | None:
    """Return the prediction that a plan of a replay will be compared with, or else the nearest."""
    window = _window_of(job)
    if not job.asks or not window:
        return None
    since = datetime.fromisoformat(window["since"])
    until = datetime.fromisoformat(window["until"])
    planned = datetime.fromtimestamp(job.began, UTC)
    young = datetime.now(UTC) - plans.LIVES
    match = prediction_for(desk.feed.stack, since, until, planned, made_after=young)
    if match is None:
        return None
    best = match.prediction
    if best.since >= until or since >= best.until:
        return None
    only = next((word for word in job.words if word.startswith("--only=")), "")
    says = fates.sentence(best.events, _fates_at(best, only.removeprefix("--only=")))
    outdated = joined(best.outdated) if best.outdated else ""
    return Predicted(says, 1000 * best.made.timestamp(), match.differs, outdated)


def _fates_at(found: Prediction, rule: str) -> fates.Fates:
    """Return what was predicted for the consumer of a rule, or for all without a rule."""
    at = {each.name for each in CONSUMERS if rule in ("", f"{each.resources}Rule")}
    return {name: types for name, types in found.fates.items() if name in at}


def _compared(job: Job) -> fates.Comparison | None:
    """Return the comparison in the result of a replay that has ended."""
    if job.verb != "replay run" or job.asks or not isinstance(job.result, Mapping):
        return None
    found = job.result.get("compared")
    return fates.comparison_in(found) if found else None


def _word_of(job: Job, result: Any) -> str:
    """Return the state of a job in words, by what has become of what it did."""
    if job.state is not State.WRONG or job.verb != "redrive" or not isinstance(result, Mapping):
        return job.state.value
    trials = {each["trial"] for each in by_event(result.get("tried", ()))}
    if Trial.FAILED in trials:
        return "sent, failed again"
    if RETRIED in trials:
        return "being retried"
    if result.get("sent") != result.get("planned"):
        return "not all were sent"
    return "took effect" if trials == {Trial.SUCCEEDED} else "sent, no answer yet"


def _since(job: Job, found: Mapping[str, Record]) -> Any:
    """Return the result of a job with its trials as the records say by now.

    A letter that failed while the redrive watched may have attempts left.
    """
    if job.verb != "redrive" or not isinstance(job.result, Mapping):
        return job.result
    tried = []
    for each in job.result.get("tried", ()):
        record = found.get(each.get("key") or "")
        trial = each["trial"]
        if record is not None and trial != Trial.SUCCEEDED:
            trial = _TRIALS.get(record.status, trial)
        tried.append({**each, "trial": trial})
    return {**job.result, "tried": tried}


_TRIALS: Final[Mapping[str, str]] = {
    COMPLETED: Trial.SUCCEEDED,
    FAILED: RETRIED,
    IN_PROGRESS: RETRIED,
    QUARANTINED: Trial.FAILED,
}
"""How a letter went that has not succeeded at once, by the record of its key."""


def _keys_tried(job: Job) -> list[str]:
    """Return the keys of a redrive's letters that were waited for."""
    if job.verb != "redrive" or not isinstance(job.result, Mapping):
        return []
    keys = [each["key"] for each in job.result.get("tried", ()) if each.get("key")]
    return [*dict.fromkeys(keys)][:_MOST_TRIED]


def _by_job(desk: Seen, jobs: Iterable[Job]) -> dict[str, dict[str, Record]]:
    """Return the records of the letters that redrives have tried, by the ids of their jobs.

    A record tells of the newest redrive of its key only. Without an answer of the stack there are
    none.
    """
    keys = dict[str, str]()
    for job in desk.jobs.newest():
        for key in _keys_tried(job):
            keys.setdefault(key, job.id)
    wanted = {job.id for job in jobs}
    found = defaultdict[str, dict[str, Record]](dict)
    asked = [key for key, job in keys.items() if job in wanted]
    with suppress(*FAILURES):
        for record in map(record_of, records.items_at(desk.feed.stack, asked)):
            found[keys[record.key]][record.key] = record
    return found


class Outcome(NamedTuple):
    """An event whose letters a redrive has sent, and what has become of it since."""

    what: str
    """The event, and its ride."""
    fact: str
    consumer: str
    failed: bool
    error: str
    now: str
    """What its record says now."""
    letters: int = 0
    """How many letters of it wait, if its key is quarantined again."""


def _tried(desk: Seen, job: Job, found: Mapping[str, Record]) -> list[Outcome]:
    """Return what became of the events of a redrive whose letters were waited for."""
    if job.verb != "redrive" or not isinstance(job.result, Mapping):
        return []
    with_key = [each for each in job.result.get("tried", ()) if each.get("key")]
    tried = by_event(with_key)[:_MOST_TRIED]
    back = _back(desk, job, found.values())
    return [_outcome(each, found.get(each["key"]), back.get(each["key"])) for each in tried]


def _back(desk: Seen, job: Job, found: Iterable[Record]) -> dict[str, Back]:
    """Return the letters of the keys that are quarantined again; none if they cannot be read."""
    back = {each.key: Back(0, 0) for each in found if each.status == QUARANTINED}
    if not back:
        return {}
    try:
        waiting = desk.letters().found
    except FAILURES:
        return {}
    for letter, *_ in waiting:
        known = back.get(letter.key or "")
        if known is None or letter.key is None:
            continue
        has_come = letter.sent.timestamp() >= job.began
        back[letter.key] = Back(known.came + has_come, known.before + (not has_come))
    return back


def _outcome(tried: Mapping[str, Any], record: Record | None, back: Back | None) -> Outcome:
    consumer, _, fact = tried["key"].partition("#")
    kind = tried["type"]
    ride = tried["ride"]
    what = clip(f"{kind} of {ride}")
    failed = tried["trial"] == "failed"
    if record is None:
        return Outcome(what, fact, consumer, failed, error="", now="")
    now = now_of(record, back)
    error = clip(record.error or "") if failed else ""
    return Outcome(what, fact, consumer, failed, error, now, sum(back or ()))


_MOST_TRIED: Final = 20
_MOST_OTHERS: Final = 20


def _letters_of(desk: Seen, job: Job) -> list[str]:
    """Return the queues with letters of the key that a job releases or has released."""
    if job.verb != "release" or job.state not in {State.DONE, State.WAITS}:
        return []
    key = job.words[-1]
    found = desk.letters().found
    return [*dict.fromkeys(each.letter.queue for each in found if each.letter.key == key)]


_FOLLOWS: Final[Mapping[str, tuple[str, str]]] = {
    "redrive": ("/letters?again=1", "The letters that are left"),
    "release": ("/keys", "The keys that are left"),
    "replay run": ("/ledger", "The ledger"),
    "replay cancel": ("/replays", "The replays"),
    "replay plan": ("/replays", "The replays"),
}
"""Where to look after a job."""


def _warnings(job: Job) -> list[str]:
    """Return what a prediction warns of."""
    if not isinstance(job.result, Mapping):
        return []
    return [clip(str(each)) for each in job.result.get("warnings", ())][:10]


@act("/start")
def _start(desk: Seen, form: Mapping[str, str]) -> Next:
    """Start the dry run of a command."""
    arguments = {
        name.removeprefix("argument"): value
        for name, value in form.items()
        if name not in {"verb", "back"}
    }
    if form["verb"] in {"replay run", "replay plan"}:
        _check_window(arguments.get("since", ""), arguments.get("until", ""))
    return f"/job/{desk.jobs.start(form['verb'], arguments)}", None


def _check_window(since: str, until: str) -> None:
    """Refuse a window that a job would refuse later.

    Raises:
        ValueError: a field is not a time, or the window does not end after it begins.
    """
    begin = _time_of("since", since)
    end = _time_of("until", until) if until else plans.now()
    if begin >= end:
        which = f"{end:%Y-%m-%d %H:%M:%S} UTC" if until else "now"
        raise ValueError(f"until: the window has to end after it begins, and until is {which}")


def _time_of(field: str, text: str) -> datetime:
    try:
        return verbs.moment(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error


@act("/confirm")
def _confirm(desk: Seen, form: Mapping[str, str]) -> Next:
    """Carry out a plan, exactly as it was shown."""
    return f"/job/{desk.jobs.confirm(form['job'])}", None


@act("/again")
def _again(desk: Seen, form: Mapping[str, str]) -> Next:
    """Make a plan again."""
    return f"/job/{desk.jobs.again(form['job'])}", None


@act("/discard")
def _discard(desk: Seen, form: Mapping[str, str]) -> Next:
    """Forget a plan."""
    desk.jobs.discard(form["job"])
    return "/jobs", Said("The plan is discarded. Nothing was done.")


@act("/interrupt")
def _interrupt(desk: Seen, form: Mapping[str, str]) -> Next:
    """Interrupt a command as Ctrl-C does."""
    if found := desk.jobs.get(form["job"]):
        found.interrupt()
    return f"/job/{form['job']}", None


# ── Replays ───────────────────────────────────────────────────────────────────────────────────────


@page("/replays", "replays.html", part="newest_replays")
def _replays(desk: Seen, _request: Request) -> dict[str, Any]:
    stack = desk.feed.stack
    found = list[replay.ReplayState]()
    trouble = ""
    try:
        found = replay.status(stack)
    except FAILURES as error:  # the form stands, with what somebody has typed
        trouble = f"{stack.name} cannot be asked: {reason(error)}"
    known = comparisons(stack)
    return {
        "title": "Replay",
        "answers": 503 if trouble else 200,
        "trouble": trouble,
        "found": [(each, _replay_look(each.state)) for each in found],
        "comparisons": {each.name: known[each.name] for each in found if each.name in known},
        "rules": [f"{each.resources}Rule" for each in desk.feed.consumers],
    }


def _replay_look(state: str) -> Look:
    return {
        "COMPLETED": Look("new", "check"),
        "CANCELLED": Look("dup", "cross"),
        "FAILED": Look("fail", "cross"),
    }.get(state, Look("pub", "retry"))
