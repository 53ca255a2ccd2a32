"""Which stack a command is meant for."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops import finding
from ops.finding import find
from ops.stack import Kept

pytestmark = pytest.mark.integration

HERE = Kept(
    "kept",
    "eu-west-1",
    "http://127.0.0.1:{}",
    "http://127.0.0.1:2",
    "http://127.0.0.1:3",
    os.getpid(),
)


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port that answers, in an environment with a region, and no file of a local stack."""
    monkeypatch.setattr(finding, "KEPT", tmp_path / ".demo" / "stack.json")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-1")
    for name in ("AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_running_local_stack_is_found(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients reach the local engine only.

    Options and AWS_ENDPOINT_URL choose another stack, unless the URL is this one's.
    """
    local = HERE._replace(endpoint=HERE.endpoint.format(port))
    finding.keep(local)
    found = find()
    assert (found.name, found.region, found.local) == ("kept", "eu-west-1", local)
    assert found.client("sqs").meta.endpoint_url == local.endpoint
    for chosen in (find("other"), find(region="us-east-2")):
        assert chosen.local is None
        assert chosen.client("sqs").meta.endpoint_url != local.endpoint
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert find().local is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", local.endpoint)
    assert find().local == local
    assert find("kept", "eu-west-1").local == local


@pytest.mark.parametrize("gone", ["file", "content", "process", "endpoint"])
def test_a_local_stack_that_has_ended_is_ignored(port: int, gone: str) -> None:
    """The stack is then samconfig.toml's, in the region that AWS's tools are configured for."""
    if gone != "file":
        # No process has a larger id than 2**22.
        ended = 2**22 + 1 if gone == "process" else HERE.pid
        finding.keep(
            HERE._replace(
                endpoint=HERE.endpoint.format(0 if gone == "endpoint" else port), pid=ended
            )
        )
    if gone == "content":
        finding.KEPT.write_text("{}")
    found = find()
    assert (found.name, found.region, found.local) == ("carride", "us-west-1", None)
