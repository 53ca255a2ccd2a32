"""What `doctor` finds missing, and how to get it."""

import shutil
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from ops.doctor import Finding, examine
from ops.stack import OperatorError, StackRef
from tests.ops.world import HOME, World


class Account(World):
    """An account, with or without credentials and a stack."""

    def __init__(self, *, credentials: bool, stack: bool) -> None:
        super().__init__()
        self.credentials, self.stack = credentials, stack

    def client(self, service: str, region: str) -> Any:
        """Return a service, whose answers depend on what there is."""
        if service == "sts":
            return self
        found = super().client(service, region)
        if not self.stack:
            found.describe_stacks = lambda **_: {"Stacks": [{"StackStatus": "DELETE_COMPLETE"}]}
        return found

    def get_caller_identity(self) -> Any:
        """Answer who calls."""
        if not self.credentials:
            raise NoCredentialsError
        return {"Arn": "arn:aws:iam::1:user/operator"}


def missing(account: Account) -> dict[str, Finding]:
    """Return what is missing, by name."""
    found = examine(lambda: StackRef("carride", HOME, account.client))
    return {each.what: each for each in found if each.found is None}


@pytest.mark.parametrize(
    ("credentials", "stack", "what"),
    [(False, False, "credentials"), (True, False, "stack carride"), (True, True, None)],
)
def test_what_is_missing_in_the_account_is_named(credentials: bool, stack: bool, what: str | None) -> None:
    """The first thing that is missing is needed, and what depends on it is not reported."""
    needed = [each.what for each in missing(Account(credentials=credentials, stack=stack)).values() if each.needed]
    assert needed == ([what] if what else [])


def test_what_is_missing_on_the_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that only some commands use is not needed; each finding says how to get it."""
    monkeypatch.setattr(shutil, "which", lambda program: None)
    found = missing(Account(credentials=True, stack=True))
    assert {"git", "make"} == {each.what for each in found.values() if each.needed}
    assert {"containers", "chromium"} <= found.keys()
    assert all(each.how for each in found.values())


def test_without_a_region_nothing_is_asked() -> None:
    """Credentials and stack are looked for in a region."""

    def refuse() -> StackRef:
        raise OperatorError("no region")

    assert [each.what for each in examine(refuse)][-1] == "region"
