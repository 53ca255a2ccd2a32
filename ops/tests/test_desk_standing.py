"""What the status bar says, and when a consumer is said to fail."""

from dataclasses import replace
from typing import Any, Final

import pytest

from carride_idempotency import observation
from ops.audit import Report, judge
from ops.audit.evidence import Evidence
from ops.audit.problems import Broken, Problem
from ops.desk.outages import Outage, Outages
from ops.desk.standing import Known, Standing, standing

NOW_MS: Final = 1_800_000_000_000
NOTHING: Final = judge(Evidence(consumers=()))
SOUND: Final = NOTHING._replace(ledger=replace(NOTHING.ledger, published=1))
CHARGED: Final = Problem(Broken.CHARGED_AGAIN, times=2)
BROKEN: Final = SOUND._replace(saga=replace(SOUND.saga, problems={"order_01": [CHARGED]}))
BLIND: Final = SOUND._replace(ledger=replace(SOUND.ledger, blind=("no log",)))
FAILING: Final = Outage("payment", NOW_MS, NOW_MS)


def bar(report: Report | None = SOUND, **changes: Any) -> Standing:
    """Return the status bar of a stack that is well, with changes."""
    known = Known(
        report=report,
        audited_ms=NOW_MS,
        audits_by_itself=True,
        is_awaited=False,
        has_changed=False,
        now_ms=NOW_MS + 9_000,
        letters=7,
        failing=(),
        silent_since_ms=None,
    )
    return standing(known._replace(**changes))


@pytest.mark.parametrize(
    ("report", "changes", "kind", "verdict"),
    [
        (SOUND, {"letters": 0}, "new", "Balanced"),
        (SOUND, {}, "take", "7 letters, 0 lost"),
        (SOUND, {"letters": 1}, "take", "1 letter, 0 lost"),
        (SOUND, {"failing": [FAILING]}, "take", "Balanced, payment fails now"),
        (BROKEN, {}, "fail", "1 ride broken"),
        (BROKEN, {"failing": [FAILING]}, "fail", "1 ride broken, payment fails now"),
        (BLIND, {}, "wait", "Cannot tell"),
        (NOTHING, {}, "wait", "No events yet"),
        (None, {}, "wait", "First audit is running"),
        (None, {"audits_by_itself": False}, "wait", "Not audited yet"),
        (SOUND, {"silent_since_ms": NOW_MS}, "wait", "Unknown"),
        (BROKEN, {"silent_since_ms": NOW_MS}, "wait", "Unknown"),
    ],
)
def test_green_stands_beside_nothing_broken(
    report: Report | None, changes: dict[str, Any], kind: str, verdict: str
) -> None:
    """The verdict is the audit's, and what fails now is named beside it."""
    found = bar(report, **changes)
    assert (found.kind, found.verdict) == (kind, verdict)


def test_old_numbers_are_not_shown_as_new_ones() -> None:
    """If the stack does not answer, no number is known, and the bar says since when."""
    found = bar(BROKEN, silent_since_ms=NOW_MS)
    assert [count.number for count in found.counts] == [None, None, None]
    assert (found.since, found.since_ms) == ("since", NOW_MS)
    assert [count.number for count in bar().counts] == [0, 0, 7]


@pytest.mark.parametrize(
    ("report", "minutes", "has_changed", "kind", "verdict"),
    [
        (SOUND, 9, True, "new", "Balanced"),
        (SOUND, 15, True, "wait", "Balanced 15 min ago"),
        (SOUND, 15, False, "new", "Balanced"),
        (BROKEN, 15, True, "fail", "1 ride broken"),
    ],
)
def test_an_old_verdict_is_not_said_of_the_present(
    report: Report, minutes: int, has_changed: bool, kind: str, verdict: str
) -> None:
    """If anything has happened since, it says how old it is; what is broken stays broken."""
    now_ms = NOW_MS + 60_000 * minutes
    found = bar(report, now_ms=now_ms, has_changed=has_changed, letters=0)
    assert (found.kind, found.verdict) == (kind, verdict)
    says_age = "ago" in verdict
    assert (found.since_ms is None) is says_age, "the age stands there once"


def test_an_audit_that_was_asked_for_is_seen_to_run() -> None:
    """In place of the age of the last one."""
    found = bar(is_awaited=True)
    assert (found.since, found.since_ms) == ("auditing…", None)
    assert bar(None, audits_by_itself=False, is_awaited=True).verdict == "First audit is running"


def outages(*deliveries: tuple[str, str]) -> Outages:
    """Return the outages after deliveries, each an outcome and its event, a second apart."""
    found = Outages()
    for second, (outcome, event) in enumerate(deliveries):
        found.add("payment", outcome, event, "no answer", NOW_MS + second * 1000)
    return found


FAILED: Final = observation.FAILED
LETTERED: Final = observation.DEAD_LETTERED


@pytest.mark.parametrize(
    ("deliveries", "is_on"),
    [
        ([(FAILED, "a"), (FAILED, "b"), (FAILED, "a")], True),
        ([(FAILED, "a"), (FAILED, "a"), (FAILED, "a")], False),
        ([(FAILED, "a"), (FAILED, "b")], False),
        ([(FAILED, "a"), (observation.NEW, "c"), (FAILED, "b"), (FAILED, "a")], False),
        ([(FAILED, "a"), (FAILED, "b"), (observation.DUPLICATE, "c"), (FAILED, "a")], True),
        ([(FAILED, "a"), (FAILED, "b"), (FAILED, "a"), (observation.RETRIED, "a")], False),
        ([(FAILED, "a"), (FAILED, "b"), (FAILED, "a"), (LETTERED, "a")], True),
        ([(FAILED, "a"), (FAILED, "b"), (FAILED, "a"), (LETTERED, "a"), (LETTERED, "b")], False),
    ],
)
def test_a_consumer_fails_if_nothing_takes_effect_between_failures(
    deliveries: list[tuple[str, str]], is_on: bool
) -> None:
    """Three in a row of two events; one poisonous event is no outage, and a duplicate no effect."""
    found = outages(*deliveries).now(NOW_MS + 9_000)
    assert [(each.consumer, each.since_ms, each.reason) for each in found] == [
        ("payment", NOW_MS, "no answer")
    ] * is_on


def test_an_outage_is_kept_with_its_end() -> None:
    """Its band stays in the picture until the picture has moved on."""
    found = outages((FAILED, "a"), (FAILED, "b"), (FAILED, "b"), (observation.NEW, "c"))
    (past,) = found.of("payment", NOW_MS)
    assert (past.since_ms, past.until_ms) == (NOW_MS, NOW_MS + 3_000)
    assert found.of("payment", NOW_MS + 4_000) == []
    assert found.of("dispatch", NOW_MS) == []


GIVEN_UP: Final = (*((FAILED, each) for each in "abc"), *((LETTERED, each) for each in "abc"))


@pytest.mark.parametrize(
    ("before", "after", "until_ms"),
    [
        ([], [], [None]),
        ([], [(observation.NEW, "d")], [NOW_MS + 6_000]),
        ([(FAILED, "a"), (FAILED, "b"), (FAILED, "c"), (observation.NEW, "d")], [], []),
    ],
)
def test_a_consumer_that_gave_up_is_not_said_to_work_before_it_does(
    before: list[tuple[str, str]], after: list[tuple[str, str]], until_ms: list[int | None]
) -> None:
    """An outage ends with an effect; events that failed beside effects before are none."""
    found = outages(*before, *GIVEN_UP, *after)
    since_ms = NOW_MS + 1_000 * len(before)
    assert [each.until_ms for each in found.of("payment", since_ms)] == until_ms


@pytest.mark.parametrize("minutes", [1, 3.3, 5, 20])
def test_a_consumer_that_fails_again_after_minutes_has_not_worked_between(minutes: float) -> None:
    """Whenever its events are tried again: only an effect shows that it works."""
    found = Outages()
    again_ms = NOW_MS + round(minutes * 60_000)
    for begin_ms, outcome in ((NOW_MS, FAILED), (again_ms, FAILED), (again_ms + 3_000, LETTERED)):
        for number, event in enumerate("abc"):
            found.add("payment", outcome, event, "no answer", begin_ms + 500 * number)
    (newest,) = found.of("payment", again_ms + 9_000)
    assert newest.until_ms is None


def test_an_outage_of_which_nothing_more_is_heard_is_not_on_for_ever() -> None:
    """A stack without traffic says nothing about its consumers."""
    found = outages((FAILED, "a"), (FAILED, "b"), (FAILED, "a"))
    assert found.now(NOW_MS + 5 * 60_000) == []


def test_an_outage_begins_with_its_own_first_failure() -> None:
    """Not with that of an event that was given up, or that failed long before."""
    given_up = outages((FAILED, "a"), (FAILED, "a"), (FAILED, "a"), (LETTERED, "a"))
    long_before = outages((FAILED, "a"))
    later_ms = NOW_MS + 20 * 60_000
    for found in (given_up, long_before):
        for second, event in enumerate("bcdb"):
            found.add("payment", FAILED, event, "no answer", later_ms + second * 1000)
        (outage,) = found.now(later_ms + 9_000)
        assert (outage.since_ms, outage.failures) == (later_ms, 4)
