"""The API is killed at each step of a request: either ride and event are there or neither, and a retry mends it."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from local.local_aws import ROOT
from tests.integration.api.client import BOOKING, Api
from tests.integration.api.doomed import KILLED

BEFORE_THE_COMMIT: Final = {"book": (1,), "accept": (1, 2, 3)}
"""The steps at which nothing has been committed: a request that changes a ride reads it first."""


def doomed(api: Api, step: int, method: str, path: str, key: str, body: dict[str, Any]) -> int | None:
    """Have a process of its own serve a request; return the status, or None where it was killed at that step."""
    tables = {"BOOKING_TABLE": "BookingTable", "OUTBOX_TABLE": "OutboxTable", "RIDE_TABLE": "RideTable"}
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *(ROOT / "layers").iterdir(), ROOT / "functions/carride_api"))),
        "AWS_REGION": api.laptop.region,
        "IDEMPOTENCY_TABLE": api.stack.outputs["IdempotencyTableName"],
        "SIMULATOR_FUNCTION_NAME": api.stack.outputs["CarRideSimulatorFunctionName"],
        "STAGE": "local",
        **{variable: api.stack.outputs[f"{table}Name"] for variable, table in tables.items()},
        **api.laptop.environment(),
    }
    arguments = (str(step), method, path, key, json.dumps(body))
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("doomed.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == KILLED:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def versions_and_events(api: Api) -> tuple[dict[str, int], dict[str, int]]:
    """Return each ride's version, and how many events tell of it."""
    versions = {ride["orderID"]: ride["version"] for ride in api.items("BookingTableName")}
    return versions, dict(Counter(event["subject"] for event in api.outbox()))


@pytest.mark.parametrize("action", ["book", "accept"])
def test_a_killed_request_leaves_ride_and_event_or_neither(api: Api, action: str) -> None:
    """Wherever it was killed, a ride's version is the number of its events; the retry leaves one more, and only one."""
    killed = []
    for step in range(1, 20):
        if action == "book":
            method, path, body = "POST", "/carrides", BOOKING
        else:
            path = api.send("POST", "/carrides", BOOKING, key=f"book-{step}").headers["Location"]
            method, body = "PUT", {"action": action, "version": 1}
        before, _ = versions_and_events(api)
        if doomed(api, step, method, path, f"{action}-{step}", body) is not None:
            break
        killed.append(step)
        versions, events = versions_and_events(api)
        assert versions == events
        assert (versions == before) == (step in BEFORE_THE_COMMIT[action])
        retried = api.send(method, path, body, key=f"{action}-{step}")
        assert retried.status in {200, 201}
        versions, events = versions_and_events(api)
        assert versions == events
        assert sum(versions.values()) == sum(before.values()) + 1
    assert killed == [*BEFORE_THE_COMMIT[action], BEFORE_THE_COMMIT[action][-1] + 1]
    api.wait()
    assert Counter(event["detail"]["subject"] for event in api.published()) == versions_and_events(api)[0]
