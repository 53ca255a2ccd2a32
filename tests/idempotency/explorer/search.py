"""Visit every state of a world breadth-first, so that a broken promise has a shortest timeline."""

import itertools
from typing import NamedTuple

from tests.idempotency.explorer.world import Broken, Label, Scenario, State, World


class Result(NamedTuple):
    """What a search found. It is complete unless a promise was broken."""

    states: int
    outcomes: frozenset[str]
    """What became of deliveries, in any state."""
    overlaps: int
    """How many steps took a key from a process that held it."""
    timeline: str | None
    """The steps to a broken promise; None if there is none."""


def explore(scenario: Scenario) -> Result:
    """Visit every state of ``scenario``, up to a broken promise."""
    world = World(scenario)
    came_from: dict[State, State | None] = {world.initial(): None}
    frontier = [world.initial()]
    timeline: str | None = None
    label = Label("")
    try:
        while frontier:
            reached: list[State] = []
            for state in frontier:
                for label, take in world.steps(state):  # noqa: B007 - it is read where a promise is broken
                    after = take()
                    if after not in came_from:
                        came_from[after] = state
                        reached.append(after)
            frontier = reached
    except Broken as broken:
        lines = [*_way(world, came_from, state), world.describe(state, label), f"BROKEN: {broken}"]
        timeline = "\n".join(lines)
    return Result(len(came_from), frozenset(world.processes.outcomes), world.overlaps, timeline)


def _way(world: World, came_from: dict[State, State | None], last: State) -> list[str]:
    way = [last]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    way.reverse()
    return [
        world.describe(state, next(label for label, take in world.steps(state) if take() == after))
        for state, after in itertools.pairwise(way)
    ]
