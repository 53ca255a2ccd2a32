"""The verbs of dead letters and quarantined keys."""

from collections import Counter
from typing import NamedTuple

from ops import redrive as letters
from ops.cli.verbs import Plan, Session, Steps, acts


class Waiting(NamedTuple):
    """The messages of a dead-letter queue, and where a redrive sends them."""

    queue: str
    messages: Counter[str]
    """Their number, by reason."""
    target: str


@acts("redrive")
def redrive(session: Session, queue: str, /, *, release: bool = False) -> Plan:
    """Send dead letters to their target.

    Other targets do not receive them. Messages that would only return stay in the queue.

    Args:
        queue: Logical id of the queue: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …
        release: Release quarantined keys first; their cause is fixed.
    """
    stack = session.stack
    waiting = Waiting(queue, letters.waiting(stack, queue), letters.target_of(stack, queue))
    return Plan(waiting, lambda: letters.redrive(stack, queue, release=release), (stack,))


@acts("release")
def release(session: Session, key: str, /) -> Plan:
    """Let a quarantined key run again.

    Release it when the cause of its failure is fixed, then redrive its message from the dead-letter queue: its next
    delivery is attempt 1.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    key, stack = letters.checked_key(key), session.stack
    return Plan(Steps((f"release {key}",)), lambda: {"released": letters.release_key(stack, key)}, (stack,))
