"""Build a SAM template, deploy it to an engine of its own and keep both until Ctrl-C."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import boto3

_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 30.0
_CAPABILITIES: Final = ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND")


class EngineError(Exception):
    """The template could not be run; the message says why."""


def run(template: Path, parameters: Sequence[str], *, port: int, stack: str) -> None:
    """Print the outputs and addresses of the deployed template, and wait for Ctrl-C.

    Args:
        template: path of the SAM template.
        parameters: ``NAME=VALUE`` each.
        port: to listen on; 0 takes a free one.
        stack: the stack's name.

    Raises:
        EngineError: the engine or the SAM CLI failed.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # also where a shell started this with SIGINT ignored
    with _engine(port) as (endpoint, folder):
        built = Path(folder, "build")
        _sam(endpoint, "build", "--template-file", str(template), "--build-dir", str(built), overrides=parameters)
        options = ("--stack-name", stack, "--resolve-s3", "--no-confirm-changeset", "--capabilities", *_CAPABILITIES)
        _sam(endpoint, "deploy", "--template-file", str(built / "template.yaml"), *options, overrides=parameters)
        print(_description(endpoint, stack), flush=True)
        signal.pause()


@contextmanager
def _engine(port: int) -> Iterator[tuple[dict[str, str], str]]:
    """Start an engine; yield the variables with which AWS's tools reach it, and its folder. Both go with the block."""
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise EngineError(f"port {port} cannot be used: {error.strerror}") from error
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="engine-")
    engine = subprocess.Popen(
        [sys.executable, "-m", "local.engine", "serve", f"--port={port}", f"--until-stdin-closes={folder}"],
        # Functions see nothing else of this machine's environment.
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _wait_until_ready(engine, f"http://{_HOST}:{port}")
        yield (
            {
                "AWS_ENDPOINT_URL": f"http://{_HOST}:{port}",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_DEFAULT_REGION": "us-east-1",
            },
            folder,
        )
    finally:
        if engine.stdin is not None:
            engine.stdin.close()  # the engine ends the functions' processes and removes its folder
        engine.wait()


def _wait_until_ready(engine: subprocess.Popen[bytes], endpoint: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while engine.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{endpoint}/_ministack/health").close()  # noqa: S310 - loopback, fixed scheme
        except urllib.error.URLError:
            time.sleep(0.05)
        else:
            return
    raise EngineError("the engine did not start; it says why above")


def _sam(endpoint: dict[str, str], *command: str, overrides: Sequence[str]) -> None:
    tools = Path(".venv-sam", "bin").resolve()
    path = f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if (sam := shutil.which("sam", path=path)) is None:
        raise EngineError("the SAM CLI is missing: run `make setup`")
    print(f"sam {command[0]} …", flush=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sam, *command, *(["--parameter-overrides", *overrides] if overrides else [])],
        env=inherited | endpoint | {"PATH": path, "SAM_CLI_TELEMETRY": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EngineError(f"sam {command[0]} failed:\n{done.stdout}")


def _description(endpoint: dict[str, str], stack: str) -> str:
    """Return the stack's outputs, its HTTP addresses, and the variables with which AWS's tools reach the engine."""
    cloudformation: Any = boto3.session.Session().client(
        "cloudformation",
        endpoint_url=endpoint["AWS_ENDPOINT_URL"],
        region_name=endpoint["AWS_DEFAULT_REGION"],
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - the engine's own
    )
    outputs = cloudformation.describe_stacks(StackName=stack)["Stacks"][0].get("Outputs", [])
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
    apis = [
        (resource["LogicalResourceId"], resource["PhysicalResourceId"])
        for page in pages
        for resource in page["StackResourceSummaries"]
        if resource["ResourceType"] == "AWS::ApiGatewayV2::Api"
    ]
    rows = [(output["OutputKey"], output["OutputValue"]) for output in outputs]
    rows += [(name, f"{endpoint['AWS_ENDPOINT_URL']}/_aws/execute-api/{api}/$default") for name, api in apis]
    width = max([len(name) for name, _ in rows], default=0)
    return "\n".join(
        [
            f"\nThe stack {stack} is deployed:",
            *(f"  {name:<{width}}  {value}" for name, value in rows),
            "\nIn another terminal, the AWS CLI, the SAM CLI and boto3 reach it with:",
            f"  export {' '.join(f'{name}={value}' for name, value in endpoint.items())}",
            "\nCtrl-C ends it.",
        ]
    )
