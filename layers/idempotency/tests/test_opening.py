"""Opening a store by its address."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import valkey
from botocore.session import get_session

import carride_idempotency
from carride_idempotency import ConfigurationError, DynamoDBStore, open_store
from carride_idempotency.stores.transport import region_of
from carride_idempotency.stores.valkey import ValkeyStore

SOURCE = Path(carride_idempotency.__file__).parents[1]
WORD = "hunter2"


def test_table_is_opened_by_name_or_arn() -> None:
    """The store uses the text after the scheme as the table's name."""
    for table in ("Idempotency", "arn:aws:dynamodb:eu-west-1:123456789012:table/Idempotency"):
        store = open_store(f"dynamodb:{table}")
        assert isinstance(store, DynamoDBStore)
        assert store._table == table  # noqa: SLF001 - what its requests name


SERVERS: dict[str, dict[str, Any]] = {
    "redis://127.0.0.1/": {"host": "127.0.0.1", "port": 6379, "db": 0},
    "valkey://[::1]:6380/2": {"host": "::1", "port": 6380, "db": 2},
    "valkeys://cache.example:6380": {
        "ssl_check_hostname": True,
        "ssl_cert_reqs": "required",
        "port": 6380,
    },
    f"rediss://worker:{WORD}@cache.example": {
        "username": "worker",
        "password": WORD,
        "host": "cache.example",
    },
    "redis://:a%40b%2Fc%3A%25d@cache.example:1/1": {
        "username": None,
        "password": "a@b/c:%d",
        "port": 1,
        "db": 1,
    },
    "valkey://us%20er:pass:word@[fe80::1]": {
        "username": "us er",
        "password": "pass:word",
        "host": "fe80::1",
    },
    "valkey://cache.example?cluster=false&eviction=accepted": {"host": "cache.example"},
    f"redis://:{WORD}@cache.example?cluster=true": {"password": WORD},
}


@pytest.mark.parametrize(("address", "expected"), SERVERS.items())
def test_server_is_opened_with_what_a_function_needs(
    address: str, expected: dict[str, Any]
) -> None:
    """The client has the address's settings, timeouts and no retries, and does not connect yet."""
    store = open_store(address)
    assert isinstance(store, ValkeyStore)
    client: Any = store._client  # noqa: SLF001 - what was chosen for it
    settings = client.get_connection_kwargs()
    assert {name: settings[name] for name in expected} == expected
    assert settings["socket_connect_timeout"] + settings["socket_timeout"] <= 1.5
    assert settings["retry"]._retries == 0  # noqa: SLF001 - valkey-py has no other way to tell
    assert ("ssl_check_hostname" in settings) is address.startswith(("valkeys", "rediss"))
    assert isinstance(client, valkey.ValkeyCluster) is ("cluster=true" in address)
    assert WORD not in f"{store!r} {client!r}"


NONSENSE = f"""
    Idempotency dynamodb: dynamodb://Idempotency http://localhost:6379 valkey:// valkey://localhost:port
    valkey://localhost:0 valkey://localhost:65536 valkey://localhost:6379/one valkey://::1:6379
    redis://localhost?socket_timeout=60 redis://localhost/1?cluster=true
    redis:worker:{WORD}@localhost
    redis://worker:{WORD}@ redis://worker:{WORD}/x@localhost redis://worker:{WORD}?x@localhost
    redis://worker:x@{WORD}@localhost redis://localhost:{WORD}
    dynamodb://worker:{WORD}@localhost dynamodb:T
"""


@pytest.mark.parametrize(
    "address", [*NONSENSE.split(), "", " dynamodb:Idempotency", "redis://localhost\n"]
)
def test_nonsense_is_refused_without_repeating_a_password(address: str) -> None:
    """The error shows the valid form, without the address, which may hold a password."""
    with pytest.raises(
        ConfigurationError,
        match=r"write (dynamodb:<table>|\w+://\[<user>)|cluster has no databases",
    ) as refused:
        open_store(address)
    assert WORD not in str(refused.value)
    assert (refused.value.__cause__, refused.value.__context__) == (None, None)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where valkey-py is not deployed, the error says what to add."""
    monkeypatch.setitem(sys.modules, "valkey", None)
    monkeypatch.delitem(sys.modules, "carride_idempotency.stores.valkey_client", raising=False)
    with pytest.raises(ConfigurationError, match="package valkey"):
        open_store("valkey://localhost:6379")


@pytest.mark.parametrize(
    ("address", "region", "foreign"),
    [
        ("dynamodb:Idempotency", "eu-west-1", ("valkey", "carride_idempotency.effects")),
        ("valkey://localhost", "", ("boto",)),
    ],
)
def test_only_what_was_chosen_is_imported(
    address: str, region: str, foreign: tuple[str, ...]
) -> None:
    """Opening one kind of store does not import the other.

    Valkey needs neither a region nor an AWS SDK.
    """
    code = (
        f"import sys; from carride_idempotency import open_store; open_store({address!r});"
        f"print([name for name in sys.modules for part in {foreign} if name.startswith(part)])"
    )
    environment = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]}
    if region:
        environment["AWS_DEFAULT_REGION"] = region
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"


def test_the_region_may_stand_in_either_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Botocore reads AWS_DEFAULT_REGION alone, but other tools set AWS_REGION."""
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert region_of(get_session()) == "eu-central-1"
    assert isinstance(open_store("dynamodb:Idempotency"), DynamoDBStore)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert region_of(get_session()) == "eu-west-1"


def test_an_unknown_region_is_named_where_the_store_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first delivery would be too late."""
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(ConfigurationError, match="set AWS_REGION"):
        open_store("dynamodb:Idempotency")
