"""Prints what verbs return: as text on a terminal or in a file, or as JSON.

A module with verbs registers how its types look:

    @show.register
    def _(letters: Letters) -> RenderableType: ...
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import singledispatch
from io import StringIO
from typing import Any, TextIO

import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ops.audit import Report
from ops.text import NARROW, visible
from ops.verbs import Steps

_WIDE = 10_000
"""Columns of a file or pipe: lines are never wrapped there."""
_NARROWEST = 60
"""Columns of the narrowest terminal for which text is laid out before it is known."""


class _SafeConsole(Console):
    """A console for text of strangers: no character of an event or an error steers the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def console(stream: TextIO) -> Console:
    """Return a console: colours on a terminal, elsewhere plain lines that are not wrapped."""
    width = None if stream.isatty() else _WIDE
    return _SafeConsole(file=stream, width=width, highlight=False, markup=False, emoji=False)


def layouts(data: object) -> tuple[tuple[str, ...], ...]:
    """Return the lines that are printed for data: at any width, and on a narrow terminal."""
    return tuple(_laid_out(data, width) for width in (_WIDE, _NARROWEST))


def _laid_out(data: object, width: int) -> tuple[str, ...]:
    """Return the lines that are printed for data at a width, without blanks at their ends."""
    printed = StringIO()
    _SafeConsole(file=printed, width=width, highlight=False, markup=False, emoji=False).print(
        show(data)
    )
    return tuple(line.rstrip() for line in printed.getvalue().splitlines())


class Layouts:
    """Lines that were laid out for several widths before: the widest layout that fits is shown."""

    def __init__(self, layouts: Sequence[Sequence[str]]) -> None:
        """``layouts`` are in order of their widths, the widest first."""
        self._layouts = layouts

    def __rich_console__(
        self, _console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the lines of one of the layouts; those of the last are folded if none fits."""
        lines: Sequence[str] = ()
        for lines in self._layouts:
            if all(cell_len(line) <= options.max_width for line in lines):
                break
        yield from map(Text, lines)


class _Table(Table):
    """A table, or a record for each row where the table would be cut or too narrow to be read."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._fits(console, options):
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text(str(self.title), "italic")
        rows = [[*column.cells] for column in self.columns]
        for number, cells in enumerate(zip(*rows, strict=True)):
            if number:
                yield ""
            for column, cell in zip(self.columns, cells, strict=True):
                yield from _field(str(column.header), cell, console, options)

    def _fits(self, console: Console, options: ConsoleOptions) -> bool:
        needed = Measurement.get(console, options.update(max_width=_WIDE), self)
        most = options.max_width
        if needed.maximum <= most or not self.show_header:
            return True
        return most >= NARROW and needed.minimum <= most


def _field(
    name: str, cell: RenderableType, console: Console, options: ConsoleOptions
) -> Iterator[Text]:
    """Yield a line for a field of a record, or none if it is empty."""
    shown = console.render_lines(cell, options.update(max_width=_WIDE), pad=False)
    text = " ".join("".join(part.text for part in line).strip() for line in shown)
    if text:
        yield Text(f"{name}: {text}" if name else text)


def table(*columns: str, title: str | None = None) -> Table:
    """Return a table without lines, which is readable as plain text too.

    Where it does not fit, each row is shown as a record.
    """
    return _Table(
        *columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )


@singledispatch
def show(data: object) -> RenderableType:
    """Return what to print for data: by default a table of its fields or of a list's entries."""
    parts = _parts(data)
    if isinstance(parts, Mapping):
        return _fields(parts)
    if not isinstance(parts, list):
        return str(plain(parts))
    entries = [_parts(each) for each in parts]
    if entries and all(isinstance(each, Mapping) for each in entries):
        return _entries(entries)
    return ", ".join(str(each) for each in plain(entries))


def _fields(parts: Mapping[str, Any]) -> RenderableType:
    """Return a row for each field."""
    if not parts:
        return "nothing"
    rows = table()
    rows.show_header = False
    for name, value in parts.items():
        rows.add_row(str(name), _cell(value))
    return rows


def _entries(entries: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a row for each entry, with a column for each field that occurs."""
    columns = dict.fromkeys(name for each in entries for name in each)
    rows = table(*columns)
    for each in entries:
        rows.add_row(*(_cell(each.get(name)) for name in columns))
    return rows


def _cell(value: object) -> RenderableType:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in plain(value).items())
    return show(value)


def as_fields[T](kind: type[T]) -> type[T]:
    """Have a type look as a table of its fields, and return it."""
    show.register(kind, show.dispatch(object))
    return kind


@show.register
def _text(text: str) -> RenderableType:
    return Text(text)


@show.register
def _time(time: datetime) -> RenderableType:
    return Text(f"{time:%Y-%m-%d %H:%M:%S %Z}")


@show.register
def _steps(steps: Steps) -> RenderableType:
    lines = [f"{number}. {step}" for number, step in enumerate(steps.plan, 1)]
    return Text("\n".join(lines))


class _Report:
    """A report in the width of the terminal."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._report.to_text(options.max_width))


@show.register
def _report(report: Report) -> RenderableType:
    return _Report(report)


def plain(data: Any) -> Any:
    """Return data as JSON-ready values: named tuples, structs and data classes become mappings."""
    parts = _parts(data)
    if isinstance(parts, Mapping):
        return {str(key): plain(value) for key, value in parts.items()}
    if isinstance(parts, list):
        return [plain(each) for each in parts]
    return msgspec.to_builtins(parts, enc_hook=str)


def _parts(data: Any) -> Any:
    """Return the parts of data by name, or in a list; data itself if it has no parts."""
    if hasattr(data, "to_json"):
        return data.to_json()
    if hasattr(data, "_asdict"):
        return data._asdict()
    if isinstance(data, msgspec.Struct):
        return msgspec.structs.asdict(data)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping):
        return list(data)
    return data
