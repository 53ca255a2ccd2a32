"""The axis of time of a ride's picture: a place for each time, with long pauses cut. No I/O.

Places run from 0 to 100, from left to right. A pause in which nothing runs, and nothing is due, is
cut::

    pieces    |<- piece ->|cut|<------ piece ------>|cut|<- piece ->| ahead |
    time        linear     6 min      linear         2 min          now
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ops.desk.words import clock_text
from ops.text import rough, span

_CUT_MS: Final = 20_000.0
"""A pause is cut from this length on."""
_MOST_CUTS: Final = 10
_CUT_WIDTH: Final = 2.0
_LEAST_WIDTH: Final = 9.0
"""Of a piece, so that its events, and the pauses beside it, can be told apart."""
_LEAST_WIDTHS: Final = 60.0
"""Of all pieces together: with many of them, each is narrower."""
_MARGIN: Final = 1.5
_AHEAD: Final = 8.0
"""The width of what is expected, right of now."""
ROOMS: Final = (240.0, 380.0, 440.0, 560.0)
"""The widths of a picture in px from which on more labels have room, as in waterfall.css."""
_OF_LETTER_PX: Final = 6.2
_BETWEEN_LABELS_PX: Final = 8.0
_BETWEEN_PAUSES_PX: Final = 2.0
"""Between the lengths of pauses, which have a ground of their own."""
_ENDS_AT_PX: Final = 440.0
"""In a picture of this width, a label ends at the right edge if it would reach beyond."""
_SECOND_MS: Final = 1_000.0
_PADDING_PX: Final = 10.0
"""Around the length of a pause."""
_SHORTEST_MS: Final = 0.001
"""Whatever is shorter has no length: no clock here tells such times apart."""

type _Span = tuple[float, float]


class Label(NamedTuple):
    """A text of the axis."""

    x: float
    text: str
    anchor: str = "start"
    """``start``, ``middle`` or ``end``: the part of it that is at its place."""
    padding_px: float = 0.0
    """Around the text, left and right together."""
    room: int = 1
    """Number of the first of `ROOMS` that has room for it, from 1."""

    @property
    def width_px(self) -> float:
        """How wide it is."""
        return self.padding_px + _OF_LETTER_PX * len(self.text)

    def span(self, picture_px: float) -> tuple[float, float]:
        """Return from where to where it reaches in a picture of this width."""
        width = 100 * self.width_px / picture_px
        begin = self.x
        if self.anchor == "middle":
            begin -= width / 2
        if self.anchor == "end":
            begin -= width
        return begin, begin + width


class Band(NamedTuple):
    """A pause that is cut."""

    x: float
    width: float
    label: Label | None
    """About how long it was; None if no room has a place for it."""
    length: str
    """How long it was, in words."""


class Axis:
    """The places of times, of which pauses are cut."""

    def __init__(self, busy: Iterable[_Span], *, has_ahead: bool) -> None:
        """``busy`` are the times in which something runs or is due, in milliseconds."""
        whole = _merged(busy)
        cut = _cuts(whole)
        self._pieces = _pieces(whole, cut)
        width = 100.0 - 2 * _MARGIN - _CUT_WIDTH * (len(self._pieces) - 1)
        self._least = min(_LEAST_WIDTH, _LEAST_WIDTHS / len(self._pieces))
        width -= self._least * len(self._pieces)
        self.end = 100.0 - _MARGIN
        self._has_ahead = has_ahead
        if has_ahead:
            width -= _AHEAD
            self.end -= _AHEAD
        length = sum(end - begin for begin, end in self._pieces)
        if length < _SHORTEST_MS:
            length = 0.0
        self._per_ms = width / length if length else 0.0
        self._starts = self._places(length, width)

    def _places(self, length: float, width: float) -> list[float]:
        """Return where each piece begins."""
        x = _MARGIN
        found = []
        alone = width / len(self._pieces) if not length else 0.0
        for begin, end in self._pieces:
            found.append(x)
            x += self._least + (end - begin) * self._per_ms + alone + _CUT_WIDTH
        return found

    def x(self, time_ms: float) -> float:
        """Return the place of a time."""
        x = _MARGIN
        for (begin, end), start in zip(self._pieces, self._starts, strict=True):
            if time_ms < begin:
                return x
            inside = min(time_ms, end) - begin
            x = start + self._least / 2 + inside * self._per_ms
        return min(x, self.end)

    def bands(self) -> Iterator[Band]:
        """Yield the pauses."""
        pauses = []
        for start, ((_, before), (after, _)) in zip(
            self._starts[1:], pairwise(self._pieces), strict=True
        ):
            pauses.append((start - _CUT_WIDTH, after - before))
        labels = []
        for x, length_ms in sorted(pauses, key=lambda pause: -pause[1]):
            labels.append(Label(x + _CUT_WIDTH / 2, rough(length_ms), "middle", _PADDING_PX))
        placed = {label.x: label for label in _placed(labels, 100.0, gap_px=_BETWEEN_PAUSES_PX)}
        for x, length_ms in pauses:
            yield Band(x, _CUT_WIDTH, placed.get(x + _CUT_WIDTH / 2), span(length_ms))

    def ticks(self, now_ms: float) -> Iterator[Label]:
        """Yield labels that do not overlap: each piece's begin, and round times in long ones."""
        taken = []
        if self._has_ahead:
            taken.append(Label(self.x(now_ms), "now", padding_px=_PADDING_PX))
        labels = []
        for text, x in [*self._begins(now_ms), *self._inner()]:
            label = Label(x, text)
            if label.span(_ENDS_AT_PX)[1] > self.end + _MARGIN:
                label = label._replace(x=self.end, anchor="end")
            labels.append(label)
        yield from _placed(labels, self.end + _MARGIN, taken)

    def _begins(self, now_ms: float) -> Iterator[tuple[str, float]]:
        """Yield the time at which each piece begins; the day stands at the first one only."""
        first, _ = self._pieces[0]
        for begin, _ in self._pieces:
            x = self.x(begin)
            yield clock_text(begin, now_ms if begin == first else begin), x

    def _inner(self) -> Iterator[tuple[str, float]]:
        """Yield round times: of the clock, or since the begin of the only piece if it is short."""
        if not self._per_ms:
            return
        least = 100 * (_OF_LETTER_PX * len("00:00:00") + _BETWEEN_LABELS_PX) / ROOMS[-1]
        step = _round_up(least / self._per_ms)
        is_short = step < _SECOND_MS
        if is_short and len(self._pieces) > 1:
            return
        for begin, end in self._pieces:
            first = begin + step if is_short else math.ceil(begin / step) * step
            for number in range(int(100 / least) + 1):
                time_ms = first + number * step
                if time_ms > end:
                    break
                text = f"+{span(time_ms - begin)}" if is_short else clock_text(time_ms, time_ms)
                yield text, self.x(time_ms)


def _placed(
    labels: Sequence[Label],
    limit: float,
    taken: Sequence[Label] = (),
    gap_px: float = _BETWEEN_LABELS_PX,
) -> list[Label]:
    """Return the labels that have room, each with the width of a picture that it needs.

    The first ones have precedence, and before them those that are drawn in any case. None reaches
    beyond ``limit``, or the left edge.
    """
    found = dict[int, Label]()
    for room, width in enumerate(ROOMS, 1):
        gap = 100 * gap_px / width
        for number, label in enumerate(labels):
            begin, end = label.span(width)
            if number in found or begin < 0 or end > limit:
                continue
            others = [other.span(width) for other in (*taken, *found.values())]
            if all(end + gap <= other[0] or other[1] + gap <= begin for other in others):
                found[number] = label._replace(room=room)
    return [found[number] for number in sorted(found)]


def _round_up(milliseconds: float) -> float:
    """Return the next longer span that people count in."""
    for unit in (1.0, 1_000.0, 60_000.0, 3_600_000.0):
        for count in (1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 500):
            if count * unit >= milliseconds:
                return count * unit
    return milliseconds


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Return spans in order, with those that overlap as one."""
    found: list[_Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _cuts(spans: Sequence[_Span]) -> set[int]:
    """Return the numbers of the spans after which the pause is cut: the longest ones."""
    pauses = []
    for number, ((_, end), (next_begin, _)) in enumerate(pairwise(spans)):
        if next_begin - end >= _CUT_MS:
            pauses.append((next_begin - end, number))
    pauses.sort(reverse=True)
    return {number for _, number in pauses[:_MOST_CUTS]}


def _pieces(spans: Sequence[_Span], cut: set[int]) -> list[_Span]:
    """Return the spans of time that are drawn, each from the first to the last that happened."""
    found = [spans[0]]
    for number, (begin, end) in enumerate(spans[1:]):
        if number in cut:
            found.append((begin, end))
        else:
            found[-1] = found[-1][0], end
    return found
