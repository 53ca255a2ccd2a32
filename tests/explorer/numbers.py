"""Small numbers for values, so that a state is a short tuple that is cheap to keep and to compare."""

from collections.abc import Hashable


class Numbers[T: Hashable]:
    """Numbers equal values alike, from 0, in the order in which they are first seen."""

    __slots__ = ("_numbers", "values")

    def __init__(self, *first: T) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}
        for value in first:
            self.of(value)

    def of(self, value: T) -> int:
        """Return the number of ``value``."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> T:
        return self.values[number]
