"""The audit of a stack: whether every event took effect once, and whether every ride ended as it should.

report = audit(site)
print(report.to_text())
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from carride.overdue import LIMIT
from ops.audit.evidence import CONSUMERS, AuditedConsumer, Evidence, GatewayPayment
from ops.audit.ledger import Ledger, balance
from ops.audit.reading import DEFAULT_GRACE, evidence, gateway_payments
from ops.audit.regions import merged
from ops.audit.saga import Saga, check
from ops.site import Site

__all__ = [
    "CONSUMERS",
    "DEFAULT_GRACE",
    "AuditedConsumer",
    "Evidence",
    "Report",
    "audit",
    "gateway_payments",
    "judge",
    "read",
]

BALANCED: Final = 0
WRONG: Final = 1
CANNOT_TELL: Final = 3


class Report(NamedTuple):
    """What an audit has found."""

    saga: Saga
    ledger: Ledger

    @property
    def status(self) -> int:
        """The exit status of a command: 0 balanced, 1 something is wrong, 3 the evidence is incomplete."""
        if self.ledger.wrong or not self.saga.sound:
            return WRONG
        return CANNOT_TELL if self.ledger.blind else BALANCED

    @property
    def verdict(self) -> str:
        """What is wrong, or that nothing is, in one line."""
        rides = {"broken": len(self.saga.problems), "overdue": len(self.saga.overdue)}
        wrong = [f"{count} rides {what}" for what, count in rides.items() if count]
        return "; ".join(wrong if self.ledger.balanced and wrong else [self.ledger.verdict, *wrong])

    def to_json(self) -> dict[str, object]:
        """Return the ledger as JSON-ready values, with the saga under a key of its own."""
        return self.ledger.to_json() | {"verdict": self.verdict, "saga": self.saga.to_json()}

    def to_text(self) -> str:
        """Return both as tables."""
        return f"{self.saga.to_text()}\n\n{self.ledger.to_text()}\n\n{self.verdict}"


def read(*sites: Site, grace: timedelta = DEFAULT_GRACE, payments: Sequence[GatewayPayment] | None = None) -> Evidence:
    """Read all evidence of a stack in one region, or in two.

    Args:
        *sites: the stack in each region.
        grace: how old an event must be before it is judged.
        payments: the gateway's ledger; None where it cannot be asked.
    """
    found = [(site.region, evidence(site, grace=grace, payments=payments)) for site in sites]
    return found[0][1] if len(found) == 1 else merged(found)


def judge(found: Evidence, *, overdue_after: timedelta = LIMIT) -> Report:
    """Compute saga and ledger from evidence."""
    return Report(check(found, overdue_after=overdue_after), balance(found))


def audit(
    *sites: Site,
    grace: timedelta = DEFAULT_GRACE,
    payments: Sequence[GatewayPayment] | None = None,
    overdue_after: timedelta = LIMIT,
) -> Report:
    """Read all evidence of a stack and judge it; arguments as in `read` and `judge`."""
    return judge(read(*sites, grace=grace, payments=payments), overdue_after=overdue_after)
