"""What the status bar says: the audit's verdict, what fails now, and how old both are. No I/O."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ops.audit import Report
from ops.desk.outages import Outage
from ops.text import counted, rough

_MOST_WORDS: Final = 80
_GETS_OLD_MS: Final = 10 * 60_000
"""A good verdict is so long said of the present, although something has happened since."""


class Count(NamedTuple):
    """A number of the status bar."""

    name: str
    number: int | None
    """None if it is not known."""
    path: str
    """The page that explains it."""
    kind: str
    """How it looks above zero."""


class Standing(NamedTuple):
    """The status bar."""

    kind: str
    icon: str
    verdict: str
    why: str
    """The whole verdict, in the audit's words."""
    counts: tuple[Count, ...]
    blank: str
    """What stands in the place of a number that is not known."""
    since: str
    since_ms: float | None


class Known(NamedTuple):
    """What the status bar is made of."""

    report: Report | None
    audited_ms: float | None
    audits_by_itself: bool
    is_awaited: bool
    """Whether somebody has asked for an audit that has not ended."""
    has_changed: bool
    """Whether anything has happened since the audit."""
    now_ms: float
    letters: int | None
    """Messages in dead-letter queues, counted now."""
    failing: Sequence[Outage]
    silent_since_ms: float | None
    """Since when the stack has not answered; None if it answers."""


def standing(known: Known) -> Standing:
    """Return the status bar.

    Green never stands beside something broken, and old numbers never look like new ones.
    """
    if known.silent_since_ms is not None:
        why = "The stack does not answer."
        return Standing(
            "wait",
            "clock",
            "Unknown",
            why,
            _counts(known, None),
            "?",
            "since",
            known.silent_since_ms,
        )
    report = known.report
    if report is None:
        is_running = known.audits_by_itself or known.is_awaited
        verdict = "First audit is running" if is_running else "Not audited yet"
        why = "The audit compares every event with its effects."
        return Standing("wait", "clock", verdict, why, _counts(known, None), "…", "", None)
    kind, icon, verdict = _verdict(report, known.failing)
    why = report.verdict
    since = "audited"
    since_ms = known.audited_ms
    if kind == "new" and not report.ledger.published:
        kind = "wait"
        icon = "clock"
        verdict = "No events yet"
        why = "The audit has found no published event."
    elif kind == "new" and known.has_changed and _age_ms(known) >= _GETS_OLD_MS:
        kind = "wait"
        icon = "clock"
        verdict = f"Balanced {rough(_age_ms(known))} ago"
        why = "Events have come since the audit: another one says whether they add up."
        since = ""  # the verdict says it
        since_ms = None
    letters = report.ledger.waiting if known.letters is None else known.letters
    if kind == "new" and letters:
        kind = "take"
        icon = "mail"
        verdict = f"{counted(letters, 'letter')}, 0 lost"
    if known.is_awaited:
        since = "auditing…"
        since_ms = None
    return Standing(kind, icon, verdict, why, _counts(known, report), "?", since, since_ms)


def _age_ms(known: Known) -> float:
    return known.now_ms - (known.audited_ms or known.now_ms)


def _verdict(report: Report, failing: Sequence[Outage]) -> tuple[str, str, str]:
    """Return kind, icon and words of an audit's verdict, and of what has failed since."""
    now = "".join(f", {each.consumer} fails now" for each in failing)
    if report.status == 1:
        wrong = [*report.ledger.wrong, *report.saga.wrong]
        return "fail", "cross", _short(", ".join(wrong) + now)
    if report.ledger.blind:
        return "wait", "clock", _short(f"Cannot tell{now}")
    if failing:
        return "take", "warn", _short(f"Balanced{now}")
    return "new", "check", "Balanced"


def _short(text: str) -> str:
    capital = text[:1].upper() + text[1:]
    return capital if len(capital) <= _MOST_WORDS else f"{capital[:_MOST_WORDS]}…"


def _counts(known: Known, report: Report | None) -> tuple[Count, ...]:
    lost = None
    doubled = None
    letters = None
    if known.silent_since_ms is None:
        letters = known.letters
    if report is not None:
        lost = report.ledger.lost
        doubled = report.ledger.doubled
    return (
        Count("lost", lost, "/ledger", "fail"),
        Count("doubled", doubled, "/ledger", "fail"),
        Count("dead letters", letters, "/letters", "dead"),
    )
