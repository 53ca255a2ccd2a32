"""The pages for a table that has lost items: what is put back takes effect once, as before."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ops.regions import ROOT
from tests.pipeline.operator.aws_cli import block, serving
from tests.pipeline.operator.conftest import Operator

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

PAGE: Final = (ROOT / "ops" / "docs" / "runbooks" / "restore.md").read_text(encoding="utf-8")
SHELL: Final = (ROOT / "ops" / "docs" / "runbooks" / "README.md").read_text(encoding="utf-8")
KEYS: Final = {
    "IdempotencyTable": "idempotencyKey",
    "RideHistoryTable": "idempotencyKey",
    "AssignmentTable": "orderID",
    "PaymentTable": "orderID",
}


@pytest.fixture
def shell(operator: Operator, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Runs a block of the page in bash."""
    if shutil.which("jq") is None:
        pytest.skip("there is no jq on this machine, which the page uses: `apt install jq`")
    with serving(tmp_path, operator.pipeline.cloud.client) as variables:
        environment = operator.environment | variables
        environment["PATH"] = f"{tmp_path}:{environment['PATH']}"

        def run(commands: str) -> None:
            lines = [line for line in commands.splitlines() if not line.startswith("./carride ")]
            script = "\n".join(["set -euo pipefail", block(SHELL, "output()"), *lines])
            done = subprocess.run(
                ["/bin/bash", "-c", script],
                cwd=tmp_path, env=environment, timeout=600, check=False,
                capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr

        yield run


def items(operator: Operator, table: str) -> list[dict[str, Any]]:
    """Return all items of a table."""
    name = operator.pipeline.stack.outputs[f"{table}Name"]
    pages = (
        operator.pipeline.cloud.client("dynamodb").get_paginator("scan").paginate(TableName=name)
    )
    return [item for page in pages for item in page["Items"]]


def test_what_is_put_back_is_as_it_was(operator: Operator, shell: Callable[[str], None]) -> None:
    """Records, rides and payments are deleted; a replay of everything then changes nothing."""
    dynamodb = operator.pipeline.cloud.client("dynamodb")
    before = {table: items(operator, table) for table in KEYS}
    shell(block(PAGE, "disable-rule"))
    for table, key in KEYS.items():
        of_this = {"PaymentTableName": f"{table}Name", "key=orderID": f"key={key}"}
        copy = block(PAGE, "restore-table")
        put_back = block(PAGE, "put-item")
        remove = block(PAGE, "delete-table")
        for shown, here in of_this.items():
            copy = copy.replace(shown, here)
            put_back = put_back.replace(shown, here)
            remove = remove.replace(shown, here)
        shell(copy)
        for item in before[table][::2]:
            dynamodb.delete_item(
                TableName=operator.pipeline.stack.outputs[f"{table}Name"], Key={key: item[key]}
            )
        shell(put_back)
        shell(remove)
    shell(block(PAGE, "enable-rule"))
    assert operator.pipeline.carride("replay", "run", "--since", "2h", "--yes") == 0
    for table, key in KEYS.items():
        found = {item[key]["S"]: item for item in items(operator, table)}
        assert found == {item[key]["S"]: item for item in before[table]}, table
