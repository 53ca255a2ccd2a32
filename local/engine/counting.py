"""Counts of what is not done yet, kind by kind."""

from collections.abc import Callable


class Counts:
    """Asks whoever keeps work how much of it is left."""

    def __init__(self) -> None:
        self._kinds: dict[str, Callable[[], int]] = {}

    def register(self, kind: str, count: Callable[[], int]) -> None:
        """Add a count of things that are not done, under the name that it is reported by."""
        self._kinds[kind] = count

    def report(self) -> dict[str, int]:
        """How much of each kind of work is left; all zero when nothing will happen until somebody calls.

        Kinds are counted one after the other, and work moves between them meanwhile: what a function writes is a
        stream's record, and then another function's event. So nothing is taken for quiet that was looked at only once.
        """
        counts = self._look()
        return counts if any(counts.values()) else self._look()

    def _look(self) -> dict[str, int]:
        return {kind: count() for kind, count in self._kinds.items()}
