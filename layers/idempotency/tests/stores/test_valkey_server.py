"""Tests that need a real server: refusals, users, TLS and clusters."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import valkey

from carride_idempotency import ConfigurationError, Consumer, open_store
from carride_idempotency.clock import epoch_ms
from carride_idempotency.errors import StoreError, StoreRefusedError, StoreUnavailableError
from carride_idempotency.stores.valkey import ValkeyStore
from tests.stores import valkey_server
from tests.stores.backends import certify, running_valkey
from tests.stores.test_conformance import claim, completed

pytestmark = pytest.mark.peer

PAGE: Final = Path(__file__).parents[2] / "docs" / "stores.md"
RESULT_BYTES: Final = 200
KEY: Final = claim().key
USER: Final = "worker:p%40ss%2Fw%3Ard@"
TOO_LITTLE: Final = 1_000_000


def test_server_out_of_memory_completes_what_it_knows() -> None:
    """It refuses a new claim, definitely, and still takes the completion of a known one."""
    with running_valkey() as server:
        store, known = ValkeyStore(server, sleep=lambda seconds: None), claim("history#known")
        store.put_if_absent(known)
        server.config_set("maxmemory", TOO_LITTLE)
        with pytest.raises(StoreRefusedError):
            store.put_if_absent(claim())
        done = completed(known)
        assert store.update_if_owner(done) is done


def test_a_record_takes_as_much_memory_as_the_page_says() -> None:
    """The page's bill counts with it; versions of servers differ a little."""
    (stated,) = re.findall(r"^\| .* for Valkey \|.*\| ([\d,]+) \|$", PAGE.read_text(), re.MULTILINE)
    with running_valkey() as server:
        # Records name their region, as in Lambda.
        consumer: Consumer[Any] = Consumer("billing", ValkeyStore(server), region="us-east-1")

        @consumer.function(key="order_id")
        def charge(order_id: str) -> str:
            return "r" * RESULT_BYTES

        charge("7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
        (key,) = server.keys()
        assert server.memory_usage(key, samples=0) == pytest.approx(
            int(stated.replace(",", "")), rel=0.15
        )


class Secured(NamedTuple):
    """A cluster of one server that speaks TLS as well, and lets in one user."""

    client: Any
    ports: dict[str, int]
    """By scheme."""
    show: Callable[[str], object]
    """Make the server present the certificate of this name; the tests trust both."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with a password, certificates, and all slots of a cluster."""
    installed = valkey_server.program() or pytest.skip(
        "neither valkey-server nor redis-server is installed"
    )
    folder = tmp_path_factory.mktemp("certificates")
    files = [
        certify(folder / name, subject)
        for name, subject in (("right", "IP:127.0.0.1"), ("wrong", "DNS:other"))
    ]
    (folder / "trusted").write_text("".join(file.read_text() for file in files))
    tls_port = valkey_server.reserved_port()
    tls = {
        "port": tls_port,
        "auth-clients": "no",
        "cluster": "yes",
        "ca-cert-file": folder / "trusted",
    }
    tls |= dict.fromkeys(("key-file", "cert-file"), folder / "right")
    settings = ["--cluster-enabled", "yes", "--cluster-port", str(valkey_server.reserved_port())]
    settings += [word for name, value in tls.items() for word in (f"--tls-{name}", str(value))]
    with (
        pytest.MonkeyPatch.context() as environment,
        valkey_server.running(installed, *settings) as port,
        valkey_server.client(port, timeout_s=5) as client,
    ):
        environment.setenv("SSL_CERT_FILE", str(folder / "trusted"))
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        client.acl_setuser(
            "worker", enabled=True, passwords="+p@ss/w:rd", keys="*", commands=["+@all"]
        )
        give_up = time.monotonic() + 120
        while client.cluster("INFO")["cluster_state"] != "ok":
            assert time.monotonic() < give_up
            time.sleep(0.02)
        ports = {"redis": port, "valkey": port, "rediss": tls_port, "valkeys": tls_port}

        def show(name: str) -> None:
            client.config_set(
                "tls-cert-file", str(folder / name), "tls-key-file", str(folder / name)
            )

        yield Secured(client, ports, show)


@pytest.mark.parametrize("options", ["", "?cluster=true"])
@pytest.mark.parametrize("scheme", ["redis", "valkey", "rediss", "valkeys"])
def test_every_kind_of_server_is_reached(secured: Secured, scheme: str, options: str) -> None:
    """The store logs in to a server or cluster, with or without TLS, and reconnects."""
    store = open_store(f"{scheme}://{USER}127.0.0.1:{secured.ports[scheme]}{options}")
    secured.client.flushall()
    record = claim()
    assert store.put_if_absent(record) is record
    secured.client.config_set("maxclients", 1)
    secured.client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreError):
        store.read(KEY, until_ms=epoch_ms())
    secured.client.config_set("maxclients", 100)
    assert store.read(KEY) is not None
    if options:  # after losing its node it must ask the endpoint again
        nodes: Any = store._client.nodes_manager  # type: ignore[attr-defined]  # noqa: SLF001 - how it stands
        assert nodes.startup_nodes


@pytest.mark.parametrize("options", ["", "?cluster=true"])
def test_certificate_of_another_name_is_not_trusted(secured: Secured, options: str) -> None:
    """The client refuses a certificate of another server."""
    store = open_store(f"rediss://{USER}127.0.0.1:{secured.ports['rediss']}{options}")
    secured.show("wrong")
    try:
        with pytest.raises(StoreUnavailableError):
            store.read(KEY, until_ms=epoch_ms())
    finally:
        secured.show("right")
    store.read(KEY)


def test_cluster_that_retries_by_itself_is_refused(secured: Secured) -> None:
    """Its retries would hide a try without an answer behind a later refusal."""
    with (
        valkey.ValkeyCluster(
            host="127.0.0.1", port=secured.ports["valkey"], socket_timeout=1
        ) as client,
        pytest.raises(ConfigurationError, match="cluster_error_retry_attempts"),
    ):
        ValkeyStore(client)
