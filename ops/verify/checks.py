"""All checks: importing the modules registers them, in the order in which they are run."""

from ops.verify import deployed, behaviour, drills  # isort: skip - the order of the checks
from ops.verify.registry import CHECKS

__all__ = ["CHECKS", "behaviour", "deployed", "drills"]
