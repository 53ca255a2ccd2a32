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
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from engine.process import environment
from local.artifacts import PARAMETERS, built
from local.local_aws import ROOT, EngineError
from ops.stack import Kept, StackRef

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


@contextmanager
def in_containers(local: Kept, stack: StackRef) -> Iterator[Callable[[str, Any], tuple[Any, str]]]:
    """Yield a function that runs the last build's functions, by logical id.

    It returns answer and log.
    """
    address = host_address()
    found = stack.environments()
    with ExitStack() as running:
        urls = [
            running.enter_context(reachable(address, url))
            for url in (local.endpoint, local.gateway)
        ]
        for variables in found.values():
            variables["AWS_ENDPOINT_URL"] = urls[0]
            if "PAYMENT_GATEWAY_URL" in variables:
                variables["PAYMENT_GATEWAY_URL"] = urls[1]
        file = Path(running.enter_context(TemporaryDirectory()), "env.json")
        file.write_text(json.dumps(found), encoding="utf-8")
        yield partial(_invoke, file, local.endpoint)


def _invoke(variables: Path, endpoint: str, function: str, event: Any) -> tuple[Any, str]:
    with built() as build:
        done = subprocess.run(
            [
                *(str(ROOT / ".venv-sam/bin/sam"), "local", "invoke", function, "--event", "-"),
                *("--template", str(_with_endpoint(build)), "--env-vars", str(variables)),
                *(
                    "--config-file",
                    str(ROOT / "samconfig.toml"),
                    "--config-env",
                    "local",
                    "--skip-pull-image",
                ),
                *(
                    "--parameter-overrides",
                    *(f"{name}={each}" for name, each in PARAMETERS.items()),
                ),
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


def _with_endpoint(build: Path) -> Path:
    """Return the built template with a variable for the engine's address.

    The SAM CLI drops undeclared variables.
    """
    template = yaml.safe_load((build / "template.yaml").read_text(encoding="utf-8"))
    template["Globals"]["Function"]["Environment"]["Variables"]["AWS_ENDPOINT_URL"] = ""
    path = build / "sam-local.json"  # beside the code that it names
    path.write_text(json.dumps(template), encoding="utf-8")
    return path
