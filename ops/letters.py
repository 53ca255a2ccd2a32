"""Shows the dead letters of a stack, first those that a redrive can help, with its command."""

import re
from collections.abc import Callable
from functools import cache
from typing import Final

from carride_idempotency.operators.site import Received, Verdict
from ops.audit.evidence import AuditedConsumer
from ops.dead_letters import (
    READERS,
    DeadLetter,
    DeadLetters,
    failures,
    queues_named,
    queues_of,
    received_from,
    redrive_command,
)
from ops.prediction import Predictor
from ops.stack import OperatorError, StackRef
from ops.verbs import reads
from ops.verdicts import verdict_if_released

__all__ = ["judge_of", "letters"]


_may_begin_an_id: Final = re.compile(r"[0-9a-f-]*[0-9][0-9a-f-]*").fullmatch
_LEAST_OF_ID: Final = 4
"""The fewest digits by which a letter is meant, and not a name."""


@reads("letters", "", "payment", "3f2504e0")
def letters(stack: StackRef, name: str | None = None, /) -> DeadLetters | DeadLetter:
    """Show what lies in the dead-letter queues, grouped by failure, and what can be redriven.

    Groups with letters that can be redriven come first, each with the command that shows what a
    redrive would do. Letters of one group have the same queue, consumer, reason and error; ids,
    numbers and the event's type in the error do not count. Of each group the oldest letters are
    shown, without their events; the id of a letter shows it whole. Every letter stays in its queue.

    Args:
        name: A consumer, such as payment; bus; the logical id of one queue; or how a letter's id
            begins.
    """
    if name is not None:
        letter = _letter(stack, name)
        if letter is not None:
            return letter
    names = queues_of(stack) if name is None else queues_named(stack, name)
    found = failures(stack, names, judge=judge_of(stack))
    for group in found.failures:
        if group.goes:
            group.command = redrive_command(
                group.queue, "group", group.group, releases=group.releases
            )
    return found


def _letter(stack: StackRef, name: str) -> DeadLetter | None:
    """Return the letter whose id begins so; None if it cannot be the beginning of one.

    Raises:
        OperatorError: no letter has such an id, or more than one.
    """
    if len(name) < _LEAST_OF_ID or not _may_begin_an_id(name):
        return None
    found = [
        received.letter
        for queue in queues_of(stack)
        for received in received_from(stack, queue)
        if received.letter.id.startswith(name)
    ]
    if len(found) == 1:
        return found[0]
    problem = "no letter has an id that begins so" if not found else "more than one id begins so"
    raise OperatorError(f"{name}: {problem}; `./carride letters` shows the groups")


def judge_of(stack: StackRef) -> Callable[[Received[DeadLetter]], Verdict]:
    """Return what says of a letter what a redrive would do that may release its key."""

    @cache
    def predictor_of(consumer: AuditedConsumer) -> Predictor:
        return Predictor(stack, consumer)

    def judge(found: Received[DeadLetter]) -> Verdict:
        consumer = READERS.get(found.letter.queue)
        predictor = None if consumer is None else predictor_of(consumer)
        return verdict_if_released(found.letter, found.record, predictor)

    return judge
