"""What the tools need on this machine and in the account, and how to get what is missing."""

import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ops.regions import ROOT
from ops.stack import FAILURES, OperatorError, StackRef, reason
from ops.verbs import Session, reads


class Finding(NamedTuple):
    """What is wanted and why, what was found (a path, a version or a name), and how to get it."""

    what: str
    found: str | None
    needed: bool
    """Whether `./carride` or `make demo` cannot work without it."""
    why: str
    how: str


class Findings(NamedTuple):
    """What is there and what is missing."""

    findings: list[Finding]


_ANSWER_SECONDS: Final = 1.0
_PROGRAMS: Final = (
    ("git", ("git",), True, "the sources", "install git with the system's package manager"),
    (
        "make",
        ("make",),
        True,
        "installing the environments",
        "install make with the system's package manager",
    ),
    (
        "chromium",
        ("chromium", "chromium-browser", "google-chrome"),
        False,
        "tests of the page",
        "install chromium",
    ),
    ("aws", ("aws",), False, "commands of the runbooks", "install the AWS CLI, version 2"),
    (
        "jq",
        ("jq",),
        False,
        "commands of the runbooks",
        "install jq with the system's package manager",
    ),
)
_CONTAINERS: Final = (
    "install and start Docker; or install podman, "
    "run `podman system service -t 0 unix:///tmp/podman.sock`, and set "
    "DOCKER_HOST=unix:///tmp/podman.sock"
)
_DOCKER: Final = "unix:///var/run/docker.sock"
"""Where the SAM CLI looks for containers without DOCKER_HOST."""
_SETUP: Final = "run `make setup`"
_ENVIRONMENTS: Final = {
    "dev": "./carride",
    "engine": "the local stack",
    "sam": "building and deploying",
}


def _status_of(result: Findings) -> int:
    """Return 1 if something that is needed is missing."""
    for each in result.findings:
        if each.needed and not each.found:
            return 1
    return 0


@reads("doctor", status=_status_of)
def doctor(session: Session) -> Findings:
    """Show what is missing on this machine or in the account, and how to get it.

    Status 0: everything that is needed is there; 1: something is missing.
    """
    findings = []
    for each in (*_machine(), *_stack(session)):
        how = "" if each.found else each.how
        findings.append(each._replace(how=how))
    return Findings(findings)


def _machine() -> Iterator[Finding]:
    pinned = ROOT / ".python-version"
    wanted = pinned.read_text(encoding="utf-8").strip()
    version = platform.python_version()
    python = version if version.startswith(wanted) else None
    yield Finding(f"Python {wanted}", python, True, "./carride", _SETUP)
    for name, why in _ENVIRONMENTS.items():
        folder = f".venv-{name}"
        mark = ROOT / folder / ".synced"
        environment = "installed" if mark.exists() else None
        yield Finding(folder, environment, True, why, _SETUP)
    for what, programs, needed, why, how in _PROGRAMS:
        found = next(filter(None, map(shutil.which, programs)), None)
        yield Finding(what, found, needed, why, how)
    yield Finding("containers", _containers(), False, "make invoke ARGS=--containers", _CONTAINERS)


def _containers() -> str | None:
    """Return the address at which Docker's API, also podman's, accepts connections."""
    address = os.environ.get("DOCKER_HOST", _DOCKER)
    found = urlsplit(address)
    is_unix = found.scheme == "unix"
    try:
        with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as client:
            client.settimeout(_ANSWER_SECONDS)
            client.connect(found.path if is_unix else (found.hostname, found.port))
    except (OSError, TypeError, ValueError):
        return None
    return address


def _stack(session: Session) -> Iterator[Finding]:
    """Yield region, credentials and stack, each of which needs the one before."""
    try:
        ref = session.stack
    except OperatorError:
        yield Finding(
            "region",
            None,
            True,
            "reaching AWS",
            "set AWS_REGION and, for sam, AWS_DEFAULT_REGION; or give --region",
        )
        return
    yield Finding("region", ref.region, True, "reaching AWS", "")
    local = ref.local and ref.local.endpoint
    yield Finding(
        "local stack", local, False, "trying things without AWS", "run `make demo ARGS=--keep`"
    )
    who, problem = _asked(lambda: ref.identity["Arn"])
    how = f"set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({problem})"
    yield Finding("credentials", who, True, "reaching AWS", how)
    if who is not None:
        status, problem = _asked(lambda: _status(ref))
        how = f"run `make build` and `sam deploy`, or give --stack and --region ({problem})"
        yield Finding(f"stack {ref.name}", status, True, "every command for a stack", how)


def _status(stack: StackRef) -> str:
    described = stack.describe()
    if described is None:
        raise OperatorError(f"there is none in {stack.region}")
    return str(described["StackStatus"])


def _asked(ask: Callable[[], Any]) -> tuple[str | None, str]:
    """Return an answer, or None and why there is none."""
    try:
        return str(ask()), ""
    except FAILURES as error:
        return None, reason(error)
