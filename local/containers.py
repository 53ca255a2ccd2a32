"""Run functions in containers with `sam local invoke`, against the local engine.

Containers cannot reach the engine, because it listens on this machine's loopback address only. On
Linux `reachable` listens on the address that this machine has in the containers' network; Docker
Desktop forwards by itself.
"""

import json
import os
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import yaml

from engine.process import environment
from engine.uploads import CODE
from local.artifacts import PARAMETERS, built
from local.local_aws import ROOT, EngineError
from ops.stack import Kept, StackRef

type Environments = dict[str, dict[str, str]]
"""The environment variables of functions, by logical id."""

_API_URI: Final = (
    "arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/"
    "arn:aws:lambda:us-east-1:123456789012:function:CarRideApiFunction/invocations"
)
_DESKTOP: Final = "host.docker.internal"
_GATEWAYS: Final = (
    ("docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"),
    ("podman", "network", "inspect", "podman", "--format", "{{(index .Subnets 0).Gateway}}"),
)
_IP_FREEBIND: Final = 15  # Linux; podman's network has its address only while a container runs


def host_address() -> str:
    """Return the address at which a container reaches this machine."""
    if sys.platform != "linux":
        return _DESKTOP
    for command in _GATEWAYS:
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.strip()
    raise EngineError(
        "`sam local invoke` needs Docker or podman; `make invoke` runs the same without containers."
    )


@contextmanager
def reachable(address: str, url: str) -> Iterator[str]:
    """Yield a URL at which containers reach a server of the loopback address."""
    port = urlsplit(url).port or 80
    if address == _DESKTOP:
        yield f"http://{address}:{port}"
        return

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as onward:
                answers = threading.Thread(target=_copy, args=(onward, self.request), daemon=True)
                answers.start()
                _copy(self.request, onward)
                answers.join()

    with socketserver.ThreadingTCPServer((address, 0), Forward, bind_and_activate=False) as server:
        server.daemon_threads = True
        server.socket.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)
        server.server_bind()
        server.server_activate()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{address}:{server.server_address[1]}"
        server.shutdown()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


class Addresses(NamedTuple):
    """Where containers reach what runs on this machine."""

    endpoint: str
    gateway: str


@contextmanager
def forwarded(endpoint: str, gateway: str) -> Iterator[Addresses]:
    """Yield where containers reach an engine and a payment gateway of this machine."""
    address = host_address()
    with ExitStack() as running:
        urls = [running.enter_context(reachable(address, url)) for url in (endpoint, gateway)]
        yield Addresses(*urls)


def variables_for(addresses: Addresses, found: Environments) -> Environments:
    """Return the functions' variables for containers, which reach the engine and nothing else."""
    own = {
        "AWS_ENDPOINT_URL": addresses.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        # Otherwise the SAM CLI adds the one of whoever calls it.
        "AWS_SESSION_TOKEN": "test",
    }
    changed = {name: variables | own for name, variables in found.items()}
    for variables in changed.values():
        if "PAYMENT_GATEWAY_URL" in variables:
            variables["PAYMENT_GATEWAY_URL"] = addresses.gateway
    return changed


def template_for(build: Path, found: Environments) -> dict[str, Any]:
    """Return a built template for containers of this machine.

    It declares the functions' variables, because the SAM CLI drops undeclared ones.
    """
    template: dict[str, Any] = yaml.safe_load((build / "template.yaml").read_text(encoding="utf-8"))
    common = template["Globals"]["Function"]
    common["Architectures"] = [PARAMETERS["Architecture"]]
    for variables in found.values():
        for name in variables:
            common["Environment"]["Variables"].setdefault(name, "")
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        _spell_out_integrations(properties.get("DefinitionBody", {}))
        for name in (*CODE.values(), "TemplateURL"):
            if isinstance(properties.get(name), str):
                properties[name] = str((build / properties[name]).resolve())
    return template


def _spell_out_integrations(definition: dict[str, Any]) -> None:
    """Write into each operation of an API which function answers it.

    `sam local start-api` follows no references, and leaves out operations that need a signature.
    """
    integration = {"type": "aws_proxy", "payloadFormatVersion": "2.0", "uri": _API_URI}
    for operations in definition.get("paths", {}).values():
        for operation in operations.values():
            operation["x-amazon-apigateway-integration"] = integration
            operation["security"] = []


@contextmanager
def in_containers(local: Kept, stack: StackRef) -> Iterator[Callable[[str, Any], tuple[Any, str]]]:
    """Yield a function that runs the last build's functions, by logical id.

    It returns answer and log.
    """
    with forwarded(local.endpoint, local.gateway) as addresses, TemporaryDirectory() as folder:
        found = variables_for(addresses, stack.environments())
        variables = Path(folder, "env.json")
        variables.write_text(json.dumps(found), encoding="utf-8")
        with built() as build:
            template = Path(folder, "template.json")
            template.write_text(json.dumps(template_for(build, found)), encoding="utf-8")
            yield partial(_invoke, template, variables, local.endpoint)


def _invoke(
    template: Path, variables: Path, endpoint: str, function: str, event: Any
) -> tuple[Any, str]:
    parameters = [f"{name}={value}" for name, value in PARAMETERS.items()]
    done = subprocess.run(
        [
            *(str(ROOT / ".venv-sam/bin/sam"), "local", "invoke", function, "--event", "-"),
            *("--template", str(template), "--env-vars", str(variables), "--skip-pull-image"),
            *("--config-file", str(ROOT / "samconfig.toml"), "--config-env", "local"),
            *("--parameter-overrides", *parameters),
        ],
        env=os.environ | environment(endpoint) | {"SAM_CLI_TELEMETRY": "0"},
        input=json.dumps(event),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EngineError(f"sam local invoke failed:\n{done.stderr}")
    return json.loads(done.stdout), done.stderr
