"""Visit every state of a world breadth-first, so that a broken promise has a shortest timeline."""

from collections.abc import Collection
from typing import NamedTuple

from tests.idempotency.explorer.promises import Broken
from tests.idempotency.explorer.world import Scenario, State, World


class Result(NamedTuple):
    """What a search found. It is complete unless a promise was broken."""

    visited: Collection[State]
    outcomes: frozenset[str]
    """What became of deliveries, in any state."""
    overlaps: int
    """How many steps took a key from a process that held it."""
    timeline: str | None
    """The steps to a broken promise; None if there is none."""


def explore(scenario: Scenario, *, reduced: bool = True) -> Result:
    """Visit every state of ``scenario``, up to a broken promise."""
    world = World(scenario, reduced=reduced)
    came_from: dict[State, State | None] = {world.initial(): None}
    frontier = [world.initial()]
    timeline: list[str] = []
    try:
        while frontier:
            reached: list[State] = []
            for state in frontier:
                for what, subject, take in world.steps(state):  # noqa: B007 - read where a promise is broken
                    after = take()
                    if after not in came_from:
                        came_from[after] = state
                        reached.append(after)
            frontier = reached
    except Broken as broken:
        timeline = [world.describe(state, what, subject), f"BROKEN: {broken}"]
        while (before := came_from[state]) is not None:
            step = next(step for step in world.steps(before) if step[2]() == state)
            timeline.insert(0, world.describe(before, *step[:2]))
            state = before
    return Result(came_from.keys(), frozenset(world.processes.outcomes), world.overlaps, "\n".join(timeline) or None)
