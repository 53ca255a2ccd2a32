"""Prints what verbs return: as text on a terminal or in a file, or as JSON.

A module with verbs registers how its types look:

    @show.register
    def _(letters: Letters) -> RenderableType: ...
"""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import singledispatch
from typing import Any, TextIO

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ops.audit import Report
from ops.cli.verbs import Steps

_WIDE = 10_000
"""Columns of a file or pipe: lines are never wrapped there."""


def console(stream: TextIO) -> Console:
    """Return a console that prints in colour on a terminal, and plain lines that are not wrapped elsewhere."""
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def table(*columns: str, title: str | None = None) -> Table:
    """Return a table without lines, which is readable as plain text too."""
    return Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")


@singledispatch
def show(data: object) -> RenderableType:
    """Return what to print for data. By default that is each field or key with its value."""
    fields = plain(data)
    if not isinstance(fields, Mapping):
        return str(fields)
    rows = table()
    rows.show_header = False
    for name, value in fields.items():
        rows.add_row(str(name), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
    return rows if fields else "nothing"


@show.register
def _(text: str) -> RenderableType:
    return Text(text)


@show.register
def _(steps: Steps) -> RenderableType:
    return Text("\n".join(f"{number}. {step}" for number, step in enumerate(steps.plan, 1)))


@show.register
def _(report: Report) -> RenderableType:
    return Text(report.to_text())


def plain(data: Any) -> Any:
    """Return data as JSON-ready values: named tuples, structs and data classes become mappings."""
    if hasattr(data, "to_json"):
        return plain(data.to_json())
    if hasattr(data, "_asdict"):
        return plain(data._asdict())
    if isinstance(data, msgspec.Struct):
        return plain(msgspec.structs.asdict(data))
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {field.name: plain(getattr(data, field.name)) for field in dataclasses.fields(data)}
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return [plain(each) for each in data]
    return msgspec.to_builtins(data, enc_hook=str)
