"""The commands of docs/security.md leave nothing that names a customer, even after a replay."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from local.bookings import book
from ops.audit.reading import scan
from ops.regions import ROOT
from tests.kit.pipe import piped
from tests.pipeline.operator.aws_cli import serving
from tests.pipeline.pipeline import Pipeline

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

PAGE: Final = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CUSTOMER: Final = "customer_b"
TABLES: Final = ("BookingTableName", "RideHistoryTableName")


def held(pipeline: Pipeline) -> str:
    """Return what the tables hold that keep personal data, as text."""
    dynamodb = pipeline.cloud.client("dynamodb")
    items = [item for table in TABLES for item in scan(dynamodb, pipeline.stack.outputs[table])]
    return repr(items)


def published(pipeline: Pipeline) -> list[Any]:
    """Return the events in the outbox, as the pipe has published them."""
    table = pipeline.stack.outputs["OutboxTableName"]
    return [*map(piped, scan(pipeline.cloud.client("dynamodb"), table))]


def delete_by_hand(pipeline: Pipeline, folder: Path) -> None:
    """Run the page's commands for the customer."""
    (commands,) = re.findall(r"^```sh\n(STACK=.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = re.sub(r"(?m)^STACK=.*$", f"STACK={pipeline.stack.name}", commands)
    commands = re.sub(r"(?m)^CUSTOMER=.*$", f"CUSTOMER={CUSTOMER}", commands)
    with serving(folder, pipeline.cloud.client) as variables:
        environment = os.environ | variables
        environment["PATH"] = f"{folder}:{environment['PATH']}"
        subprocess.run(
            ["/bin/bash", "-u", "-c", commands],
            env=environment,
            timeout=600,
            check=True,
        )


@pytest.mark.skipif(shutil.which("jq") is None, reason="there is no jq: `apt install jq`")
def test_deleted_data_does_not_come_back(pipeline: Pipeline, tmp_path: Path) -> None:
    """The audit is balanced after the commands, and after every event has come once more.

    Other customers' rides stay as they are, and those of the customer can still be looked up.
    """
    for _ in book(pipeline.cloud, pipeline.stack, 5):
        pass
    assert pipeline.audit().verdict == "balanced"
    events = published(pipeline)
    assert CUSTOMER in held(pipeline)
    others = held(pipeline).count("customer_a")
    delete_by_hand(pipeline, tmp_path)
    assert CUSTOMER not in held(pipeline)
    assert held(pipeline).count("customer_a") == others
    assert pipeline.audit().verdict == "balanced"
    for event in events:
        pipeline.put(event)
    assert pipeline.audit().verdict == "balanced"
    assert CUSTOMER not in held(pipeline)
    for item in scan(pipeline.cloud.client("dynamodb"), pipeline.stack.outputs["BookingTableName"]):
        assert pipeline.carride("ride", item["orderID"]) == 0
