"""A container engine of the tests' own.

Podman, with its images, containers and network in a temporary folder.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.tests.support import until
from local.containers import forwarded, in_containers
from local.local_aws import ROOT, LocalAws
from local.simulated_gateway import Books, GatewayServer
from ops.stack import Kept

_CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
"""
_START_SECONDS = 120.0

_LONGEST_COMMAND_S = 900.0

type TypeIn = Callable[[str], subprocess.CompletedProcess[str]]
"""Runs a line in a shell."""
type Invoke = Callable[[str, Any], tuple[Any, str]]
"""Takes a function and an event; returns its answer and its log."""


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run podman's service, with the base image of the functions."""
    program = shutil.which("podman")
    if os.geteuid() or program is None or shutil.which("runc") is None:
        pytest.skip("needs root, podman and runc: `.ci/run` installs them")
    folder = tmp_path_factory.mktemp("podman")
    address = f"unix://{folder}/podman.sock"
    (folder / "containers.conf").write_text(_CONTAINERS)
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patch.setenv("DOCKER_HOST", address)
        subprocess.run([ROOT / "tools" / "scripts" / "lambda-base-image"], check=True)
        service = subprocess.Popen([program, "system", "service", "--time=0", address])
        try:
            assert until((folder / "podman.sock").exists, _START_SECONDS), (
                "podman's service did not start"
            )
            yield
        finally:
            service.terminate()
            service.wait()
            subprocess.run(
                [program, "system", "reset", "--force"], check=False, capture_output=True
            )


@pytest.fixture
def invoke(podman: None, cloud: LocalAws, name: str) -> Iterator[Invoke]:
    """Yield a function that invokes the functions of a fresh stack in containers."""
    with GatewayServer(Books()) as gateway:
        stack = cloud.deploy_fast(name, PaymentGatewayUrl=gateway.url)
        local = Kept(stack.name, cloud.region, cloud.endpoint_url, gateway.url, "", os.getpid())
        with in_containers(local, stack) as run:
            yield run
        cloud.delete_stack(name)


@pytest.fixture
def type_in(podman: None, cloud: LocalAws, name: str, tmp_path: Path) -> Iterator[TypeIn]:
    """Yield a shell in this checkout, beside a kept stack, of somebody with credentials of AWS."""
    with GatewayServer(Books()) as gateway:
        stack = cloud.deploy_fast(name, PaymentGatewayUrl=gateway.url)
        local = Kept(stack.name, cloud.region, cloud.endpoint_url, gateway.url, "", os.getpid())
        with forwarded(local.endpoint, local.gateway) as (for_engine, for_gateway):
            found = local._replace(container_endpoint=for_engine, container_gateway=for_gateway)
            kept = tmp_path / "stack.json"
            kept.write_text(json.dumps(found._asdict()))
            inherited = {
                name: value for name, value in os.environ.items() if not name.startswith("AWS_")
            }
            shell = inherited | {
                "AWS_ACCESS_KEY_ID": "AKIAOFANACCOUNT",
                "AWS_SECRET_ACCESS_KEY": "secret of an account",
                "AWS_SESSION_TOKEN": "token of an account",
                "AWS_REGION": cloud.region,
                "AWS_DEFAULT_REGION": cloud.region,
                "CARRIDE_KEPT": str(kept),
                "PATH": f"{ROOT / '.venv-sam' / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "SAM_CLI_TELEMETRY": "0",
                "SAM_SKIP_PULL_IMAGE": "1",
            }
            yield lambda command: subprocess.run(
                ["/bin/bash", "-c", command],
                cwd=ROOT,
                env=shell,
                capture_output=True,
                text=True,
                check=False,
                timeout=_LONGEST_COMMAND_S,
            )
        cloud.delete_stack(name)
