"""The account and region in which MiniStack reads its stores.

MiniStack keeps them in context variables that a request sets. Work on a thread of its own has to
set them itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

from ministack.core.responses import (
    get_account_id,
    get_region,
    set_request_account_id,
    set_request_region,
)


class Scope(NamedTuple):
    """An account and a region."""

    account: str
    region: str

    @classmethod
    def current(cls) -> Self:
        """Return the scope of the calling thread or task."""
        return cls(get_account_id(), get_region())

    def enter(self) -> None:
        """Make this the scope of the calling thread."""
        set_request_account_id(self.account)
        set_request_region(self.region)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the scope of the calling thread for as long as the ``with`` block lasts."""
        before = self.current()
        self.enter()
        try:
            yield
        finally:
            before.enter()


impaired: set[Scope] = set()
"""Where EventBridge delivers nothing: pipes wait and endpoints route elsewhere. Empty, unless a
plug-in fills it."""
