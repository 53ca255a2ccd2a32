"""What is written down about changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from ops.cli.app import main
from ops.cli.verbs import VERBS, Plan, Session, Verb
from ops.stack import OperatorError
from tests.ops.world import HOME


def refuse() -> None:
    """Refuse."""
    raise OperatorError("it is too late")


def interrupt() -> None:
    """Stand for Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("do", "status", "written"),
    [
        (lambda: {"changed": 1}, 0, {"result": {"changed": 1}}),
        (refuse, 2, {"error": "it is too late"}),
        (interrupt, 130, {"error": "KeyboardInterrupt"}),
    ],
    ids=["done", "refused", "interrupted"],
)
@mock_aws
def test_each_change_leaves_a_line(
    do: Callable[[], Any], status: int, written: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says who did what to which stack, and what came of it; a dry run leaves none."""

    def change(session: Session, what: str, /) -> Plan:
        return Plan({"what": what}, do, (session.stack,))

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["ops", *arguments])
        try:
            main(["change", "--stack", "carride", "--region", HOME, *arguments])
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    monkeypatch.setitem(VERBS, "change", Verb("change", change, acts=True))
    changes = tmp_path / ".carride" / "changes.jsonl"
    monkeypatch.setattr("ops.cli.app.CHANGES", changes)
    assert run("it") == 0
    assert not changes.exists()
    assert [run("it's", "--yes"), run("that", "--yes")] == [status, status]
    lines = [json.loads(line) for line in changes.read_text().splitlines()]
    assert all(line.pop("time") and line.pop("who").startswith("arn:aws:") for line in lines)
    rest = {"stack": "carride", "region": HOME, **written}
    assert lines == [{**rest, "command": f"carride {what} --yes"} for what in ("'it'\"'\"'s'", "that")]
