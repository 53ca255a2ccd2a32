"""Where every ride is, kept from one page to the next: a list counts thousands of them."""

from collections import Counter
from collections.abc import Iterable

from ops.desk.index import Index
from ops.desk.story_known import Ending, ending_of


class Endings:
    """Where the rides of an index are."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, str, Ending]] = {}

    def of(self, index: Index, ride: str) -> Ending:
        """Return where a ride is; it is computed again if the ride has got or lost an event."""
        names = index.rides[ride]
        kept = self._kept.get(ride)
        if kept is None or kept[0] != len(names) or kept[1] != names[-1]:
            types = {index.facts[name].type for name in names}
            kept = self._kept[ride] = (len(names), names[-1], ending_of(types))
        return kept[2]

    def counts(self, index: Index, rides: Iterable[str]) -> Counter[str]:
        """Return how many of some rides are where, by the word for it.

        A ride without an event in the index does not count.
        """
        if len(self._kept) > 2 * len(index.rides):
            self._kept.clear()
        words = list[str]()
        for ride in rides:
            names = index.rides.get(ride)
            if names is None:
                continue
            kept = self._kept.get(ride)
            if kept is None or kept[0] != len(names) or kept[1] != names[-1]:
                words.append(self.of(index, ride).word)
            else:
                words.append(kept[2].word)
        return Counter(words)
