"""Goes everywhere in a world, nearest states first, so that a broken promise is told by a shortest story."""

import gc
import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.explorer.world import Broken, Label, Scenario, State, World


class Story(NamedTuple):
    """How a promise came to be broken."""

    promise: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((*self.lines, f"BROKEN: {self.promise}"))


class Result(NamedTuple):
    """What a search found."""

    scenario: str
    states: int
    steps: int
    depth: int
    """The length of the longest of the shortest ways to a state."""
    complete: bool
    """Every state within the scenario's bounds was visited; or the search was capped or ended by a broken promise."""
    seconds: float
    outcomes: frozenset[str]
    """What became of deliveries, somewhere."""
    overlaps: int
    """How many steps took a key from a process that held it: none where the clocks are as close as is allowed."""
    story: Story | None


def explore(
    scenario: Scenario, *, max_states: int | None = None, progress: Callable[[int, int], object] | None = None
) -> Result:
    """Visit every state of ``scenario``, or about ``max_states``; tell ``progress`` how many, and how far away."""
    began = time.monotonic()
    world = World(scenario)
    came_from: dict[State, State | None] = {world.initial(): None}
    frontier = [world.initial()]
    steps = depth = 0
    story: Story | None = None
    complete = True
    collecting = gc.isenabled()
    gc.disable()  # millions of small tuples, none of them in a cycle
    try:
        while frontier and complete:
            reached: list[State] = []
            for state in frontier:
                found = world.steps(state)
                steps += len(found)
                for _, after in found:
                    if after not in came_from:
                        came_from[after] = state
                        reached.append(after)
                if max_states is not None and len(came_from) >= max_states:
                    complete = False
                    break
            if reached:
                depth += 1
            if progress is not None:
                progress(len(came_from), depth)
            frontier = reached
    except Broken as broken:
        complete = False
        story = Story(broken.promise, tuple(_told(world, came_from, state, broken)))
    finally:
        if collecting:
            gc.enable()
    return Result(
        scenario.name,
        len(came_from),
        steps,
        depth,
        complete,
        time.monotonic() - began,
        frozenset(world.outcomes),
        world.overlaps,
        story,
    )


def _told(world: World, came_from: dict[State, State | None], last: State, broken: Broken) -> list[str]:
    way = [last]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    way.reverse()
    lines = [world.describe(state, _label(world, state, after)) for state, after in itertools.pairwise(way)]
    return [*lines, world.describe(last, broken.label)]


def _label(world: World, state: State, after: State) -> Label:
    return next(label for label, to in world.steps(state) if to == after)
