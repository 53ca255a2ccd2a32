"""The verdict on the worst mix of faults."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import payments
from carride_idempotency import marshalling
from gateway import Step
from local import faults
from local.worst import asked_until, letters_of_kept_errors, wrong_in
from ops.audit import Report, judge
from ops.audit.evidence import CONSUMERS, Evidence
from ops.dead_letters import DeadLetter

SOUND = judge(Evidence(CONSUMERS, payments=[]))


def reported(**changes: dict[str, Any]) -> Report:
    """Return a report with these changes to its saga or ledger."""
    return SOUND._replace(
        **{
            name: dataclasses.replace(getattr(SOUND, name), **each)
            for name, each in changes.items()
        }
    )


def account(**changes: Any) -> Report:
    """Return a report with these changes to the account of a consumer."""
    consumers = SOUND.ledger.consumers
    return reported(
        ledger={
            "consumers": {
                **consumers,
                "dispatch": dataclasses.replace(consumers["dispatch"], **changes),
            }
        }
    )


@pytest.mark.parametrize(
    ("report", "lost", "said"),
    [
        (account(lost_events=("fact-1",)), 0, "fact-1"),
        (account(doubled_rides={"order_01": 1}), 0, "order_01"),
        (reported(ledger={"unpublished": ("fact-2",)}), 0, "fact-2"),
        (reported(saga={"problems": {"order_02": ("has 2 cars",)}}), 0, "has 2 cars"),
        (SOUND, 3, "3 events were lost"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_problem_makes_it_unsound_and_is_named(report: Report, lost: int, said: str) -> None:
    """One thing is enough, and the result names it."""
    assert wrong_in(SOUND, {"events were lost": 0}) == []
    (problem,) = wrong_in(report, {"events were lost": lost})
    assert said in problem


def letter(ride: str, fact: str) -> DeadLetter:
    """Return a dead letter of payment."""
    return DeadLetter(
        id="message",
        queue="PaymentDlq",
        group="group",
        reason="QUARANTINED",
        error="GatewayUnavailableError",
        consumer="payment",
        key=f"payment#{fact}",
        fact=fact,
        ride=ride,
        type="CarAssigned",
        sent=datetime(2026, 1, 1, tzinfo=UTC),
        event={},
    )


def test_only_letters_of_kept_errors_are_redriven() -> None:
    """Poison stays, and a letter of another ride was given up without need: it is seen."""
    letters = [
        letter("order_kept", "fact-1"),
        letter("order_kept", "fact-1"),
        letter("order_kept", "poison"),
        letter("order_other", "fact-2"),
    ]
    assert letters_of_kept_errors(letters, {"order_kept"}, {"poison"}) == ["payment#fact-1"]


def test_every_step_that_payment_asked_for_is_waited_for() -> None:
    """A row says until when each may be finished; most rows ask for nothing."""
    ends = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (3, 1)]
    asked = {
        step: {"key_number": 1, "until": end.isoformat()}
        for step, end in zip(("reserve", "capture"), ends, strict=True)
    }
    assert asked_until(marshalling.item({"orderID": "order_01", "asked": asked})) == ends
    assert asked_until(marshalling.item({"orderID": "order_02"})) == []


def test_the_gateways_bound_is_seconds_where_the_variable_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Payment then uses a new key within two minutes; without the variable nothing is replaced."""
    replaced: dict[str, Any] = {}

    def note(owner: Any, name: str, value: Any) -> None:
        if owner is payments:
            replaced[name] = value

    faults.install(note)
    assert replaced == {}
    monkeypatch.setenv(faults.BOUND, "5")
    faults.install(note)
    for name, value in replaced.items():
        monkeypatch.setattr(payments, name, value)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    asked = payments.asked_for({}, payments.Action.AUTHORIZE, now)
    number = {}
    for seconds in (30, 120):
        later = now + timedelta(seconds=seconds)
        again = payments.asked_for(asked, payments.Action.AUTHORIZE, later)
        number[seconds] = again[Step.RESERVE].key_number
    assert number == {30: 1, 120: 2}
