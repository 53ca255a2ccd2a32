"""What the demo says about a report: injected faults, unusual numbers, the verdict and where to look. No I/O."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from ops.audit import Report

_MOST_COMMANDS: Final = 5
_INJECTED: Final = {
    "copy": ("copy", "copies"),
    "crash": ("crash", "crashes"),
    "fail": ("failure", "failures"),
    "poison": ("poison", "poison"),
    "malformed": ("malformed", "malformed"),
    "late": ("late", "late"),
    "slow": ("slow", "slow"),
}
"""What the simulator counts, in the words of the demo: one, and several."""
_ACCOUNTS: Final = {
    "duplicates_absorbed": (
        "skipped duplicates",
        "copies and redeliveries: their record says done",
    ),
    "retried": ("retried", "raised once; the next delivery took effect"),
    "takeovers": ("taken over", "killed with their process; the next delivery did the work"),
    "failed": ("failed", "raised or could not get the key; delivered again, or dead-lettered"),
    "expired": ("expired", "too old on arrival: dropped without an effect"),
}
_REASONS: Final = {
    "CONTRACT": "break the event contract: no retry can help",
    "QUARANTINED": "poison: failed at every attempt, and runs no more",
    "RetriesExhausted": "failed at every attempt of Lambda",
    "EntryTooLarge": "too large for the bus, which refused it",
    "MalformedDetail": "no JSON: the bus refused it",
}


def injected(counts: Mapping[str, int]) -> str:
    """Return what the simulator injected, as in ``309 copies, 2 crashes``."""
    found = ((counts.get(name, 0), words) for name, words in _INJECTED.items())
    return ", ".join(f"{number:,} {words[number > 1]}" for number, words in found if number)


def unusual(report: Report) -> list[tuple[int, str, str]]:
    """Return the numbers that a run without faults would not have, each with what it counts and why it is not zero."""
    accounts, reasons = report.ledger.consumers.values(), Counter[str]()
    for found in report.ledger.dead_lettered.values():
        reasons.update(found)
    lines = [
        (sum(getattr(account, name) for account in accounts), *words)
        for name, words in _ACCOUNTS.items()
    ]
    for reason, number in reasons.items():
        lines.append(
            (number, "waiting for redrive", _REASONS.get(reason, f"{reason}: see docs/runbooks"))
        )
    lines.append(
        (report.saga.reconciled, "reconciled", "rides that stood still, settled by the reconciler")
    )
    return [line for line in lines if line[0]]


def verdict(report: Report, counts: Mapping[str, int]) -> str:
    """Return the result in one sentence."""
    if report.status or not report.saga.settled:
        return f"Something is wrong: {report.verdict if report.status else 'rides are open, or hold a car'}."
    takeovers = sum(account.takeovers for account in report.ledger.consumers.values())
    return (
        f"{report.ledger.lost} lost, {report.ledger.doubled} doubled "
        f"despite {counts.get('copy', 0):,} copies and {takeovers:,} takeovers."
    )


def commands(report: Report) -> list[str]:
    """Return the commands that look into what is wrong."""
    accounts, saga = report.ledger.consumers.values(), report.saga
    events = sorted(
        {
            name
            for account in accounts
            for name in (*account.lost_events, *account.effects_unpublished)
        }
    )
    doubled = (ride for account in accounts for ride in account.doubled_rides)
    rides = sorted({*doubled, *saga.problems, *saga.overdue})
    found = [
        *(f"./carride event {name}" for name in events),
        *(f"./carride ride {name}" for name in rides),
    ]
    return [*found[:_MOST_COMMANDS], "./carride audit"] if report.status or not saga.settled else []
