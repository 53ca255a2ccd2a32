"""What `doctor` finds missing, and how to get it."""

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError
from moto import mock_aws

from ops.doctor import Finding, Findings, doctor
from ops.stack import ClientFactory, aws_clients
from ops.tests.test_show import printed
from ops.tests.world import HOME, World
from ops.verbs import Session


def missing(clients: ClientFactory) -> dict[str, Finding]:
    """Return what is missing, by name, without environments of the tools."""
    found = doctor(Session(print, clients, stack="carride", region=HOME)).findings
    return {
        each.what: each
        for each in found
        if each.found is None and not each.what.startswith(".venv")
    }


def without_credentials(_service: str, _region: str) -> Any:
    raise NoCredentialsError


@mock_aws
def test_what_is_missing_in_the_account_is_named() -> None:
    """The first thing that is missing is needed, and what depends on it is not reported."""

    def needed(clients: ClientFactory) -> list[str]:
        return [each.what for each in missing(clients).values() if each.needed]

    def account(service: str, region: str) -> Any:
        return (
            aws_clients()(service, region) if service == "sts" else World().client(service, region)
        )

    def without_stack(service: str, region: str) -> Any:
        found = account(service, region)
        found.describe_stacks = lambda **_: {"Stacks": [{"StackStatus": "DELETE_COMPLETE"}]}
        return found

    assert needed(without_credentials) == ["credentials"]
    assert needed(without_stack) == ["stack carride"]
    assert needed(account) == []


def test_what_is_missing_on_the_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that only some commands use is not needed; each finding says how to get it."""
    monkeypatch.setattr(shutil, "which", lambda program: None)
    found = missing(without_credentials)
    assert {"git", "make", "credentials"} == {each.what for each in found.values() if each.needed}
    assert "chromium" in found
    assert all(each.how for each in found.values())


def test_containers_need_a_service_that_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program of Docker or podman alone is not enough for the SAM CLI."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/socket")
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    assert "DOCKER_HOST" in missing(without_credentials)["containers"].how
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(f"{tmp_path}/socket")
        service.listen()
        assert "containers" not in missing(without_credentials)


def test_without_a_region_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials and stack are looked for in a region."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert [each.what for each in doctor(Session(print, without_credentials)).findings][
        -1
    ] == "region"


def test_what_is_missing_comes_first_and_says_how_to_get_it() -> None:
    """Nothing needs a wide terminal: each hint has a line of its own."""
    found = Finding("jq", None, False, "commands of the runbooks", "install jq")
    there = Finding("git", "/usr/bin/git", True, "the sources", "")
    lines = printed(Findings([there, found])).split("\n")
    assert lines[0].startswith("jq is missing")
    assert lines[0].endswith("commands of the runbooks")
    assert lines[1].strip() == "install jq"
    assert [line.split() for line in lines[2:4]] == [
        ["what", "found", "needed", "for"],
        ["git", "/usr/bin/git", "the", "sources"],
    ]
