"""What a button did is said once: to the browser that pressed it, on the page that follows."""

import secrets
from typing import Final, NamedTuple
from urllib.parse import unquote

from ops.desk.registry import Said

_MOST_KEPT: Final = 50
"""A browser may never ask for the page that follows."""


class Notice(NamedTuple):
    """What is said on a page."""

    path: str
    """The page where it belongs, decoded and without a query."""
    said: Said


class Notices:
    """Notices until they are shown, by names that nobody can guess.

    A browser holds the name of its notice in a cookie, and never the text.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Notice] = {}

    def keep(self, where: str, said: Said) -> str:
        """Keep what is to be said on the page at an address, and return its name."""
        path = unquote(where.partition("#")[0].partition("?")[0])
        name = secrets.token_hex(16)
        self._kept[name] = Notice(path, said)
        for oldest in [*self._kept][:-_MOST_KEPT]:
            self._kept.pop(oldest, None)
        return name

    def take(self, name: str, path: str) -> Notice | None:
        """Return a notice that belongs on a page, and forget it."""
        found = self._kept.get(name)
        if found is None or found.path != path:
            return None
        return self._kept.pop(name, None)
