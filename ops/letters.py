"""Shows the dead letters of a stack, first those that a redrive can help, with its command."""

import shlex
from collections.abc import Callable
from functools import cache

from carride_idempotency.operators.sending import Verdict
from ops.dead_letters import DeadLetters, Received, failures
from ops.redrive import predictor_of, verdict_if_released
from ops.stack import StackRef
from ops.verbs import reads

__all__ = ["judge_of", "letters"]


@reads("letters")
def letters(stack: StackRef, queue: str | None = None, /) -> DeadLetters:
    """Show what lies in the dead-letter queues, grouped by failure, and what can be redriven.

    Groups with letters that can be redriven come first, each with the command that shows what a
    redrive would do. Letters of one group have the same queue, consumer, reason and error; ids and
    numbers in the error do not count. Of each group the oldest letters are shown. Every letter
    stays in its queue.

    Args:
        queue: Logical id of one queue: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …
    """
    found = failures(stack, queue, judge=judge_of(stack))
    for group in found.failures:
        if group.goes:
            words = ["./carride", "redrive", group.queue, f"--group={group.group}"]
            if group.releases:
                words.append("--release")
            group.command = shlex.join(words)
    return found


def judge_of(stack: StackRef) -> Callable[[Received], Verdict]:
    """Return what says of a letter what a redrive would do that may release its key."""
    known = cache(lambda queue: predictor_of(stack, queue))

    def judge(found: Received) -> Verdict:
        return verdict_if_released(found.letter, found.record, known(found.letter.queue))

    return judge
