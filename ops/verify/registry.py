"""The registry of checks, in the order in which they are run."""

from collections.abc import Callable
from typing import Final

from ops.verify import Check, Deployment

CHECKS: Final[list[Check]] = []

ON_AWS: Final = ("dev", "prod")
"""The local engine does not simulate what other stages have."""
TRIAL: Final = ("local", "dev")
"""The stages in which a check may publish or break something."""

type Examine = Callable[[Deployment], str]


def check(
    statement: str, *, drill: bool = False, **only: tuple[str, ...]
) -> Callable[[Examine], Examine]:
    """Register a function as the check of a statement; arguments as in `Check`."""

    def register(examine: Examine) -> Examine:
        CHECKS.append(Check(statement, examine, drill, only))
        return examine

    return register


def drill(statement: str) -> Callable[[Examine], Examine]:
    """Register a function as a drill, which disrupts the stack of a trial for a while."""
    return check(statement, drill=True, Stage=TRIAL)
