"""Gives the secondary's stack the tables that the stack of a lost primary created.

CloudFormation imports resources only if nothing else of the stack changes. The stack's template
describes the tables already, under a condition that is false: without the condition, and with all
parameters as they are, they are imported.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from ops.stack import OperatorError, StackRef
from ops.verbs import Plan, Session, Steps, acts

TABLE: Final = "AWS::DynamoDB::GlobalTable"
NAME: Final = "import"
"""Of the change set, and of the template in the bucket."""
_MANAGED: Final = "aws-sam-cli-managed-default"
"""The stack in which the SAM CLI keeps its bucket."""


@acts("promote")
def promote(session: Session, *, bucket: str | None = None) -> Plan:
    """Import the tables into the secondary's stack, if the primary's region is lost for good.

    The primary must not answer. docs/promotion.md has what comes before and after.

    Args:
        bucket: A bucket of yours in the secondary's region, for the template; by default the SAM
            CLI's.
    """
    return promotion(session.stack, bucket, session.say)


def promotion(
    stack: StackRef,
    bucket: str | None,
    say: Callable[[str], object],
    sleep: Callable[[float], object] = time.sleep,
) -> Plan:
    """Plan the import of a region's replicas into its stack; the result has their names. Arguments as in `promote`.

    Raises:
        OperatorError: the stack is no secondary, or its primary is not lost.
    """
    peer = stack.peer()
    if stack.role != "secondary" or peer is None:
        raise OperatorError(
            f"{stack.name} in {stack.region} is no secondary: give the secondary's --region"
        )
    try:
        alive = peer.describe() is not None
    except (BotoCoreError, ClientError):
        alive = False
    if alive:
        raise OperatorError(
            f"the stack in {peer.region} answers, and owns the tables: go back with `./carride unfence`"
        )
    template = with_tables(stack)
    names = [name for name, each in template["Resources"].items() if each["Type"] == TABLE]
    tables = {name: f"{stack.name}-{name}" for name in names}

    def do() -> dict[str, Any]:
        for table in tables.values():
            _detach(stack, table, peer.region, say, sleep)
        _import(stack, template, tables, bucket)
        return {"imported": sorted(tables.values())}

    steps = (
        f"remove the replicas in {peer.region} from the tables, if DynamoDB allows it",
        f"import {', '.join(tables)} into the stack in {stack.region}, by a change set that changes nothing else",
    )
    return Plan(Steps(steps), do, (stack,))


def with_tables(stack: StackRef) -> dict[str, Any]:
    """Return a stack's template without the condition of its tables."""
    answer = stack.client("cloudformation").get_template(
        StackName=stack.name, TemplateStage="Processed"
    )
    template: dict[str, Any] = answer["TemplateBody"]
    for each in template["Resources"].values():
        if each["Type"] == TABLE:
            each.pop("Condition", None)
    return template


def _detach(
    stack: StackRef,
    table: str,
    region: str,
    say: Callable[[str], object],
    sleep: Callable[[float], object],
) -> None:
    """Remove a table's replica in a region. A region that does not answer may keep it: only writes wait for it."""
    dynamodb = stack.client("dynamodb")
    try:
        dynamodb.update_table(TableName=table, ReplicaUpdates=[{"Delete": {"RegionName": region}}])
    except ClientError as error:
        say(f"{table} keeps its replica in {region}: {error}")
        return
    while dynamodb.describe_table(TableName=table)["Table"]["TableStatus"] != "ACTIVE":
        sleep(5)


def _import(
    stack: StackRef, template: Mapping[str, Any], tables: Mapping[str, str], bucket: str | None
) -> None:
    """Import tables, by logical id, by a change set that must change nothing else."""
    managed, s3 = (
        StackRef(_MANAGED, stack.region, lambda service, _: stack.client(service)),
        stack.client("s3"),
    )
    bucket, key = bucket or managed.outputs["SourceBucket"], f"{stack.name}-{NAME}"
    # Too large for a request.
    s3.put_object(Bucket=bucket, Key=key, Body=json.dumps(template).encode())
    cloudformation, changes = (
        stack.client("cloudformation"),
        {"StackName": stack.name, "ChangeSetName": NAME},
    )
    cloudformation.create_change_set(
        **changes,
        ChangeSetType="IMPORT",
        TemplateURL=f"{s3.meta.endpoint_url}/{bucket}/{key}",
        ResourcesToImport=[
            {
                "ResourceType": TABLE,
                "LogicalResourceId": name,
                "ResourceIdentifier": {"TableName": table},
            }
            for name, table in tables.items()
        ],
        Parameters=[
            {"ParameterKey": name, "UsePreviousValue": True} for name in stack.parameters() or ()
        ],
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
    )
    try:
        cloudformation.get_waiter("change_set_create_complete").wait(**changes)
        found = [
            each["ResourceChange"]
            for each in cloudformation.describe_change_set(**changes)["Changes"]
        ]
        others = {each["LogicalResourceId"] for each in found if each["Action"] == "Import"} ^ set(
            tables
        )
        others |= {each["LogicalResourceId"] for each in found if each["Action"] != "Import"}
        if others:
            raise OperatorError(
                f"the import would change {', '.join(sorted(others))}: nothing was done"
            )
        cloudformation.execute_change_set(**changes)
        cloudformation.get_waiter("stack_import_complete").wait(StackName=stack.name)
    except WaiterError as error:
        why = error.last_response.get("StatusReason", error)
        raise OperatorError(f"CloudFormation does not import the tables: {why}") from error
