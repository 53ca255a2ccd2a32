"""A client of a cluster of Valkey or Redis servers: a module of its own, since it needs valkey-py to be imported."""

import threading
from collections.abc import Mapping
from typing import Any

import valkey
from valkey.connection import Connection, SSLConnection
from valkey.exceptions import ValkeyClusterException


class Cluster(valkey.ValkeyCluster):
    """Asks the endpoint for the cluster's nodes when it is first used, and again after it has lost them.

    Args:
        host: the endpoint's name or address, which has to outlive single nodes, as a configuration endpoint does.
        port: the endpoint's port.
        tls: whether connections are encrypted, and the name on each node's certificate is checked.
        settings: of every connection, as valkey-py names them.
    """

    def __init__(self, host: str, port: int, *, tls: bool, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._options: dict[str, Any] = {
            **settings,
            "url": f"valkey://[{host}]:{port}" if ":" in host else f"valkey://{host}:{port}",
            # As a class, since valkey-py's clusters drop the option ssl_check_hostname.
            "connection_class": _NameCheckingConnection if tls else Connection,
            "cluster_error_retry_attempts": 0,
            # Else a try that loses a node could go on to wait for each of the others.
            "dynamic_startup_nodes": False,
        }
        self.cluster_error_retry_attempts = 0
        self._knows_nodes = False
        self._asking = threading.RLock()

    def get_connection_kwargs(self) -> Mapping[str, Any]:
        """Return the settings of every connection."""
        return self._settings

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        """Execute one command on the node that has its key."""
        with self._asking:
            if not self._knows_nodes:
                self._knows_nodes = True  # before it is true, because asking executes a command
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
