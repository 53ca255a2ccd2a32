"""Finds the stack that a command is meant for: on AWS, or that of `make demo ARGS=--keep`."""

import json
import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import urlopen

import boto3

from ops.regions import ROOT, configured
from ops.stack import LOCAL_STACK, ClientFactory, Kept, OperatorError, StackRef, aws_clients

KEPT: Final = Path(os.environ.get("CARRIDE_KEPT", ROOT / ".demo" / "stack.json"))
"""The file that says where the local stack runs. Set ``CARRIDE_KEPT`` for a second one beside
it."""
_ANSWER_SECONDS: Final = 1.0


def keep(stack: Kept) -> None:
    """Write down a local stack, for `kept` to find.

    The caller removes the file `KEPT` when the stack ends.
    """
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(stack._asdict()) + "\n", encoding="utf-8")


def kept() -> Kept | None:
    """Return the local stack that is running, or None.

    None is running if there is no file, its process has ended, or nothing answers.
    """
    try:
        stack = Kept(**json.loads(KEPT.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    if not is_running(stack):
        return None
    return stack


def is_running(stack: Kept) -> bool:
    """Return whether a local stack's process runs and answers."""
    found = urlsplit(stack.endpoint)
    address = (str(found.hostname), int(found.port or 0))
    try:
        os.kill(stack.pid, 0)
        socket.create_connection(address, _ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def is_quiet(stack: StackRef) -> bool:
    """Return whether nothing more happens in a local stack by itself. On AWS nobody knows."""
    return work_left(stack) == 0


def work_left(stack: StackRef) -> int | None:
    """Return how many invocations, messages and events a local engine has in work; None on AWS."""
    if stack.local is None:
        return None
    with urlopen(f"{stack.local.endpoint}/_engine/in-flight", timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - loopback
        counts: dict[str, int] = json.load(answer)
    return sum(counts.values())


def local_clients(stack: Kept) -> ClientFactory:
    """Return a factory of clients of a local stack."""
    return aws_clients(
        endpoint_url=stack.endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - the engine's own
    )


def find(
    stack: str | None = None, region: str | None = None, clients: ClientFactory | None = None
) -> StackRef:
    """Return a reference to a stack: by default the local one, or else that of samconfig.toml.

    Region and clients are by default those that AWS's tools are configured for.

    Raises:
        OperatorError: no region is configured.
    """
    local = None if clients else kept()
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    is_chosen = stack or region or endpoint
    # The demo prints this variable with its own endpoint, for the SAM CLI.
    if local is not None and (endpoint == local.endpoint or not is_chosen):
        return StackRef(stack or local.name, region or local.region, local_clients(local), local)
    clients = clients or aws_clients()
    region = region or boto3.session.Session().region_name or os.environ.get("AWS_REGION")
    if not region:
        raise OperatorError(
            "no region is configured: give --region, or set AWS_REGION and AWS_DEFAULT_REGION; "
            f"{LOCAL_STACK}"
        )
    return StackRef(stack or configured(clients)[0].stack.name, region, clients)
