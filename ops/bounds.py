"""Cuts what verbs return to a size that its reader can take.

A string of a stranger may have a megabyte, and a list as many entries as a stack has events.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

LONGEST: Final = 1_000
"""The most characters of a string that is shown."""


def clipped(text: str, longest: int = LONGEST) -> str:
    """Return a text, or its beginning and how long it is."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text):,} characters)"


def abridged(text: str, longest: int = LONGEST) -> str:
    """Return a text, or its beginning and its end: a message ends with what to do next."""
    if len(text) <= 2 * longest:
        return text
    left_out = len(text) - 2 * longest
    return f"{text[:longest]}… ({left_out:,} characters) …{text[-longest:]}"


def shortened(data: Any, longest: int = LONGEST) -> Any:
    """Return data of the same types whose strings are clipped."""

    def short(part: Any) -> Any:
        return shortened(part, longest)

    match data:
        case str() if type(data) is str:
            return clipped(data, longest)
        case Mapping():
            return {short(key): short(value) for key, value in data.items()}
        case list():
            return [short(each) for each in data]
        case tuple() if hasattr(data, "_make"):
            return data._make(map(short, data))
        case tuple():
            return tuple(map(short, data))
        case msgspec.Struct():
            fields = msgspec.structs.asdict(data)
            return type(data)(**{name: short(value) for name, value in fields.items()})
    return data


class Page(NamedTuple):
    """A part of a JSON document."""

    document: Any
    cursor: int | None
    """The entry of its list that comes next; None if there is none."""


type _Path = tuple[str | int, ...]


def page(document: Any, most: int, *, start: int = 0) -> Page:
    """Return a document of at most so many bytes, with the entries of its main list from ``start``.

    The main list holds more than half of the document. Strings are clipped, and other lists that
    are too long end with a note.
    """
    short = shortened(document, LONGEST // 2)
    path = _main_list(short)
    if path is None or (not start and _size(short) <= most):
        return Page(_cut(short, most), None)
    entries = _at(short, path)[start:]
    room = most - _size(_cut(_put(short, path, []), most // 2))
    chosen = _fitting(entries, room)
    left = len(entries) - len(chosen)
    shown = _cut(_put(short, path, chosen), most)
    return Page(shown, start + len(chosen) if left else None)


def _fitting(entries: Sequence[Any], room: int) -> list[Any]:
    """Return as many entries as there is room for: at least one, which is cut if it has to be."""
    chosen: list[Any] = []
    for entry in entries:
        if chosen and _size(entry) + 2 > room:
            break
        chosen.append(_cut(entry, room))
        room -= _size(chosen[-1]) + 2
    return chosen


def _main_list(document: Any) -> _Path | None:
    """Return where the innermost list is that holds more than half of a document."""
    half = _size(document) / 2
    main = None
    for path, part in _parts(document):
        if isinstance(part, list) and _size(part) > half:
            main = path
    return main


def _cut(document: Any, most: int) -> Any:
    """Return a document of at most so many bytes. Its longest lists and mappings lose entries."""
    lengths: dict[_Path, int] = {}
    while _size(document) > most:
        longest: tuple[_Path, Any] | None = None
        kept = 0
        for path, part in _parts(document):
            entries = len(part) - (path in lengths)  # the last one is a note
            if entries > kept * 2 and entries >= 1:
                longest = (path, part)
                kept = entries // 2
        if longest is None:
            return f"too long to be shown: {_size(document):,} bytes"
        path, part = longest
        length = lengths.setdefault(path, len(part))
        document = _put(document, path, _beginning(part, kept, f"… and {length - kept:,} more"))
    return document


def _beginning(part: Any, kept: int, note: str) -> Any:
    """Return the first entries of a list or mapping, and a note instead of the others."""
    if isinstance(part, list):
        return [*part[:kept], note]
    return {name: part[name] for name in [*part][:kept]} | {"…": note}


def _parts(document: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield each list and mapping of a document with its place, the outer before the inner."""
    if isinstance(document, list):
        inner: list[tuple[str | int, Any]] = [*enumerate(document)]
    elif isinstance(document, dict):
        inner = [*document.items()]
    else:
        return
    yield path, document
    for key, part in inner:
        yield from _parts(part, (*path, key))


def _at(document: Any, path: _Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _put(document: Any, path: _Path, part: Any) -> Any:
    """Return a document with something else at a place."""
    if not path:
        return part
    first, *rest = path
    changed = document.copy()
    changed[first] = _put(document[first], tuple(rest), part)
    return changed


def _size(document: Any) -> int:
    return len(json.dumps(document))
