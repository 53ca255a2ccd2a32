"""What the desk's numbers of deliveries count: each kind of outcome is in one of them. No I/O."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ops.desk.facts import GROUPS


class Count(NamedTuple):
    """A number of deliveries, which the ledger and Flow show alike."""

    group: str
    """The name of its outcomes in `GROUPS`."""
    kind: str
    """Its colour."""
    label: str
    says: str
    """What it counts, for whoever points at it."""

    @property
    def row(self) -> str:
        """The name of its row in the ledger."""
        return f"deliveries-{self.group}"

    @property
    def outcomes(self) -> frozenset[str]:
        """The outcomes of the deliveries that it counts."""
        return GROUPS[self.group]

    def of(self, outcomes: Mapping[str, int]) -> int:
        """Return the number, from the deliveries by outcome."""
        return sum(outcomes.get(each, 0) for each in self.outcomes)


DELIVERIES: Final = (
    Count("new", "new", "took effect", "committed at once, or on a retry; without takeovers"),
    Count("duplicate", "dup", "duplicate", "recognised and skipped, or left to another delivery"),
    Count("takeover", "take", "takeover", "committed what a crashed attempt had begun"),
    Count("fenced", "fence", "late write fenced off", "ended after its lease: it wrote nothing"),
    Count("failed", "fail", "failed", "raised an error; it is delivered again"),
    Count("dead", "dead", "given up", "failed for the last time"),
    Count(
        "refused", "refused", "refused", "its key is quarantined: nothing ran, no letter came of it"
    ),
    Count("expired", "expired", "dropped as expired", "came after the event's expiry time"),
)
"""All deliveries that were logged; a crash logs nothing. They add up to the deliveries."""
