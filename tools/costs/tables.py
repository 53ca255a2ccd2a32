"""Tables in Markdown, and pages that have them."""

import re
from collections.abc import Iterable, Mapping, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(page: str, kind: str, tables: Mapping[str, str]) -> str:
    """Return a page with the current tables, each between a comment that names it and an end."""
    begin = f"<!-- {kind}: "
    parts = re.split(rf"({begin}\w+ -->\n|<!-- end -->\n)", page)
    for index, part in enumerate(parts):
        if part.startswith(begin):
            name, _, _ = part.removeprefix(begin).partition(" ")
            parts[index + 1] = tables[name]
    return "".join(parts)
