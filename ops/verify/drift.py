"""Changes that somebody made by hand, as CloudFormation's drift detection finds them.

Detection of a stack leaves its nested stacks out, so each is asked by itself:
https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_DetectStackDrift.html
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ops.verify import CannotTellError, Deployment, FailedError

UNPROVEN: Final = frozenset(
    {"AWS::ApiGatewayV2::Api", "AWS::DynamoDB::GlobalTable", "AWS::Pipes::Pipe"}
)
"""Types whose modified properties prove nothing yet: AWS keeps their properties in another form
than the template, and no account has shown how drift detection compares them."""


class Drift(NamedTuple):
    """A resource that is not as its stack's template describes it."""

    stack: str
    resource: str
    type: str
    deleted: bool
    properties: tuple[str, ...]
    """Paths of the properties that differ."""

    def __str__(self) -> str:
        what = "is deleted" if self.deleted else f"differs in {', '.join(self.properties)}"
        return f"{self.resource} of {self.stack} {what}"


def drift_of(it: Deployment, stack: str) -> list[Drift]:
    """Detect the drift of one stack, by name or ARN, without its nested stacks.

    Raises:
        CannotTellError: CloudFormation could not examine the stack.
    """
    client = it.client("cloudformation")
    detection = client.detect_stack_drift(StackName=stack)["StackDriftDetectionId"]

    def ended() -> Mapping[str, Any] | None:
        status = client.describe_stack_drift_detection_status(StackDriftDetectionId=detection)
        return None if status["DetectionStatus"] == "DETECTION_IN_PROGRESS" else dict(status)

    try:
        status = it.until("it has not ended", ended)
    except FailedError as error:
        raise CannotTellError(f"drift detection of {stack}: {error}") from error
    if status["DetectionStatus"] == "DETECTION_FAILED":
        why = status.get("DetectionStatusReason", "CloudFormation gives no reason")
        raise CannotTellError(f"drift detection of {stack} failed: {why}")
    if status.get("StackDriftStatus") == "IN_SYNC":
        return []
    return [_drift(each) for each in _drifted(client, stack)]


def _drifted(client: Any, stack: str) -> Iterator[Mapping[str, Any]]:
    """Yield CloudFormation's descriptions of the resources that have drifted."""
    request: dict[str, Any] = {
        "StackName": stack,
        "StackResourceDriftStatusFilters": ["MODIFIED", "DELETED"],
    }
    while True:
        page = client.describe_stack_resource_drifts(**request)
        yield from page["StackResourceDrifts"]
        if "NextToken" not in page:
            return
        request["NextToken"] = page["NextToken"]


def _drift(described: Mapping[str, Any]) -> Drift:
    differences = described.get("PropertyDifferences", [])
    return Drift(
        stack=described["StackId"].partition(":stack/")[2].partition("/")[0],
        resource=described["LogicalResourceId"],
        type=described["ResourceType"],
        deleted=described["StackResourceDriftStatus"] == "DELETED",
        properties=tuple(each["PropertyPath"] for each in differences),
    )
