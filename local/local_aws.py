"""The laptop's AWS, started, deployed to, watched and stopped.

    with Laptop() as laptop:
        stack = laptop.deploy()
        laptop.client("lambda").invoke(FunctionName=stack.outputs["CarRideSimulatorFunctionName"])
        laptop.wait_until_quiet()

The engine is a process of its own in the environment ``.venv-engine``; it holds everything in memory and in one
temporary folder, and both go when the ``with`` block ends, however it ends.
"""

import fcntl
import hashlib
import io
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import boto3
import yaml
from botocore.config import Config
from botocore.exceptions import ClientError, WaiterError

ROOT = Path(__file__).resolve().parent.parent
REGION = "us-east-1"
HOST = "127.0.0.1"
FAULTS = ROOT / "local" / "faults.py"
"""What the engine preloads so that consumers meet the faults that simulated events ask for."""

_BUILD = ROOT / ".aws-sam"
_BUILT = _BUILD / "laptop-build"
_BUCKET = "laptop-artifacts"
_ARTIFACTS = {"AWS::Serverless::Function": "CodeUri", "AWS::Serverless::LayerVersion": "ContentUri"}
_BEGINNINGS = frozenset({"CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS"})  # of an operation
_CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
_START_SECONDS = 30.0
_ANSWER_SECONDS = 60.0  # on a machine that has much else to do
_REMOVE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_LONGEST_POLL_SECONDS = 0.1
_LAST_LINES = 15


class LaptopError(Exception):
    """The laptop's AWS cannot do what was asked; the message is one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A deployed stack.

    Attributes:
        name: The stack's name.
        outputs: The template's outputs by name.
        resources: Physical ids by logical id.
    """

    name: str
    outputs: Mapping[str, str]
    resources: Mapping[str, str]


class Asked(NamedTuple):
    """Something that a role has asked for."""

    role: str
    """The role's name."""
    action: str
    """As in ``sqs:SendMessage``."""
    resource: str
    """Its ARN."""
    allowed: bool


class _Engine(NamedTuple):
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> Path:
        """Its log."""
        return self.folder / "engine.log"

    def last_lines(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])


class Laptop:
    """Context manager around one engine.

    Args:
        retry_delays: Seconds before each retry of an asynchronous invocation (AWS: 60, 120).
        workers: Processes that one function may have for asynchronous events, or for batches of a queue.
        queue_limit: Events that wait for one function before it throttles.
        preload: Python files that run in every function's process before the function's own code, such as `FAULTS`.
        plug_ins: Modules that extend the engine itself.
        variables: Environment variables of every function, beside the template's.

    Raises:
        LaptopError: The engine could not be started.
    """

    def __init__(
        self,
        *,
        retry_delays: Sequence[float] = (1.0, 2.0),
        workers: int = 2,
        queue_limit: int = 100_000,
        preload: Sequence[Path] = (),
        plug_ins: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.region = REGION
        self.port = 0
        self._options = [
            f"--retry-delays={','.join(map(str, retry_delays))}",
            f"--workers={workers}",
            f"--queue-limit={queue_limit}",
            *(f"--preload={file}" for file in preload),
            *(f"--plug-in={module}" for module in plug_ins),
        ]
        self._variables = variables or {}
        self._engine: _Engine | None = None
        self._clients: dict[tuple[str, str], Any] = {}

    # ---- life -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        python = _tool("engine", "python")
        self.port = _free_port()
        folder = Path(tempfile.mkdtemp(prefix="carride-laptop-"))
        with (folder / "engine.log").open("wb") as log:
            process = subprocess.Popen(
                [str(python), *self._program(folder)],
                cwd=ROOT,
                env={**_clean_environment(folder), **self._variables},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, which ends with everything that functions started
            )
        self._engine = _Engine(process, folder)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the engine and every function's process, and remove its folder."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()
        engine, self._engine = self._engine, None
        if engine is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(engine.process.pid, signal.SIGKILL)  # all its state is in memory: nothing would be saved
        engine.process.wait()
        if engine.process.stdin is not None:
            engine.process.stdin.close()
        _remove(engine.folder)

    # ---- talking to it ----------------------------------------------------------------------------------------------

    @property
    def endpoint_url(self) -> str:
        """Where the engine listens: what ``AWS_ENDPOINT_URL`` is set to."""
        return f"http://{HOST}:{self.port}"

    def environment(self) -> dict[str, str]:
        """The environment variables with which ``aws``, ``sam`` and boto3 talk to this engine."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
        }

    def client(self, service: str, *, region: str | None = None) -> Any:
        """A boto3 client of this engine, made once for each service and region."""
        key = (service, region or self.region)
        if key not in self._clients:
            session: Any = boto3.session.Session()  # typed for literal names only
            self._clients[key] = session.client(
                service,
                region_name=key[1],
                endpoint_url=self.endpoint_url,
                aws_access_key_id="test",
                aws_secret_access_key="test",  # noqa: S106 - the engine's own
                config=Config(read_timeout=120, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
            )
        return self._clients[key]

    def reset(self) -> None:
        """Forget every resource, stack and event, and end the functions' processes."""
        self._request("/_ministack/reset", method="POST")

    def control(self, path: str, **body: Any) -> Any:
        """Ask the engine's control interface: ``GET``, or ``POST`` where there is a body.

        Args:
            path: The address below ``/_engine/``; the engine's README lists them.
            **body: Sent as JSON.
        """
        content = json.dumps(body).encode() if body else None
        return json.loads(self._request(f"/_engine/{path}", method="POST" if body else "GET", body=content))

    def in_flight(self) -> dict[str, int]:
        """What the engine has not finished, by kind: events queued, waiting for a retry or in hand, replays."""
        counts: dict[str, int] = self.control("in-flight")
        return counts

    def asked(self) -> set[Asked]:
        """What roles have asked for since the engine started, whether they got it or not."""
        return {Asked(*each) for each in self.control("asked")}

    def wait_until_quiet(self, timeout: float = 60.0) -> None:
        """Wait until nothing more will happen by itself.

        Args:
            timeout: Seconds.

        Raises:
            LaptopError: Something was still going on.
        """
        deadline, pause = time.monotonic() + timeout, _POLL_SECONDS
        while busy := {name: count for name, count in self.in_flight().items() if count}:
            if time.monotonic() > deadline:
                left = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in busy.items())
                raise LaptopError(
                    f"the engine was still busy after {timeout:g} s ({left}): wait longer, or see {self.log}."
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)

    @property
    def log(self) -> Path:
        """The engine's own log."""
        return self._running().log

    # ---- deploying --------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Run ``sam build``, unless nothing has changed since this machine's last one.

        Raises:
            LaptopError: The build failed.
        """
        with _locked(fcntl.LOCK_EX):
            if not _BUILT.exists() or _BUILT.read_text(encoding="utf-8") != _state():
                self._sam("build", "--config-env", "local")
                _BUILT.write_text(_state(), encoding="utf-8")

    @contextmanager
    def built(self) -> Iterator[Path]:
        """Yield the folder of the last build, which nobody builds anew meanwhile."""
        with _locked(fcntl.LOCK_SH):
            yield _BUILD / "build"

    def deploy(self, stack_name: str = "carride", **parameters: str) -> Stack:
        """Deploy what was built with ``sam deploy``.

        Args:
            stack_name: Name of the stack.
            **parameters: Template parameters; ``Stage`` and ``Architecture`` are set for this laptop unless given.

        Raises:
            LaptopError: The deployment failed; the message names the first resource that did and its reason.
        """
        try:
            with self.built():
                self._sam("deploy", "--config-env", "local", "--stack-name", stack_name, parameters=parameters)
        except LaptopError as error:
            reason = self._first_failure(stack_name)
            raise LaptopError(f"sam deploy of {stack_name} failed: {reason}") if reason else error from None
        return self.stack(stack_name)

    def deploy_fast(
        self,
        stack_name: str,
        template: Path | Mapping[str, Any] | None = None,
        *,
        region: str | None = None,
        **parameters: str,
    ) -> Stack:
        """Create or update a stack with CloudFormation alone, for tests that deploy often.

        Args:
            stack_name: Name of the stack.
            template: A template file, whose code is taken from beside it, or a template without code of its own;
                where none is given, the project's as it was last built.
            region: Where to create it, if not in the laptop's own region.
            **parameters: Template parameters; ``Stage`` and ``Architecture`` are this laptop's if it has them.

        Raises:
            LaptopError: The deployment failed; the message names the first resource that did and its reason.
        """
        region = region or self.region
        if template is None:
            with self.built() as build:
                body = self._package(build / "template.yaml", region)
        else:
            body = self._package(template, region) if isinstance(template, Path) else dict(template)
        cloudformation = self.client("cloudformation", region=region)
        given = {
            name: value for name, value in machine_parameters().items() if name in body.get("Parameters", {})
        } | parameters
        request = {
            "StackName": stack_name,
            "TemplateURL": self._upload_template(json.dumps(body).encode(), region),
            "Parameters": [{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()],
            "Capabilities": _CAPABILITIES,
        }
        exists = self._status(stack_name, region) is not None
        operation = cloudformation.update_stack if exists else cloudformation.create_stack
        try:
            operation(**request)
            waiter = cloudformation.get_waiter("stack_update_complete" if exists else "stack_create_complete")
            waiter.wait(StackName=stack_name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 2400})
        except (ClientError, WaiterError) as error:
            reason = self._first_failure(stack_name, region) or str(error)
            raise LaptopError(f"the stack {stack_name} could not be deployed: {reason}") from error
        return self.stack(stack_name, region=region)

    def delete_stack(self, stack_name: str, *, region: str | None = None) -> None:
        """Delete a stack and wait until it is gone.

        Raises:
            LaptopError: A resource could not be deleted.
        """
        cloudformation = self.client("cloudformation", region=region)
        cloudformation.delete_stack(StackName=stack_name)
        try:
            waiter = cloudformation.get_waiter("stack_delete_complete")
            waiter.wait(StackName=stack_name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 2400})
        except WaiterError as error:
            reason = self._first_failure(stack_name, region) or str(error)
            raise LaptopError(f"the stack {stack_name} could not be deleted: {reason}") from error

    def stack(self, stack_name: str, *, region: str | None = None) -> Stack:
        """Describe a stack that was deployed."""
        cloudformation = self.client("cloudformation", region=region)
        described = cloudformation.describe_stacks(StackName=stack_name)["Stacks"][0]
        pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack_name)
        resources = [resource for page in pages for resource in page["StackResourceSummaries"]]
        return Stack(
            stack_name,
            {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", [])},
            {resource["LogicalResourceId"]: resource["PhysicalResourceId"] for resource in resources},
        )

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _program(self, folder: Path) -> list[str]:
        """What the engine's Python is to run."""
        return ["-m", "local.engine", "serve", f"--port={self.port}", f"--until-stdin-closes={folder}", *self._options]

    def _running(self) -> _Engine:
        if self._engine is None:
            raise LaptopError("the engine is not running: use the laptop inside its `with` block.")
        return self._engine

    def _request(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        engine = self._running()
        url = self.endpoint_url + path
        request = urllib.request.Request(url, body, method=method)  # noqa: S310 - loopback, fixed scheme
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
                content: bytes = answer.read()
        except urllib.error.URLError as error:
            if engine.process.poll() is not None:
                raise LaptopError(f"the engine ended by itself; its last lines:\n{engine.last_lines()}") from error
            raise
        return content

    def _wait_until_ready(self) -> None:
        engine = self._running()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._request("/_ministack/health")
            except urllib.error.URLError:
                if time.monotonic() > deadline:
                    raise LaptopError(
                        f"the engine was not ready after {_START_SECONDS:g} s; its last lines:\n{engine.last_lines()}"
                    ) from None
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _sam(self, command: str, *options: str, parameters: Mapping[str, str] | None = None) -> None:
        overrides = [f"{name}={value}" for name, value in (machine_parameters() | dict(parameters or {})).items()]
        tools = ROOT / ".venv-sam" / "bin"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        done = subprocess.run(
            [str(_tool("sam", "sam")), command, *options, "--parameter-overrides", *overrides],
            cwd=ROOT,
            env={
                **inherited,
                **self.environment(),
                "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                "SAM_CLI_TELEMETRY": "0",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        log = _BUILD / f"{command}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(done.stdout, encoding="utf-8")
        if done.returncode:
            last = (done.stdout.strip().splitlines() or [f"status {done.returncode}"])[-1]
            raise LaptopError(f"sam {command} failed: {last} (all it said is in {log.relative_to(ROOT)})")

    def _status(self, stack_name: str, region: str) -> str | None:
        try:
            stacks = self.client("cloudformation", region=region).describe_stacks(StackName=stack_name)["Stacks"]
        except ClientError:  # CloudFormation's answer for a stack that is not there
            return None
        status: str = stacks[0]["StackStatus"]
        return status

    def _first_failure(self, stack_name: str, region: str | None = None) -> str | None:
        """The first resource that failed in the stack's last operation, and why."""
        cloudformation = self.client("cloudformation", region=region)
        try:
            events = cloudformation.describe_stack_events(StackName=stack_name)["StackEvents"]
        except ClientError:
            return None
        failed: list[dict[str, Any]] = []
        for event in events:  # the newest comes first
            if event["ResourceStatus"].endswith("_FAILED"):
                failed.append(event)
            if event["LogicalResourceId"] == stack_name and event["ResourceStatus"] in _BEGINNINGS:
                break
        if not failed:
            return None
        first = failed[-1]
        what = f"{first['LogicalResourceId']} ({first['ResourceType']})"
        return f"{what}: {first.get('ResourceStatusReason', 'no reason')}"

    def _bucket(self, region: str) -> Any:
        s3 = self.client("s3", region=region)
        where = {} if region == REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        with suppress(s3.exceptions.BucketAlreadyOwnedByYou, s3.exceptions.BucketAlreadyExists):
            s3.create_bucket(Bucket=f"{_BUCKET}-{region}", **where)
        return s3

    def _package(self, template: Path, region: str) -> dict[str, Any]:
        """The template with its code uploaded, as ``sam package`` does it."""
        if not template.exists():
            raise LaptopError(f"{template} is missing: call build() first.")
        body: dict[str, Any] = yaml.safe_load(template.read_text(encoding="utf-8"))
        for resource in body["Resources"].values():
            if isinstance(resource, list):  # a loop of AWS::LanguageExtensions, which has no code
                continue
            if resource["Type"] == "AWS::CloudFormation::Stack":
                nested = (template.parent / resource["Properties"]["TemplateURL"]).read_bytes()
                resource["Properties"]["TemplateURL"] = self._upload_template(nested, region)
            place = _ARTIFACTS.get(resource["Type"])
            code = resource.get("Properties", {}).get(place) if place else None
            if isinstance(code, str) and not code.startswith("s3://"):
                resource["Properties"][place] = self._upload((template.parent / code).resolve(), region)
        return body

    def _upload_template(self, text: bytes, region: str) -> str:
        key = f"{hashlib.sha256(text).hexdigest()}.template"
        self._bucket(region).put_object(Bucket=f"{_BUCKET}-{region}", Key=key, Body=text)
        return f"{self.endpoint_url}/{_BUCKET}-{region}/{key}"

    def _upload(self, folder: Path, region: str) -> str:
        content = _zip(folder)
        key = f"{hashlib.sha256(content).hexdigest()}.zip"
        bucket = f"{_BUCKET}-{region}"
        self._bucket(region).put_object(Bucket=bucket, Key=key, Body=content)
        return f"s3://{bucket}/{key}"


def _tool(environment: str, program: str) -> Path:
    path = ROOT / f".venv-{environment}" / "bin" / program
    if not path.exists():
        raise LaptopError(f"{path.relative_to(ROOT)} is missing: run `make setup`.")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _clean_environment(folder: Path) -> dict[str, str]:
    """What the engine and so every function sees of this machine: nothing but programs, a folder and a language."""
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


def machine_parameters() -> dict[str, str]:
    """Template parameters of this machine; functions run on its own Python, hence on its own processor."""
    machine = platform.machine().lower()
    return {"Stage": "local", "Architecture": "arm64" if machine in {"arm64", "aarch64"} else "x86_64"}


def _remove(folder: Path) -> None:
    """Remove the folder; killed processes may still write into it while they are going."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _zip(folder: Path) -> bytes:
    """The folder as an archive; the same content gives the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = zipfile.ZipInfo(str(path.relative_to(folder)))
                entry.external_attr = path.stat().st_mode << 16
                archive.writestr(entry, path.read_bytes())
    return content.getvalue()


@contextmanager
def _locked(kind: int) -> Iterator[None]:
    """Lock the folder of the build against other processes: one may write it, or many may read it."""
    _BUILD.mkdir(exist_ok=True)
    with (_BUILD / ".lock").open("w") as file:
        fcntl.flock(file, kind)
        yield


def _state() -> str:
    """A hash of the sources, and the time of the build, which anybody's ``sam build`` changes."""
    sources = [ROOT / "template.yaml", ROOT / "samconfig.toml"]
    for folder in ("functions", "infrastructure", "layers"):
        sources += (path for path in sorted((ROOT / folder).rglob("*")) if path.is_file() and path.suffix != ".pyc")
    digest = hashlib.sha256()
    for path in sources:
        digest.update(repr((path, path.read_bytes())).encode())
    template = _BUILD / "build" / "template.yaml"
    return f"{digest.hexdigest()} {template.stat().st_mtime_ns if template.exists() else 0}"
