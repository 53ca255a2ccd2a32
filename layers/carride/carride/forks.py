# ruff: noqa: SLF001 - botocore has no public way to do this without waiting for locks
"""What a child that was forked makes anew: two processes cannot share a connection or a lock.

The layer of the idempotency records has the same for its own. Producers are deployed without it.
"""

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

_renewals: Final[WeakKeyDictionary[Any, Callable[[Any], None]]] = WeakKeyDictionary()


def renew_in_children[H](holder: H, renew: Callable[[H], None]) -> None:
    """Call ``renew(holder)`` in each child that this process forks, while ``holder`` lives."""
    _renewals[holder] = renew


def _renew_all() -> None:
    for holder, renew in list(_renewals.items()):
        renew(holder)


os.register_at_fork(after_in_child=_renew_all)


def renew_client(client: Any) -> None:
    """Give a client of botocore's new connections, and its credentials a new lock.

    `close` would wait for locks of its pools, which another thread of the parent may have held.
    """
    session = client._endpoint.http_session
    for manager in (session._manager, *session._proxy_managers.values()):
        manager.pools = type(manager.pools)()
    renew_credentials(client._request_signer)


def renew_credentials(holder: Any) -> None:
    """Give the credentials of a client's signer, or of a session, a new lock if they have one."""
    if hasattr(holder._credentials, "_refresh_lock"):
        holder._credentials._refresh_lock = Lock()
