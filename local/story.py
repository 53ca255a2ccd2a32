"""What the demo says about a report: faults, unusual numbers, the verdict and where to look."""

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
    "fenced": ("late writes", "ended after their lease: fenced off"),
    "expired": ("expired", "too old on arrival: dropped without an effect"),
}
_REASONS: Final = {
    "CONTRACT": "break the event contract: no retry can help",
    "QUARANTINED": "poison: failed at every attempt, and runs no more",
    "RetriesExhausted": "failed at every attempt of Lambda",
    "EntryTooLarge": "too large for the bus, which refused it",
    "MalformedDetail": "not JSON: the bus refused it",
}


def injected(counts: Mapping[str, int]) -> str:
    """Return what the simulator injected, as in ``309 copies, 2 crashes``."""
    found = []
    for name, (one, several) in _INJECTED.items():
        number = counts.get(name, 0)
        if number:
            found.append(f"{number:,} {one if number == 1 else several}")
    return ", ".join(found)


def unusual(report: Report) -> list[tuple[int, str, str]]:
    """Return the numbers that a run without faults would not have.

    Each is a tuple: the number, what it counts, and why it is not zero.
    """
    accounts = report.ledger.consumers.values()
    lines = []
    for name, (what, why) in _ACCOUNTS.items():
        lines.append((sum(getattr(account, name) for account in accounts), what, why))
    reasons = Counter[str]()
    for found in report.ledger.dead_lettered.values():
        reasons.update(found)
    for reason, number in reasons.items():
        why = _REASONS.get(reason, f"{reason}: see ops/docs/runbooks")
        lines.append((number, "dead letters", why))
    why = "rides that stood still, settled by the reconciler"
    lines.append((report.saga.reconciled, "reconciled", why))
    return [line for line in lines if line[0]]


def verdict(report: Report, counts: Mapping[str, int]) -> str:
    """Return the result in one sentence."""
    if report.status:
        return f"Something is wrong: {report.verdict}."
    if not report.saga.settled:
        return "Something is wrong: rides are open, or hold a car."
    ledger = report.ledger
    takeovers = sum(account.takeovers for account in ledger.consumers.values())
    return (
        f"{ledger.lost} lost, {ledger.doubled} doubled "
        f"despite {counts.get('copy', 0):,} copies and {takeovers:,} takeovers."
    )


def commands(report: Report) -> list[str]:
    """Return the commands that look into what is wrong."""
    saga = report.saga
    if not report.status and saga.settled:
        return []
    events = set[str]()
    rides = {*saga.problems, *saga.overdue, *saga.unpaid}
    for account in report.ledger.consumers.values():
        events.update(account.lost_events, account.effects_unpublished)
        rides.update(account.doubled_rides)
    found = [f"./carride event {name}" for name in sorted(events)]
    found += [f"./carride ride {name}" for name in sorted(rides)]
    return [*found[:_MOST_COMMANDS], "./carride audit"]
