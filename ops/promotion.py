"""Gives the secondary's stack the tables that the stack of a lost primary created.

CloudFormation imports resources only if nothing else of the stack changes. The stack's template describes the tables
already, under a condition that is false: without the condition, and with all parameters as they are, they are imported.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from ops.cli.verbs import Plan, Session, Steps, acts
from ops.stack import OperatorError, StackRef

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
        bucket: A bucket of yours in the secondary's region, for the template; by default the SAM CLI's.
    """
    promotion = Promotion(session.stack, session.say, bucket)
    return Plan(Steps(tuple(promotion.plan())), promotion.run, (session.stack,))


@dataclass(frozen=True)
class Promotion:
    """Imports the replicas of a region into its stack, the secondary. The template is too large for a request."""

    stack: StackRef
    say: Callable[[str], object]
    bucket: str | None = None
    """For the template; by default the SAM CLI's in this region."""
    sleep: Callable[[float], object] = time.sleep

    def template(self) -> dict[str, Any]:
        """Return the stack's template with the tables.

        Raises:
            OperatorError: the stack is no secondary, or its primary is not lost.
        """
        peer = self.stack.peer()
        if self.stack.role != "secondary" or peer is None:
            raise OperatorError(
                f"{self.stack.name} in {self.stack.region} is no secondary: give the secondary's --region"
            )
        try:
            alive = peer.describe() is not None
        except (BotoCoreError, ClientError):
            alive = False
        if alive:
            raise OperatorError(
                f"the stack in {peer.region} answers, and owns the tables: go back to it with `./carride unfence`"
            )
        answer = self.stack.client("cloudformation").get_template(StackName=self.stack.name, TemplateStage="Processed")
        template: dict[str, Any] = answer["TemplateBody"]
        for name in tables_of(template):
            template["Resources"][name].pop("Condition", None)
        return template

    def plan(self) -> list[str]:
        """Return the steps in words."""
        tables = ", ".join(tables_of(self.template()))
        return [
            f"remove the replicas in {self.stack.outputs['PeerRegion']} from the tables, if DynamoDB allows it",
            f"import {tables} into the stack in {self.stack.region}, by a change set that changes nothing else",
        ]

    def run(self) -> dict[str, Any]:
        """Detach and import the tables, and return their names.

        Raises:
            OperatorError: the change set would change something else, or CloudFormation refuses it.
        """
        template = self.template()
        tables = {name: f"{self.stack.name}-{name}" for name in tables_of(template)}
        for table in tables.values():
            self._detach(table, self.stack.outputs["PeerRegion"])
        self._import(template, tables)
        return {"imported": sorted(tables.values())}

    def _detach(self, table: str, region: str) -> None:
        """Remove a table's replica in a region. A region that does not answer may keep it: only writes wait for it."""
        dynamodb = self.stack.client("dynamodb")
        try:
            dynamodb.update_table(TableName=table, ReplicaUpdates=[{"Delete": {"RegionName": region}}])
        except ClientError as error:
            self.say(f"{table} keeps its replica in {region}: {error}")
            return
        while dynamodb.describe_table(TableName=table)["Table"]["TableStatus"] != "ACTIVE":
            self.sleep(5)

    def _import(self, template: Mapping[str, Any], tables: Mapping[str, str]) -> None:
        changes = {"StackName": self.stack.name, "ChangeSetName": NAME}
        cloudformation = self.stack.client("cloudformation")
        parameters = (self.stack.describe() or {}).get("Parameters", [])
        cloudformation.create_change_set(
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
            cloudformation.get_waiter("change_set_create_complete").wait(**changes)
            described = cloudformation.describe_change_set(**changes)
            found = {
                each["ResourceChange"]["LogicalResourceId"]: each["ResourceChange"] for each in described["Changes"]
            }
            if set(found) != set(tables) or any(each["Action"] != "Import" for each in found.values()):
                raise OperatorError(
                    f"the import would change {', '.join(set(found) ^ set(tables)) or 'the tables'}: nothing was done"
                )
            cloudformation.execute_change_set(**changes)
            cloudformation.get_waiter("stack_import_complete").wait(StackName=self.stack.name)
        except WaiterError as error:
            why = error.last_response.get("StatusReason", error)
            raise OperatorError(f"CloudFormation does not import the tables: {why}") from error

    def _uploaded(self, template: str) -> str:
        """Return the URL of a template in the bucket."""
        managed = StackRef(_MANAGED, self.stack.region, lambda service, _: self.stack.client(service))
        bucket, s3 = self.bucket or managed.outputs["SourceBucket"], self.stack.client("s3")
        s3.put_object(Bucket=bucket, Key=f"{self.stack.name}-{NAME}", Body=template.encode())
        return f"{s3.meta.endpoint_url}/{bucket}/{self.stack.name}-{NAME}"


def tables_of(template: Mapping[str, Any]) -> list[str]:
    """Return the logical ids of the tables."""
    return [name for name, each in template["Resources"].items() if each["Type"] == TABLE]
