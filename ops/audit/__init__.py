"""The audit of a stack: whether each event took effect once and each ride ended as it should."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from carride.overdue import LIMIT
from ops.audit.evidence import CONSUMERS, Evidence, GatewayPayment
from ops.audit.ledger import Ledger, balance
from ops.audit.reading import DEFAULT_GRACE, READING, gateway_payments, regional_evidence
from ops.audit.regions import as_one_stack
from ops.audit.saga import Saga, saga_of
from ops.stack import StackRef
from ops.text import laid_out

__all__ = [
    "CONSUMERS",
    "DEFAULT_GRACE",
    "Evidence",
    "Report",
    "audit",
    "collect_evidence",
    "gateway_payments",
    "judge",
]


class Report(NamedTuple):
    """The result of an audit."""

    saga: Saga
    ledger: Ledger

    @property
    def status(self) -> int:
        """The exit status of a command: 0 balanced, 1 something is wrong, 3 cannot tell."""
        if self.ledger.wrong or not self.saga.sound:
            return 1
        return 3 if self.ledger.blind else 0

    @property
    def verdict(self) -> str:
        """The result in one line."""
        parts = [self.ledger.verdict, *self.saga.wrong]
        if self.ledger.balanced and not self.saga.sound:
            parts = self.saga.wrong
        return "; ".join(parts)

    def to_json(self) -> dict[str, object]:
        """Return the ledger as JSON-ready values, with the saga under a key of its own.

        What does not add up is listed whole, such as ``lost``, ``doubled``, ``overdue``,
        ``keys_without_letter`` and ``saga.problems``; the lines of `to_text` below the verdict name
        twenty of each kind.
        """
        saga = self.saga.to_json()
        overdue = saga.pop("overdue")
        parts = {"verdict": self.verdict, "overdue": overdue, "saga": saga}
        return self.ledger.to_json() | parts

    def to_text(self, width: int | None = None) -> str:
        """Return the verdict, what does not add up, and tables, or lines that fit into a width.

        What is zero, or as it should be, has no line: `to_json` has everything.
        """
        wrong = [*self.saga.named(), *self.ledger.lines_of_named()]
        tables = [*self.saga.lines(), "", *self.ledger.lines()]
        return laid_out([self.verdict, *wrong, "", *tables], width)


def collect_evidence(
    *stacks: StackRef,
    grace: timedelta = DEFAULT_GRACE,
    payments: Sequence[GatewayPayment] | None = None,
) -> Evidence:
    """Read all evidence of a stack in one region, or in two.

    An event that is younger than ``grace`` is not judged. ``payments`` are the gateway's ledger,
    None if it cannot be asked.
    """
    with READING:
        found = [(stack.region, regional_evidence(stack, grace, payments)) for stack in stacks]
    return found[0][1] if len(found) == 1 else as_one_stack(found)


def judge(evidence: Evidence, *, overdue_after: timedelta = LIMIT) -> Report:
    """Compute saga and ledger. ``overdue_after`` is how long a ride may need something."""
    return Report(saga_of(evidence, overdue_after=overdue_after), balance(evidence))


def audit(
    *stacks: StackRef,
    grace: timedelta = DEFAULT_GRACE,
    payments: Sequence[GatewayPayment] | None = None,
    overdue_after: timedelta = LIMIT,
) -> Report:
    """Read all evidence of a stack and judge it; arguments as in `collect_evidence` and `judge`."""
    return judge(
        collect_evidence(*stacks, grace=grace, payments=payments), overdue_after=overdue_after
    )
