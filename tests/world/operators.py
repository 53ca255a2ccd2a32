"""The operator, who mends what is left of a story: with the functions of `./carride`."""

from typing import TYPE_CHECKING, Final

from ops.dead_letters import READERS
from ops.redrive import Redrive, plan_redrive
from tests.world.aws import stack_of

if TYPE_CHECKING:
    from tests.world.run import World

ROUNDS: Final = 3
"""A key whose last attempt was killed is quarantined by its first redrive, and released by the
second."""


def redrive(world: "World") -> None:
    """Redrive every dead letter, and release its key if it is quarantined.

    A tick of the reconciler is not redriven: the next one has done its work.
    """
    stack = stack_of(world)
    world.queues.by_name["ReconcilerDlq"].messages.clear()
    for queue in READERS:
        if not world.queues.by_name[queue].messages:
            continue
        world.cloud.say(f"redrives {queue}", "operator")
        plan = plan_redrive(stack, queue, release=True)
        for each in plan.letters:
            world.cloud.counts[f"redrive: {each.verdict.why}"] += 1
        Redrive(stack, plan, canary=False, report=_silent, sleep=_at_once).carry_out()


def _silent(_: str) -> None:
    """Say nothing."""


def _at_once(_: float) -> None:
    """Wait for nothing."""
