# ruff: noqa: SLF001 - holders have these attributes in common, and botocore has no public way
"""What belongs to one process, and is made anew in each child that it forks.

A connection that two processes share gives each of them the other's answers. A lock that another
thread holds at the fork stays locked in the child, which has only the thread that forked. So
whoever keeps connections, a lock, threads or an event loop says here how a child replaces them.
"""

import os
import sys
from collections.abc import Callable
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

_renewals: Final[WeakKeyDictionary[Any, Callable[[Any], None]]] = WeakKeyDictionary()


def renew_in_children[H](holder: H, renew: Callable[[H], None]) -> None:
    """Call ``renew(holder)`` in each child that this process forks, while ``holder`` lives.

    ``renew`` waits for nothing, and tells the parent's peers nothing: it replaces.
    """
    _renewals[holder] = renew


def _renew_all() -> None:
    for holder, renew in list(_renewals.items()):
        renew(holder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


def renew_lock(holder: Any) -> None:
    """Give a holder of ``_lock`` one that nobody holds."""
    holder._lock = Lock()


def renew_client(holder: Any) -> None:
    """Give the ``_client`` of a holder connections of its own, if it is botocore's.

    `close` would wait for locks of its pools, which another thread of the parent may have held.
    """
    client = holder._client
    botocore = sys.modules.get("botocore.client")
    if botocore is None or not isinstance(client, botocore.BaseClient):
        return
    try:
        session = client._endpoint.http_session
        for manager in (session._manager, *session._proxy_managers.values()):
            manager.pools = type(manager.pools)()
        credentials = client._request_signer._credentials
    except AttributeError:  # another version of botocore
        client.close()
        return
    if hasattr(credentials, "_refresh_lock"):
        credentials._refresh_lock = Lock()
