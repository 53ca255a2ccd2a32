"""Clients of Valkey and Redis servers. Importing this module needs valkey-py."""

import threading
from collections.abc import Mapping
from typing import Any

import valkey
from valkey.backoff import NoBackoff
from valkey.connection import Connection, SSLConnection
from valkey.exceptions import ReadOnlyError, ValkeyClusterException
from valkey.retry import Retry

from carride_idempotency.forks import renew_in_children


def connect(
    host: str,
    port: int,
    *,
    tls: bool,
    username: str | None,
    password: str | None,
    database: int,
    cluster: bool,
) -> Any:
    """Make a client of one endpoint, for all threads of a process.

    It connects when it is first used.

    The endpoint is a server, or a proxy that finds the key's shard. With ``cluster`` the client
    asks it for the cluster's nodes, and sends each step to its key's node.
    """
    settings: dict[str, Any] = {
        "username": username,
        "password": password,
        "socket_connect_timeout": 0.7,
        "socket_timeout": 0.8,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
    }
    if cluster:
        return Cluster(host, port, tls=tls, settings=settings)
    # By default valkey-py does not check the name on a certificate.
    more: dict[str, Any] = {
        "retry_on_error": [ReadOnlyError],
        "ssl": tls,
        "ssl_check_hostname": tls,
    }
    return valkey.Valkey(host=host, port=port, db=database, **more, **settings)


class Cluster(valkey.ValkeyCluster):
    """Asks the endpoint for the cluster's nodes at its first use, and again after it has lost them.

    The endpoint must outlive single nodes, like a configuration endpoint.
    """

    def __init__(self, host: str, port: int, *, tls: bool, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._options: dict[str, Any] = {
            **settings,
            "url": f"valkey://[{host}]:{port}" if ":" in host else f"valkey://{host}:{port}",
            # A class, because valkey-py's clusters drop the option ssl_check_hostname.
            "connection_class": _NameCheckingConnection if tls else Connection,
            "cluster_error_retry_attempts": 0,
            # Otherwise a try that loses a node could also wait for each of the others.
            "dynamic_startup_nodes": False,
        }
        self.cluster_error_retry_attempts = 0
        self._begin()
        renew_in_children(self, Cluster._begin)

    def _begin(self) -> None:
        self._knows_nodes = False
        self._asking = threading.RLock()

    def get_connection_kwargs(self) -> Mapping[str, Any]:
        """Return the settings of every connection."""
        return self._settings

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        """Execute one command on the node that has its key."""
        with self._asking:
            if not self._knows_nodes:
                self._knows_nodes = True  # set first, because asking executes a command
                try:
                    super().__init__(**self._options)
                except BaseException:
                    self._knows_nodes = False
                    raise
        try:
            return super().execute_command(*arguments, **options)  # type: ignore[no-untyped-call]  # as above
        except ValkeyClusterException:
            self._knows_nodes = False
            raise


class _NameCheckingConnection(SSLConnection):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options, ssl_check_hostname=True)  # type: ignore[no-untyped-call]  # valkey-py has no type here
