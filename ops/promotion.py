"""Gives the secondary's stack the tables that the stack of a lost primary created.

CloudFormation imports resources only if nothing else of the stack changes. The stack's template
describes the tables already, under a condition that is false: without the condition, and with all
parameters as they are, they are imported. A second step changes the parameters alone.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
    WaiterError,
)

from ops.stack import OperatorError, StackRef, reason
from ops.verbs import Plan, Session, Steps, acts

TABLE: Final = "AWS::DynamoDB::GlobalTable"
NAME: Final = "import"
"""Of the change set, and of the template in the bucket."""
ALONE: Final = {
    "Role": "standalone",
    "PeerRegion": "",
    "GlobalEndpoint": "absent",
    "GlobalEndpointId": "",
    "OutboxStreamArn": "",
}
"""The parameters that make a secondary work on alone."""

_MANAGED: Final = "aws-sam-cli-managed-default"
"""The stack in which the SAM CLI keeps its bucket."""
_CAPABILITIES: Final = ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND")
_SILENCE: Final = (EndpointConnectionError, ConnectTimeoutError, ReadTimeoutError)
"""What a region that is lost does: it refuses connections, or lets them time out."""
_ASKS: Final = 20
_ASK_SECONDS: Final = 15.0
"""A region that answers once in these five minutes is not lost."""
_DETACH_POLLS: Final = 120
_DETACH_SECONDS: Final = 5.0
"""A table that is not active after these ten minutes needs a person."""


@acts("promote", "--lost us-west-2 --region us-east-1", "--lost us-west-2 --finish --yes")
def promote(
    session: Session, *, lost: str, bucket: str | None = None, finish: bool = False
) -> Plan:
    """Import the tables into the secondary's stack, if the primary's region is lost for good.

    The primary must not answer: before anything changes, its region is asked for five minutes. Any
    answer, a refusal too, means that it lives. A second command, with --finish, makes the stack a
    standalone one. docs/promotion.md has what comes before and after.

    Args:
        lost: Name of the region that is lost, as you type it.
        bucket: A bucket of yours in the secondary's region, for the template; by default the SAM
            CLI's.
        finish: Make the stack a standalone one, when it has its tables.
    """
    promotion = Promotion(session.stack, lost, session.say)
    return promotion.finish() if finish else promotion.importing(bucket)


@dataclass(frozen=True)
class Promotion:
    """The promotion of a secondary's stack whose primary was in the region ``lost``."""

    stack: StackRef
    lost: str
    say: Callable[[str], object] = print
    sleep: Callable[[float], object] = time.sleep

    def importing(self, bucket: str | None) -> Plan:
        """Plan the import of a region's replicas into its stack; the result has their names.

        Raises:
            OperatorError: the stack is not a secondary, or its primary is not lost.
        """
        self._check()
        template = with_tables(self.stack)
        tables = {name: f"{self.stack.name}-{name}" for name in _tables_in(template)}

        def do() -> dict[str, Any]:
            self._wait_in_silence()
            for table in tables.values():
                self._detach(table)
            _import(self.stack, template, tables, bucket)
            return {"imported": sorted(tables.values())}

        steps = (
            f"ask {self.lost} for five minutes, and stop if it answers",
            f"remove the replicas in {self.lost} from the tables, if DynamoDB allows it",
            f"import {', '.join(tables)} into the stack in {self.stack.region}",
            "refuse the change set before it is executed, if it changes anything else",
        )
        return Plan(Steps(steps), do, (self.stack,))

    def finish(self) -> Plan:
        """Plan the change of parameters with which the stack works on alone.

        Raises:
            OperatorError: the stack is not a secondary with tables, or its primary is not lost.
        """
        self._check()
        missing = set(_tables_in(with_tables(self.stack))) - set(self.stack.named(TABLE))
        if missing:
            raise OperatorError(
                f"the stack has no {', '.join(sorted(missing))} yet: run "
                f"`./carride promote --lost {self.lost} --yes` first"
            )
        given = " ".join(f"{name}={value or '(empty)'}" for name, value in ALONE.items())

        def do() -> dict[str, str]:
            self._wait_in_silence()
            _update(self.stack, ALONE)
            return {"role": ALONE["Role"]}

        step = f"change the parameters of {self.stack.name} in {self.stack.region}: {given}"
        ask = f"ask {self.lost} for five minutes, and stop if it answers"
        return Plan(Steps((ask, step)), do, (self.stack,))

    def _check(self) -> None:
        """Refuse a stack that is not a secondary, its primary's region, or a living primary."""
        stack = self.stack
        if stack.role != "secondary":
            raise OperatorError(
                f"{stack.name} in {stack.region} is not a secondary: give the secondary's --region"
            )
        primary = stack.outputs["PeerRegion"]
        if self.lost != primary:
            raise OperatorError(
                f"the primary of {stack.name} is in {primary}, not in {self.lost}: promote it "
                f"only if {primary} is lost"
            )
        self._ask()

    def _wait_in_silence(self) -> None:
        """Ask the lost region again and again; refuse if it answers once."""
        for asked in range(_ASKS):
            silence = self._ask()
            if asked % 4 == 0:
                left = (_ASKS - asked) * _ASK_SECONDS / 60
                self.say(
                    f"{self.lost} is silent; asking it for {left:.0f} more minutes ({silence})"
                )
            self.sleep(_ASK_SECONDS)
        self._ask()

    def _ask(self) -> str:
        """Return how the lost region is silent.

        Raises:
            OperatorError: it answers, if only with a refusal, or it could not be asked.
        """
        peer = self.stack.peer()
        try:
            if peer is not None:
                peer.describe()
        except _SILENCE as error:
            return reason(error)
        except ClientError as error:
            raise OperatorError(
                f"{self.lost} answers, so it is not lost ({reason(error)}): mend what it refuses, "
                "and go back with `./carride unfence`"
            ) from error
        except BotoCoreError as error:
            raise OperatorError(
                f"{self.lost} could not be asked, which does not mean that it is lost: "
                f"{reason(error)}"
            ) from error
        raise OperatorError(
            f"{self.lost} answers, and its stack owns the tables: go back with `./carride unfence`"
        )

    def _detach(self, table: str) -> None:
        """Remove a table's replica in the lost region, if DynamoDB allows it.

        A region that does not answer may keep it: only writes wait for it.
        """
        dynamodb = self.stack.client("dynamodb")
        removal = {"Delete": {"RegionName": self.lost}}
        try:
            dynamodb.update_table(TableName=table, ReplicaUpdates=[removal])
        except ClientError as error:
            self.say(f"{table} keeps its replica in {self.lost}: {reason(error)}")
            return
        for _ in range(_DETACH_POLLS):
            status = dynamodb.describe_table(TableName=table)["Table"]["TableStatus"]
            if status == "ACTIVE":
                return
            self.sleep(_DETACH_SECONDS)
        raise OperatorError(
            f"{table} is still {status} after ten minutes, and nothing was imported: run the "
            "command again when it is ACTIVE"
        )


def with_tables(stack: StackRef) -> dict[str, Any]:
    """Return a stack's template without the condition of its tables."""
    answer = stack.client("cloudformation").get_template(
        StackName=stack.name, TemplateStage="Processed"
    )
    template: dict[str, Any] = answer["TemplateBody"]
    for name in _tables_in(template):
        template["Resources"][name].pop("Condition", None)
    return template


def _tables_in(template: Mapping[str, Any]) -> list[str]:
    """Return the logical ids of a template's tables."""
    return [name for name, each in template["Resources"].items() if each["Type"] == TABLE]


def _import(
    stack: StackRef, template: Mapping[str, Any], tables: Mapping[str, str], bucket: str | None
) -> None:
    """Import tables, by logical id, by a change set that must change nothing else."""
    cloudformation = stack.client("cloudformation")
    change_set = {"StackName": stack.name, "ChangeSetName": NAME}
    imported = [
        {
            "ResourceType": TABLE,
            "LogicalResourceId": name,
            "ResourceIdentifier": {"TableName": table},
        }
        for name, table in tables.items()
    ]
    cloudformation.create_change_set(
        **change_set,
        ChangeSetType="IMPORT",
        TemplateURL=_uploaded(stack, template, bucket),
        ResourcesToImport=imported,
        Parameters=_parameters(stack, {}),
        Capabilities=[*_CAPABILITIES],
    )
    try:
        cloudformation.get_waiter("change_set_create_complete").wait(**change_set)
        _refuse_other_changes(cloudformation.describe_change_set(**change_set), set(tables))
        cloudformation.execute_change_set(**change_set)
        cloudformation.get_waiter("stack_import_complete").wait(StackName=stack.name)
    except WaiterError as error:
        why = error.last_response.get("StatusReason", error)
        raise OperatorError(
            f"CloudFormation does not import the tables: {why}. Delete the change set before the "
            "next try (docs/promotion.md)"
        ) from error


def _uploaded(stack: StackRef, template: Mapping[str, Any], bucket: str | None) -> str:
    """Upload a template, which is too large for a request, and return its URL."""
    s3 = stack.client("s3")
    if bucket is None:
        bucket = stack.nested(_MANAGED).outputs["SourceBucket"]
    key = f"{stack.name}-{NAME}"
    content = json.dumps(template).encode()
    s3.put_object(Bucket=bucket, Key=key, Body=content)
    return f"{s3.meta.endpoint_url}/{bucket}/{key}"


def _refuse_other_changes(change_set: Mapping[str, Any], tables: set[str]) -> None:
    """Refuse a change set that does not import exactly the tables, or changes anything else."""
    imported = set[str]()
    others = set[str]()
    for each in change_set["Changes"]:
        change = each["ResourceChange"]
        found = imported if change["Action"] == "Import" else others
        found.add(change["LogicalResourceId"])
    others |= imported ^ tables
    if others:
        raise OperatorError(
            f"the import would change {', '.join(sorted(others))}: nothing was done; delete the "
            "change set, and deploy the secondary as it was before the next try"
        )


def _update(stack: StackRef, changed: Mapping[str, str]) -> None:
    """Update a stack with its own template and some parameters, and wait until it is done."""
    cloudformation = stack.client("cloudformation")
    cloudformation.update_stack(
        StackName=stack.name,
        UsePreviousTemplate=True,
        Parameters=_parameters(stack, changed),
        Capabilities=[*_CAPABILITIES],
    )
    try:
        cloudformation.get_waiter("stack_update_complete").wait(StackName=stack.name)
    except WaiterError as error:
        described = stack.describe() or {}
        why = described.get("StackStatusReason", error)
        raise OperatorError(
            f"CloudFormation did not update {stack.name} in {stack.region}: {why}. Mend that, and "
            "run the command again"
        ) from error


def _parameters(stack: StackRef, changed: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a stack's parameters for a request: those that do not change keep their values."""
    listed: list[dict[str, Any]] = []
    for name in stack.parameters() or ():
        if name in changed:
            listed.append({"ParameterKey": name, "ParameterValue": changed[name]})
        else:
            listed.append({"ParameterKey": name, "UsePreviousValue": True})
    return listed
