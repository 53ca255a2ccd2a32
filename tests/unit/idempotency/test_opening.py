"""The store that a line of settings names."""

import subprocess
import sys
from typing import Any

import pytest

from idempotency import ConfigurationError, DynamoDBStore, open_store
from idempotency.stores.dynamodb_effects import DynamoDBEffects
from idempotency.stores.valkey import ValkeyStore


@pytest.mark.parametrize("table", ["Idempotency", "arn:aws:dynamodb:eu-west-1:123456789012:table/Idempotency"])
def test_table_is_opened_by_name_or_arn(table: str) -> None:
    """What comes after the scheme is what DynamoDB is asked for."""
    store = open_store(f"dynamodb:{table}")
    assert isinstance(store, DynamoDBStore)
    assert store._table == table  # noqa: SLF001 - what its requests name


@pytest.mark.parametrize(("scheme", "tls"), [("valkey", False), ("valkeys", True)])
def test_server_is_opened_with_what_a_function_needs(scheme: str, tls: bool) -> None:
    """It has timeouts, no retries of its own, TLS with the name checked where asked for, and can have effects."""
    store = open_store(f"{scheme}://cache.example:6379")
    assert isinstance(store, ValkeyStore)
    assert isinstance(store.effect_writer, DynamoDBEffects)
    settings: dict[str, Any] = store._client.get_connection_kwargs()  # noqa: SLF001 - what was chosen for it
    assert (settings["host"], settings["port"]) == ("cache.example", 6379)
    assert settings["socket_connect_timeout"] + settings["socket_timeout"] <= 1.5
    assert settings["retry"]._retries == 0  # noqa: SLF001 - valkey-py has no other way to tell
    assert settings.get("ssl_check_hostname", False) is tls
    assert settings.get("ssl_cert_reqs", "required") == "required"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "Idempotency",
        "dynamodb:",
        "dynamodb://Idempotency",
        "redis://localhost:6379",
        "valkey://localhost",
        "valkey://localhost:port",
        "valkeys://user:secret@cache.example:6379",
        "valkey://localhost:6379/0",
        " dynamodb:Idempotency",
    ],
)
def test_nonsense_is_refused_with_what_is_possible(address: str) -> None:
    """The error names the address and the forms that there are."""
    with pytest.raises(ConfigurationError, match=r"dynamodb:<table>, valkey://<host>:<port> or valkeys://"):
        open_store(address)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where valkey-py is not deployed, the error says what to add."""
    monkeypatch.setitem(sys.modules, "valkey", None)
    with pytest.raises(ConfigurationError, match="package valkey"):
        open_store("valkey://localhost:6379")


def test_table_imports_nothing_for_valkey() -> None:
    """A function whose records are in DynamoDB pays no start-up time for the other choice."""
    code = (
        "import sys; from idempotency import open_store; open_store('dynamodb:Idempotency');"
        "print([name for name in sys.modules if 'valkey' in name or name == 'idempotency.effects'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "[]"


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": "layers/idempotency", "AWS_DEFAULT_REGION": "eu-west-1"}
