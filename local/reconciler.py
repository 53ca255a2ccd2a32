"""Runs the deployed reconciler as if it were tomorrow: rides that stand still are overdue then."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from local.local_aws import Stack


def reconcile(stack: Stack, settle: Callable[[], object]) -> int:
    """Run the deployed reconciler until nothing is left to do; count rides still overdue.

    ``settle`` waits after each run.
    """
    time = datetime.now(UTC) + timedelta(days=1)
    while True:
        counts = stack.invoke("ReconcilerFunctionName", {"time": time.isoformat()})
        settle()
        if not counts["reconciled"]:
            return int(counts["overdue"])
        time += timedelta(minutes=5)
