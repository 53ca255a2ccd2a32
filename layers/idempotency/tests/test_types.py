"""What a type checker refuses: a status that is none, and a decision that leaves one out."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.proof  # mypy takes some seconds

ROOM: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOM / "src" / "carride_idempotency"
USES: Final = """
from carride_idempotency import Record, Status, UnknownStatus
from carride_idempotency.protocol.decision import Outcome
from carride_idempotency.record import COMPLETED, STATUSES, status_of


def use(record: Record, stored: str) -> list[object]:
    known: Status = "FAILED"
    read: Status = status_of(stored)
    wrong: Status = "DONE"  # wrong
    unread: Status = stored  # wrong
    return [
        record._replace(status=known),
        record._replace(status=UnknownStatus(stored)),
        record._replace(status="DONE"),  # wrong
        record._replace(status=stored),  # wrong
        record.status == COMPLETED,
        record.status == "COMPLETED",
        record.status == "COMPLETE",  # wrong
        record.status.lower(),  # wrong
        Outcome("FAILED"),
        Outcome("IN_PROGRESS"),  # wrong
        (read, wrong, unread, STATUSES),
    ]
"""
_CASE: Final = re.compile(
    r"^    if (?:status == \w+|isinstance\(status, UnknownStatus\))[^\n]*:\n        return .*\n",
    re.MULTILINE,
)
_STATUS_IS_ADDED: Final = ('Literal["IN_PROGRESS", ', 'Literal["PAUSED", "IN_PROGRESS", ')


def undecided() -> Iterator[tuple[str, str]]:
    """Yield names and texts of decisions: each lacks a case, and one lacks that of a new status."""
    decision = (PACKAGE / "protocol" / "decision.py").read_text(encoding="utf-8")
    for number, case in enumerate(_CASE.finditer(decision)):
        yield f"decision_{number}", decision[: case.start()] + decision[case.end() :]
    record = (PACKAGE / "record.py").read_text(encoding="utf-8")
    yield "more", record.replace(*_STATUS_IS_ADDED)
    yield "decision_over_more", decision.replace("carride_idempotency.record", "more")


def refused_in(folder: Path) -> dict[str, set[int]]:
    """Return the lines that mypy refuses, by the names of the modules in a folder."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "."]
    cache = ROOM / ".mypy_cache" / "types"
    paths = f"{ROOM / 'src'}{os.pathsep}{folder}"
    run = subprocess.run(
        [*command, "--cache-dir", str(cache)],
        cwd=folder,
        env=os.environ | {"MYPYPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    found = defaultdict(set)
    for name, line in re.findall(r"^(\w+)\.py:(\d+): error", run.stdout, re.MULTILINE):
        found[name].add(int(line))
    assert not run.stderr
    return found


def lines_with(text: str, what: str) -> set[int]:
    """Return the numbers of the lines that contain something."""
    return {number for number, line in enumerate(text.splitlines(), 1) if what in line}


def test_a_wrong_status_and_an_undecided_one_are_refused(tmp_path: Path) -> None:
    """A checker refuses what is no status, and a decision that lacks a case of one."""
    modules = {"uses": USES, **dict(undecided())}
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    refused = refused_in(tmp_path)
    assert refused.pop("uses") == lines_with(USES, "# wrong")
    ends = lines_with(modules["decision_over_more"], "    assert_never(")
    assert refused.pop("decision_over_more") == ends
    decisions = {name: text for name, text in modules.items() if name.startswith("decision_")}
    del decisions["decision_over_more"]
    assert len(decisions) >= len(ends) * 4
    assert refused.keys() == decisions.keys()
    for name, text in decisions.items():
        assert len(refused[name]) == 1
        assert refused[name] <= lines_with(text, "    assert_never(")
