"""`./carride verify`: what only a stack on AWS shows.

Tests/pipeline/test_verify.py has the rest.
"""

import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws
from urllib3.exceptions import HTTPError

from ops.api import NoAnswerError, nobody
from ops.stack import OperatorError
from ops.tests.world import stack as ref
from ops.verify import (
    CannotTellError,
    Check,
    Checked,
    Deployment,
    FailedError,
    Result,
    SkippedError,
    Verified,
    verify,
)
from ops.verify.checks import CHECKS
from ops.verify.record import Run, commit, page

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_an_api_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check fails with it, and the checks after it are run."""
    monkeypatch.setattr("urllib3.request", Mock(side_effect=HTTPError("after 30 s")))
    deployment = Deployment(ref(lambda *_: described(Stage="dev"), CarRideApiUrl="https://api"))
    with pytest.raises(NoAnswerError, match="does not answer: after 30 s"):
        deployment.api.request("GET", "/openapi.json", authorize=nobody)


def described(*, protected: bool = False, **parameters: str) -> Any:
    """Return a client of AWS for CloudFormation, which describes one stack."""
    given = [{"ParameterKey": name, "ParameterValue": each} for name, each in parameters.items()]
    found = {
        "StackName": "carride",
        "StackStatus": "CREATE_COMPLETE",
        "EnableTerminationProtection": protected,
        "Parameters": given,
    }
    on_aws = SimpleNamespace(endpoint_url="https://cloudformation.us-west-2.amazonaws.com")
    return SimpleNamespace(describe_stacks=lambda **_: {"Stacks": [found]}, meta=on_aws)


@pytest.mark.parametrize(
    ("stage", "protected", "verdict"),
    [
        ("prod", False, Checked.FAILED),
        ("prod", True, Checked.PASSED),
        ("dev", False, Checked.PASSED),
        ("dev", True, Checked.UNTOLD),  # it may have been in production
    ],
)
def test_production_is_protected_from_deletion(
    stage: str, protected: bool, verdict: Checked
) -> None:
    """Only a stack of stage `prod` has to have termination protection."""
    client = described(protected=protected, Stage=stage)
    (result,) = verify(Deployment(ref(lambda *_: client)), CHECKS[:1])
    assert result.verdict is verdict


def refused(code: str, status: int = 400) -> ClientError:
    """Return an error of AWS with a code."""
    answer: Any = {
        "Error": {"Code": code, "Message": "because"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "GetRule")


def caused(cause: Exception) -> OperatorError:
    """Return an error in an operator's words, with what caused it."""
    error = OperatorError("you may not act as staff")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (refused("AccessDeniedException"), Checked.UNTOLD),
        (refused("ExpiredToken"), Checked.UNTOLD),
        (refused("Throttling"), Checked.UNTOLD),
        (refused("ProvisionedThroughputExceededException"), Checked.UNTOLD),
        (refused("InternalServerError", 500), Checked.UNTOLD),
        (caused(refused("AccessDenied")), Checked.UNTOLD),
        (caused(refused("NoSuchBucket")), Checked.FAILED),
        (EndpointConnectionError(endpoint_url="https://x"), Checked.UNTOLD),
        (CannotTellError("nobody knows"), Checked.UNTOLD),
        (refused("ResourceNotFoundException"), Checked.FAILED),
        (FailedError("it is off"), Checked.FAILED),
        (SkippedError("not here"), Checked.SKIPPED),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_question_without_an_answer_does_not_blame_the_stack(
    error: Exception, verdict: Checked
) -> None:
    """What AWS refuses to say cannot be told; what AWS says is missing has failed."""

    def examine(_: Deployment) -> str:
        raise error

    (result,) = verify(Deployment(ref(Mock())), [Check("a statement", examine)])
    assert result.verdict is verdict


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([Checked.PASSED, Checked.SKIPPED], 0),
        ([Checked.PASSED, Checked.UNTOLD], 3),
        ([Checked.UNTOLD, Checked.FAILED], 1),
    ],
)
def test_the_status_tells_failed_from_untold(verdicts: list[Checked], status: int) -> None:
    """1 for a check that failed, 3 if the evidence is incomplete, 0 otherwise."""
    results = tuple(Result("a statement", each, "", 0.1) for each in verdicts)
    assert Verified(results).status == status


def drifted(kind: str, *paths: str, status: str = "MODIFIED") -> dict[str, Any]:
    """Return CloudFormation's description of a resource that has drifted."""
    return {
        "StackId": "arn:aws:cloudformation:us-west-2:1:stack/carride-Nested/uuid",
        "LogicalResourceId": "Thing",
        "ResourceType": kind,
        "StackResourceDriftStatus": status,
        "PropertyDifferences": [{"PropertyPath": path} for path in paths],
    }


class Drifting:
    """CloudFormation with drifts by stack.

    It finds those of a stack only if that stack is asked.
    """

    def __init__(self, drifts: Mapping[str, list[dict[str, Any]]], *, failed: str = "") -> None:
        self.drifts = drifts
        self.failed = failed

    def detect_stack_drift(self, *, StackName: str) -> Any:  # noqa: N803 - boto3's name
        return {"StackDriftDetectionId": StackName}

    def describe_stack_drift_detection_status(self, *, StackDriftDetectionId: str) -> Any:  # noqa: N803 - boto3's name
        if self.failed == StackDriftDetectionId:
            return {"DetectionStatus": "DETECTION_FAILED", "DetectionStatusReason": "no rights"}
        status = "DRIFTED" if self.drifts.get(StackDriftDetectionId) else "IN_SYNC"
        return {"DetectionStatus": "DETECTION_COMPLETE", "StackDriftStatus": status}

    def describe_stack_resource_drifts(self, *, StackName: str, **request: Any) -> Any:  # noqa: N803 - boto3's name
        listed = self.drifts[StackName]
        begin = int(request.get("NextToken", 0))
        more = {"NextToken": str(begin + 1)} if begin + 1 < len(listed) else {}
        return {"StackResourceDrifts": listed[begin : begin + 1], **more}


QUEUE = drifted("AWS::SQS::Queue", "/VisibilityTimeout")
PIPE = drifted("AWS::Pipes::Pipe", "/SourceParameters")


@pytest.mark.parametrize(
    ("drifts", "verdict", "said"),
    [
        ({}, Checked.PASSED, "2 stacks in sync"),
        ({"carride": [QUEUE]}, Checked.FAILED, "Thing of carride-Nested differs in /Visib"),
        ({"arn:nested": [QUEUE]}, Checked.FAILED, "differs in /VisibilityTimeout"),
        ({"carride": [PIPE]}, Checked.UNTOLD, "differs in /SourceParameters"),
        ({"arn:nested": [PIPE, QUEUE]}, Checked.FAILED, "differs in /VisibilityTimeout"),
        (
            {"carride": [drifted("AWS::Pipes::Pipe", status="DELETED")]},
            Checked.FAILED,
            "is deleted",
        ),
    ],
)
def test_drift_is_looked_for_in_each_stack(
    drifts: dict[str, list[dict[str, Any]]], verdict: Checked, said: str
) -> None:
    """A nested stack is asked by itself; a difference that proves nothing fails nobody."""
    result = check_drift(Drifting(drifts))
    assert result.verdict is verdict
    assert said in result.detail


def test_drift_that_could_not_be_detected_cannot_be_told() -> None:
    """The other stacks are examined all the same."""
    result = check_drift(Drifting({}, failed="carride"))
    assert result.verdict is Checked.UNTOLD
    assert "drift detection of carride failed: no rights" in result.detail
    result = check_drift(Drifting({"arn:nested": [QUEUE]}, failed="carride"))
    assert result.verdict is Checked.FAILED


def check_drift(client: Drifting) -> Result:
    """Return what the check for drift says about a stack with a nested one."""
    nested = {"AWS::CloudFormation::Stack": {"Nested": "arn:nested"}}
    return check("there is no drift", client, nested)


def check(
    words: str,
    client: Any,
    resources: Mapping[str, Any] | None = None,
    *,
    wait: float = 1,
    stage: str = "dev",
) -> Result:
    """Return the result of the check with these words in its statement."""
    (wanted,) = (each for each in CHECKS if words in each.statement)
    deployment = Deployment(ref(lambda *_: client, resources=resources), wait=wait)
    deployment.parameters = {"Stage": stage}
    (result,) = verify(deployment, [wanted])
    return result


@mock_aws
def test_metrics_are_asked_for_by_their_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of a minute ago is found at once, although it may not be listed yet."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    client = boto3.client("cloudwatch")
    monkeypatch.setattr(client, "list_metrics", lambda **_: {"Metrics": []})
    statement = "Outcomes arrive as metrics"
    assert check(statement, client, wait=0.1).verdict is Checked.FAILED
    assert check(statement, client, wait=0.1, stage="prod").verdict is Checked.UNTOLD
    client.put_metric_data(
        Namespace="CarRide/carride",
        MetricData=[
            {
                "MetricName": "New",
                "Dimensions": [{"Name": "service", "Value": "dispatch"}],
                "Timestamp": datetime.now(UTC) - timedelta(minutes=1),
                "Value": 3,
            }
        ],
    )
    found = check(statement, client)
    assert (found.verdict, found.detail) == (Checked.PASSED, "dispatch 3")


RUN = Run("carride", "dev", "123456789012", "us-west-2", "abc + changes", NOW, NOW)


def test_a_record_says_where_when_and_on_what_it_ran() -> None:
    """The page has account, region, commit, times, the number of each verdict and every result."""
    results = [
        Result("rides are paid", Checked.PASSED, "20 rides", 90),
        Result("nothing drifted", Checked.UNTOLD, "no rights", 30),
    ]
    text = page(RUN, results)
    for said in (*RUN[:5], "2026-11-21 12:00:00 UTC", "1 pass, 0 FAIL, 1 cannot tell", "2.0 min"):
        assert said in text
    assert "| cannot tell | nothing drifted | no rights |" in text
    assert page(RUN._replace(account="2"), results).splitlines()[-1] != text.splitlines()[-1]


def test_files_without_git_have_no_commit(tmp_path: Path) -> None:
    """A checkout has one; the page of other files says that it is unknown."""
    assert commit(tmp_path) == "unknown"
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    assert len(commit(tmp_path).split()[0]) == 40


def test_who_is_not_staff_cannot_tell_whether_a_booking_takes_effect_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stack that makes no staff role takes one of your own: another caller gets a 403."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    booked = {"orderID": "o", "version": 1}

    def answer(method: str, *_: Any, **__: Any) -> Any:
        if method == "POST":
            return SimpleNamespace(status=201, json=lambda: booked)
        return SimpleNamespace(status=403, data=b"not staff")

    monkeypatch.setattr("urllib3.request", answer)
    client = described(Stage="dev")
    deployment = Deployment(ref(lambda *_: client, CarRideApiUrl="https://api"))
    deployment.parameters = {"Stage": "dev", "JwtIssuer": ""}
    (wanted,) = (each for each in CHECKS if "booking over the API" in each.statement)
    (result,) = verify(deployment, [wanted])
    assert result.verdict is Checked.UNTOLD
    assert "not staff" in result.detail


@mock_aws
def test_only_the_stacks_own_alarms_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """`carride-prod` has alarms of a similar name; one of the stack's own is on or is missing."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    client = boto3.client("cloudwatch")
    for name in ("carride-Overdue", "carride-prod-Overdue"):
        client.put_metric_alarm(
            AlarmName=name,
            MetricName="Overdue",
            Namespace="CarRide",
            Period=60,
            EvaluationPeriods=1,
            Statistic="Sum",
            Threshold=0,
            ComparisonOperator="GreaterThanThreshold",
        )
        client.set_alarm_state(AlarmName=name, StateValue="OK", StateReason="a test")
    of = {"AWS::CloudWatch::Alarm": {"OverdueAlarm": "carride-Overdue"}}

    def turn(name: str) -> None:
        client.set_alarm_state(AlarmName=name, StateValue="ALARM", StateReason="a test")

    turn("carride-prod-Overdue")
    found = check("No alarm is on", client, of)
    assert (found.verdict, found.detail) == (Checked.PASSED, "1 alarm, 0 dashboards")
    turn("carride-Overdue")
    found = check("No alarm is on", client, of)
    assert (found.verdict, found.detail) == (Checked.FAILED, "carride-Overdue is on")
    client.delete_alarms(AlarmNames=["carride-Overdue"])
    found = check("No alarm is on", client, of)
    assert (found.verdict, found.detail) == (Checked.FAILED, "carride-Overdue is missing")


@pytest.mark.parametrize(("at_once", "verdict"), [(1_000, Checked.PASSED), (10, Checked.FAILED)])
def test_an_account_that_runs_few_functions_is_named(at_once: int, verdict: Checked) -> None:
    """A new account may allow ten concurrent executions, which throttles every consumer."""
    settings = {"AccountLimit": {"ConcurrentExecutions": at_once}}
    client = SimpleNamespace(get_account_settings=lambda: settings)
    found = check("enough functions run at once", client)
    assert found.verdict is verdict
    assert str(at_once) in found.detail


@pytest.mark.parametrize(("live", "verdict"), [("INFO", Checked.PASSED), ("DEBUG", Checked.FAILED)])
def test_an_alias_that_a_deployment_did_not_reach_is_named(live: str, verdict: Checked) -> None:
    """Callers would run with other settings than those that were deployed."""

    def configuration(FunctionName: str, Qualifier: str = "") -> Any:  # noqa: N803 - of boto3
        assert FunctionName == "carride-Payment"
        level = live if Qualifier == "7" else "INFO"
        return {"Environment": {"Variables": {"LOG_LEVEL": level}}}

    client = SimpleNamespace(
        get_function_configuration=configuration,
        get_alias=lambda **_: {"FunctionVersion": "7"},
    )
    of = {"AWS::Lambda::Function": {"PaymentFunction": "carride-Payment"}}
    found = check("Callers reach what was deployed last", client, of)
    assert found.verdict is verdict
    assert "PaymentFunction" in found.detail


def test_a_gradual_deployment_has_not_failed() -> None:
    """While callers move to the new version, nobody can tell whether all of them will reach it."""
    client = SimpleNamespace(
        get_function_configuration=lambda Qualifier="", **_: {"CodeSha256": Qualifier},  # noqa: N803 - of boto3
        get_alias=lambda **_: {
            "FunctionVersion": "7",
            "RoutingConfig": {"AdditionalVersionWeights": {"8": 0.1}},
        },
    )
    of = {"AWS::Lambda::Function": {"PaymentFunction": "carride-Payment"}}
    found = check("Callers reach what was deployed last", client, of)
    assert found.verdict is Checked.UNTOLD
    assert "it moves from version 7 to 8" in found.detail


def test_each_function_is_asked_for_once() -> None:
    """Two checks want to know of its settings."""
    asked = []

    def configuration(**request: Any) -> Any:
        asked.append(request)
        return {"Architectures": ["arm64"]}

    client = SimpleNamespace(
        get_function_configuration=configuration,
        get_function_concurrency=lambda **_: {},
        get_alias=lambda **_: {"FunctionVersion": "7"},
    )
    of = {"AWS::Lambda::Function": {"PaymentFunction": "carride-Payment"}}
    deployment = Deployment(ref(lambda *_: client, resources=of))
    deployment.parameters = {"Architecture": "arm64"}
    words = ("Functions are active", "Callers reach what was deployed last")
    wanted = [each for each in CHECKS if each.statement.startswith(words)]
    assert [each.verdict for each in verify(deployment, wanted)] == [Checked.PASSED] * 2
    name = {"FunctionName": "carride-Payment"}
    assert asked == [name, name | {"Qualifier": "7"}]


class Billed:
    """An outbox with as many open shards and write units, and what scales it."""

    def __init__(self, *, open_shards: int, units: int, scaled: bool = True) -> None:
        ended = {"StartingSequenceNumber": "1", "EndingSequenceNumber": "2"}
        running = {"StartingSequenceNumber": "3"}
        self._shards = [{"SequenceNumberRange": each} for each in [ended, *[running] * open_shards]]
        self._units = units
        self._targets = [{"ResourceId": "table/carride-OutboxTable"}] if scaled else []

    def describe_table(self, **_: Any) -> Any:
        return {
            "Table": {
                "TableName": "carride-OutboxTable",
                "LatestStreamArn": "arn:stream",
                "ProvisionedThroughput": {"WriteCapacityUnits": self._units},
            }
        }

    def describe_stream(self, *, StreamArn: str, ExclusiveStartShardId: str = "0") -> Any:  # noqa: N803 - boto3's names
        assert StreamArn == "arn:stream"
        page = int(ExclusiveStartShardId)
        description: dict[str, Any] = {"Shards": self._shards[page : page + 1]}
        if page + 1 < len(self._shards):
            description["LastEvaluatedShardId"] = str(page + 1)
        return {"StreamDescription": description}

    def get_paginator(self, name: str) -> Any:
        assert name == "describe_scalable_targets"
        return SimpleNamespace(paginate=lambda **_: [{"ScalableTargets": self._targets}])


OUTBOX = {"AWS::DynamoDB::GlobalTable": {"OutboxTable": "carride-OutboxTable"}}


@pytest.mark.parametrize(
    ("open_shards", "units", "verdict"),
    [(1, 5, Checked.PASSED), (4, 5, Checked.UNTOLD), (4, 0, Checked.PASSED)],
)
def test_shards_that_cost_more_than_is_counted_are_named(
    open_shards: int, units: int, verdict: Checked
) -> None:
    """Closed shards are read to their end; an outbox on demand has as many as its load needs."""
    found = Billed(open_shards=open_shards, units=units)
    result = check("provisioned outbox has one shard", found, OUTBOX)
    assert result.verdict is verdict
    assert f"{open_shards} open shard" in result.detail


def test_a_secondary_has_no_outbox_of_its_own() -> None:
    """Its replica belongs to the primary's stack."""
    result = check("provisioned outbox has one shard", Billed(open_shards=1, units=5), {})
    assert result.verdict is Checked.SKIPPED


@pytest.mark.parametrize(
    ("units", "scaled", "verdict"),
    [
        (5, True, Checked.PASSED),
        (5, False, Checked.FAILED),
        (0, False, Checked.SKIPPED),
    ],
)
def test_what_is_provisioned_scales(units: int, scaled: bool, verdict: Checked) -> None:
    """Also if only the outbox is; a table on demand has nothing that scales."""
    found = Billed(open_shards=1, units=units, scaled=scaled)
    assert check("indexes scale", found, OUTBOX).verdict is verdict
