"""Where the rides of an index are, and their order: kept while events come and go. No I/O."""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_ENDINGS: Final = (
    ("PaymentCaptured", "paid", "new", "check"),
    ("PaymentDeclined", "declined", "take", "card"),
    ("NoCarAvailable", "unserved", "take", "car"),
    ("CarRideCancelled", "cancelled", "dup", "cross"),
    ("CarRideOverdue", "settled", "take", "robot"),
    ("CarRideCompleted", "completed", "pub", "clock"),
    ("CarRideStarted", "started", "pub", "clock"),
    ("CarRideAccepted", "accepted", "pub", "clock"),
    ("CarAssigned", "accepted", "pub", "clock"),
    ("PaymentAuthorized", "accepted", "pub", "clock"),
)
"""Where a ride is, by the first of these events that it has: the audit's words for its end."""


class Ending(NamedTuple):
    """Where a ride is, in a word with its look."""

    word: str
    kind: str
    icon: str


def ending_of(types: Collection[str | None]) -> Ending:
    """Return where a ride is that has events of these types."""
    for kind, *look in _ENDINGS:
        if kind in types:
            return Ending(*look)
    return Ending("requested", "wait", "clock")


class Rides(NamedTuple):
    """A part of a list of rides."""

    names: list[str]
    total: int
    """All rides of the list."""
    newer: int
    """Rides of the list that have an event after the newest one that was asked for."""


@dataclass(slots=True)
class _Held:
    """A ride of the index."""

    ending: Ending
    numbers: list[int] = field(default_factory=list)
    """Of its events, ascending."""
    types: Counter[str | None] = field(default_factory=Counter)


class Endings:
    """Where rides are that have events in an index, and the order of their newest events.

    Events are numbered in the order in which the index has heard of them.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._ride_at: dict[int, str] = {}
        """The ride of an event, by the event's number."""
        self._newest = defaultdict[str, list[int]](list)
        """The numbers of the newest events of rides, ascending, by the word for where they are."""

    def of(self, ride: str) -> Ending | None:
        """Return where a ride is; None if the index holds no event of it."""
        held = self._held.get(ride)
        return None if held is None else held.ending

    def count(self, rides: Iterable[str] | None = None) -> Counter[str]:
        """Return how many of some rides are where, by the word for it; without any, of all.

        A ride without an event in the index does not count.
        """
        if rides is None:
            return Counter({word: len(numbers) for word, numbers in self._newest.items()})
        endings = [self.of(ride) for ride in rides]
        return Counter(each.word for each in endings if each is not None)

    def add(self, ride: str, number: int, kind: str | None) -> None:
        """Add an event to its ride."""
        held = self._held.get(ride)
        if held is None:
            held = self._held[ride] = _Held(ending_of(()))
        else:
            self._take_out(held)
        insort(held.numbers, number)
        held.types[kind] += 1
        self._ride_at[number] = ride
        self._put_in(held)

    def forget(self, ride: str, number: int, kind: str | None) -> None:
        """Take an event out of its ride; a ride without events is forgotten."""
        held = self._held[ride]
        self._take_out(held)
        held.numbers.remove(number)
        held.types[kind] -= 1
        if not held.types[kind]:
            del held.types[kind]
        del self._ride_at[number]
        if held.numbers:
            self._put_in(held)
        else:
            del self._held[ride]

    def _take_out(self, held: _Held) -> None:
        """Take a ride, which is about to change, out of the numbers of its word."""
        word = held.ending.word
        numbers = self._newest[word]
        del numbers[bisect_left(numbers, held.numbers[-1])]
        if not numbers:
            del self._newest[word]

    def _put_in(self, held: _Held) -> None:
        """Find out where a ride is now, and put it there."""
        held.ending = ending_of(held.types)
        insort(self._newest[held.ending.word], held.numbers[-1])

    def rides(
        self, newest: int, begin: int, count: int, words: Collection[str] | None = None
    ) -> Rides:
        """Return a part of the list of rides, that of the newest event first.

        Events after the number ``newest`` count as newer ones only, so that they move no ride.
        ``words`` are the places whose rides are asked for; None: all.
        """
        shown = list[int]()
        newer = 0
        for word in self._newest if words is None else words:
            numbers = self._newest.get(word, [])
            end = bisect_right(numbers, newest)
            shown += numbers[:end]
            newer += len(numbers) - end
            for number in numbers[end:]:
                own = self._held[self._ride_at[number]].numbers
                older = bisect_right(own, newest)
                if older:
                    shown.append(own[older - 1])
        shown.sort(reverse=True)
        names = [self._ride_at[number] for number in shown[begin : begin + count]]
        return Rides(names, len(shown), newer)
