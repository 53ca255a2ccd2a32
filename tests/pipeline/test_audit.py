"""What only reading shows.

The audit of a deployed stack names what its log, outbox and rules have lost.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from carride.facts import CarRideCreated
from carride.history import kept
from carride_idempotency import marshalling
from carride_idempotency.record import COMPLETED
from local.bookings import book
from ops import finding, fleet
from ops.audit.reading import scan
from ops.cli.app import main
from ops.stack import Kept
from tests.kit.rides import booked, event
from tests.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.integration

DISABLED: Final = (
    "cannot tell: CarRideLogRule is DISABLED with 1 targets: events are not logged; "
    "cannot tell: Partners"
)
HIDDEN: Final = "cannot tell: 1 event of ride-history may be among messages that could not be read"
CONSUMERS: Final = ("RideHistoryRule", "DispatchRule", "PaymentRule")


def rules(pipeline: Pipeline, *names: str) -> Any:
    """Return EventBridge, after these rules were disabled."""
    events = pipeline.cloud.client("events")
    known = pipeline.stack.named("AWS::Events::Rule")
    for name in names:
        events.disable_rule(Name=known[name], EventBusName=pipeline.stack.outputs["CarRideBusName"])
    return events, known


def log_rule_fails(pipeline: Pipeline) -> None:
    """Have the log's rule write where it cannot, and consumers get nothing."""
    events, known = rules(pipeline, *CONSUMERS)
    request = {
        "Rule": known["CarRideLogRule"],
        "EventBusName": pipeline.stack.outputs["CarRideBusName"],
    }
    (target,) = events.list_targets_by_rule(**request)["Targets"]
    events.put_targets(**request, Targets=[{**target, "Arn": f"{target['Arn']}-that-is-not-there"}])
    pipeline.simulate(rides=1, seed=1)


def outbox_expires(pipeline: Pipeline) -> None:
    """Have the outbox forget a booked ride before its pipe has carried it."""
    stack = pipeline.stack
    dynamodb = pipeline.cloud.client("dynamodb")
    pipeline.cloud.client("pipes").stop_pipe(Name=stack.outputs["OutboxPipeName"])
    for _ in book(pipeline.cloud, stack, 1):
        pass
    for item in dynamodb.scan(TableName=stack.outputs["OutboxTableName"])["Items"]:
        dynamodb.delete_item(TableName=stack.outputs["OutboxTableName"], Key={"id": item["id"]})


def log_rule_is_disabled(pipeline: Pipeline) -> None:
    """Have nothing logged, and consumers and partners get nothing.

    Only the archive has the events.
    """
    rules(pipeline, "CarRideLogRule", "PartnersRule", *CONSUMERS)
    pipeline.simulate(rides=1, seed=1)


def message_is_hidden(pipeline: Pipeline) -> None:
    """Have another reader hold a dead-lettered message."""
    pipeline.simulate(rides=1, seed=1, poison=1)
    url = pipeline.stack.outputs["RideHistoryDlqUrl"]
    assert pipeline.cloud.client("sqs").receive_message(QueueUrl=url, VisibilityTimeout=600)[
        "Messages"
    ]


def cars_leave_the_index(pipeline: Pipeline) -> None:
    """Have every car free, and none where dispatch looks for it."""
    dynamodb = pipeline.cloud.client("dynamodb")
    table = pipeline.stack.outputs["CarTableName"]
    fleet.seed(dynamodb, table, 3)
    for car in dynamodb.scan(TableName=table)["Items"]:
        dynamodb.update_item(
            TableName=table,
            Key={name: car[name] for name in ("zone", "carID")},
            UpdateExpression="REMOVE freeShard, freePlace",
        )


def history_is_invented(pipeline: Pipeline) -> None:
    """Have a timeline entry of an event that was never published, dated next year."""
    invented = replace(
        event(CarRideCreated.of(booked("order_1"))), time=datetime.now(UTC) + timedelta(days=365)
    )
    record = {
        "idempotencyKey": f"ride-history#{invented.idempotencyid}",
        "status": COMPLETED,
        "updatedAt": int(datetime.now(UTC).timestamp() * 1000),
        **kept(invented),
    }
    pipeline.cloud.client("dynamodb").put_item(
        TableName=pipeline.stack.outputs["RideHistoryTableName"], Item=marshalling.item(record)
    )
    pipeline.simulate(rides=1, seed=1)


@pytest.mark.parametrize(
    ("plant", "status", "verdict"),
    [
        (history_is_invented, 1, "1 effect of events that were never published"),
        (log_rule_is_disabled, 3, DISABLED),
        pytest.param(
            *(cars_leave_the_index, 1, "3 free cars outside of the index of free cars"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(log_rule_fails, 1, "lost ", marks=pytest.mark.thorough),
        pytest.param(outbox_expires, 1, "lost ", marks=pytest.mark.thorough),
        pytest.param(message_is_hidden, 3, HIDDEN, marks=pytest.mark.thorough),
    ],
)
def test_the_audit_of_a_stack_is_not_fooled(
    pipeline: Pipeline, plant: Callable[[Pipeline], None], status: int, verdict: str
) -> None:
    """Whatever is planted, the verdict says it, and the status with it."""
    plant(pipeline)
    report = pipeline.audit()
    assert report.verdict.startswith(verdict)
    assert report.status == status


def test_a_record_that_an_operator_has_deleted_is_not_called_lost(pipeline: Pipeline) -> None:
    """The deletion leaves a mark. If the event comes again, it takes effect again."""
    pipeline.simulate(rides=1, seed=1)
    table = pipeline.stack.outputs["RideHistoryTableName"]
    records = scan(pipeline.cloud.client("dynamodb"), table, "attribute_exists(orderID)")
    assert pipeline.carride("forget", next(records)["idempotencyKey"], "--yes") == 0
    assert pipeline.audit().verdict == "balanced"


def test_the_operators_command_prints_the_audit(
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As text and as JSON, a young event is in flight, not lost, while anything moves."""
    assert pipeline.simulate(rides=1, seed=1, poison=1).verdict.startswith(
        "balanced, 1 dead letter"
    )
    rules(pipeline, *CONSUMERS)
    assert pipeline.simulate(rides=2, seed=2).lost > 0

    pipeline.carride("audit", "--grace", "1h", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["lost"], found["balanced"], found["in_flight"] > 0) == ([], True, True)
    pipeline.carride("audit", "--grace", "1h")
    assert found["verdict"] in capsys.readouterr().out
    assert pipeline.carride("audit", "--grace", "0s", "--json") == 1
    assert json.loads(capsys.readouterr().out)["lost"]
    pauses = iter((None, KeyboardInterrupt))

    def pause(_seconds: float) -> None:
        if ended := next(pauses):
            raise ended

    monkeypatch.setattr("ops.cli.stack.PAUSE", pause)
    assert pipeline.carride("audit", "--grace", "0s", "--watch", "--json") == 1
    assert [json.loads(line)["lost"] > 0 for line in capsys.readouterr().out.splitlines()] == [
        True,
        True,
    ]
    monkeypatch.setattr(finding, "KEPT", tmp_path / "stack.json")
    local = Kept(
        pipeline.stack.name, pipeline.cloud.region, pipeline.cloud.endpoint_url, "", "", os.getpid()
    )
    finding.keep(local)
    with pytest.raises(SystemExit):
        main(["audit", "--json"])
    assert json.loads(capsys.readouterr().out)["lost"], "nothing moves in this local stack"
