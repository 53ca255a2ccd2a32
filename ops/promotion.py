"""Gives the secondary's stack the tables that the stack of a lost primary created.

CloudFormation imports resources only if nothing else of the stack changes. The stack's template describes the tables
already, under a condition that is false: without the condition, and with all parameters as they are, they are imported.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from ops.stack import OperatorError, StackRef

TABLE: Final = "AWS::DynamoDB::GlobalTable"
NAME: Final = "import"
"""Of the change set, and of the template in the bucket."""
_MANAGED: Final = "aws-sam-cli-managed-default"
"""The stack in which the SAM CLI keeps its bucket."""


class Promotion:
    """Imports the replicas of a region into its stack.

    Args:
        stack: the secondary.
        say: shows progress.
        bucket: for the template, which is too large for a request; by default the SAM CLI's in this region.
        sleep: takes seconds.
    """

    def __init__(
        self,
        stack: StackRef,
        say: Callable[[str], object],
        bucket: str | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._stack, self._say, self._bucket, self._sleep = stack, say, bucket, sleep
        self._cloudformation = stack.client("cloudformation")

    def template(self) -> dict[str, Any]:
        """Return the stack's template with the tables.

        Raises:
            OperatorError: the stack is no secondary, or its primary is not lost.
        """
        peer = self._stack.peer()
        if self._stack.role != "secondary" or peer is None:
            raise OperatorError(
                f"{self._stack.name} in {self._stack.region} is no secondary: give the secondary's --region"
            )
        try:
            alive = peer.describe() is not None
        except (BotoCoreError, ClientError):
            alive = False
        if alive:
            raise OperatorError(
                f"the stack in {peer.region} answers, and owns the tables: go back to it with `./carride unfence`"
            )
        answer = self._cloudformation.get_template(StackName=self._stack.name, TemplateStage="Processed")
        template: dict[str, Any] = answer["TemplateBody"]
        for name in tables_of(template):
            template["Resources"][name].pop("Condition", None)
        return template

    def plan(self) -> list[str]:
        """Return the steps in words."""
        tables = ", ".join(tables_of(self.template()))
        return [
            f"remove the replicas in {self._stack.outputs['PeerRegion']} from the tables, if DynamoDB allows it",
            f"import {tables} into the stack in {self._stack.region}, by a change set that changes nothing else",
        ]

    def run(self) -> dict[str, Any]:
        """Detach and import the tables, and return their names.

        Raises:
            OperatorError: the change set would change something else, or CloudFormation refuses it.
        """
        template = self.template()
        tables = {name: f"{self._stack.name}-{name}" for name in tables_of(template)}
        for table in tables.values():
            self._detach(table, self._stack.outputs["PeerRegion"])
        self._import(template, tables)
        return {"imported": sorted(tables.values())}

    def _detach(self, table: str, region: str) -> None:
        """Remove a table's replica in a region. A region that does not answer may keep it: only writes wait for it."""
        dynamodb = self._stack.client("dynamodb")
        try:
            dynamodb.update_table(TableName=table, ReplicaUpdates=[{"Delete": {"RegionName": region}}])
        except ClientError as error:
            self._say(f"{table} keeps its replica in {region}: {error}")
            return
        while dynamodb.describe_table(TableName=table)["Table"]["TableStatus"] != "ACTIVE":
            self._sleep(5)

    def _import(self, template: Mapping[str, Any], tables: Mapping[str, str]) -> None:
        changes = {"StackName": self._stack.name, "ChangeSetName": NAME}
        parameters = (self._stack.describe() or {}).get("Parameters", [])
        self._cloudformation.create_change_set(
            **changes,
            ChangeSetType="IMPORT",
            TemplateURL=self._uploaded(json.dumps(template)),
            ResourcesToImport=[
                {"ResourceType": TABLE, "LogicalResourceId": name, "ResourceIdentifier": {"TableName": table}}
                for name, table in tables.items()
            ],
            Parameters=[{"ParameterKey": each["ParameterKey"], "UsePreviousValue": True} for each in parameters],
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
        )
        try:
            self._cloudformation.get_waiter("change_set_create_complete").wait(**changes)
            described = self._cloudformation.describe_change_set(**changes)
            found = {
                each["ResourceChange"]["LogicalResourceId"]: each["ResourceChange"] for each in described["Changes"]
            }
            if set(found) != set(tables) or any(each["Action"] != "Import" for each in found.values()):
                raise OperatorError(
                    f"the import would change {', '.join(set(found) ^ set(tables)) or 'the tables'}: nothing was done"
                )
            self._cloudformation.execute_change_set(**changes)
            self._cloudformation.get_waiter("stack_import_complete").wait(StackName=self._stack.name)
        except WaiterError as error:
            why = error.last_response.get("StatusReason", error)
            raise OperatorError(f"CloudFormation does not import the tables: {why}") from error

    def _uploaded(self, template: str) -> str:
        """Return the URL of a template in the bucket."""
        bucket = (
            self._bucket
            or StackRef(_MANAGED, self._stack.region, lambda *_: self._cloudformation).outputs["SourceBucket"]
        )
        s3 = self._stack.client("s3")
        s3.put_object(Bucket=bucket, Key=f"{self._stack.name}-{NAME}", Body=template.encode())
        return f"{s3.meta.endpoint_url}/{bucket}/{self._stack.name}-{NAME}"


def tables_of(template: Mapping[str, Any]) -> list[str]:
    """Return the logical ids of the tables."""
    return [name for name, each in template["Resources"].items() if each["Type"] == TABLE]
