"""The account and region that MiniStack's stores are read in.

MiniStack keeps them in context variables which a request sets. Work that goes on after the request, on a thread of its
own, has to set them itself.
"""

from typing import NamedTuple

from ministack.core.responses import get_account_id, get_region, set_request_account_id, set_request_region


class Scope(NamedTuple):
    """An account and a region."""

    account: str
    region: str

    @classmethod
    def current(cls) -> "Scope":
        """The scope of the request that is being answered."""
        return cls(get_account_id(), get_region())

    def enter(self) -> None:
        """Make this the scope of the calling thread."""
        set_request_account_id(self.account)
        set_request_region(self.region)


impaired: set[Scope] = set()
"""Where EventBridge stands still: pipes wait and endpoints route elsewhere. Empty, unless a plug-in fills it."""
