"""Resources of a template: each case of resources.yaml, and tables."""

from pathlib import Path
from typing import Any, Final

import jmespath
import pytest
import yaml

from local.local_aws import LocalAws, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import needed

CASES: Final[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("resources.yaml").read_text(encoding="utf-8"))


def seen(cloud: LocalAws, stack: Stack, case: str) -> bool:
    """Whether the case's resources are there."""
    service, operation, request, expression = CASES[case]["seen"]

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        return stack.resources[value[1:]] if value.startswith("$") else value

    answer = getattr(cloud.client(service), operation)(**{name: filled(value) for name, value in request.items()})
    return bool(jmespath.search(expression, answer))


@needed("*_resources")
@pytest.mark.parametrize("case", CASES)
def test_a_template_may_hold_it(engine: LocalAws, deploy: Deploy, case: str) -> None:
    """A stack with such resources is created, updated with a change, and deleted."""
    resources = CASES[case]["resources"]
    assert seen(engine, deploy(**resources), case)
    stack = deploy(**resources, More={"Type": "AWS::SQS::Queue"})
    assert seen(engine, stack, case)
    engine.delete_stack(stack.name)


def table(kind: str, **properties: Any) -> Any:
    """A table with one key."""
    keys = {
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
    }
    return {"Type": f"AWS::DynamoDB::{kind}", "Properties": keys | properties}


TTL: Final = {"TimeToLiveSpecification": {"AttributeName": "expires", "Enabled": True}}
HOME: Final = {"Region": {"Ref": "AWS::Region"}}
AWAY: Final = {"Region": "us-west-2"}


def time_to_live(cloud: LocalAws, stack: Stack, region: str | None = None) -> Any:
    """The TTL of the stack's table."""
    client = cloud.client("dynamodb", region=region)
    return client.describe_time_to_live(TableName=stack.resources["Table"])["TimeToLiveDescription"]


@needed("table_resources")
@pytest.mark.parametrize(
    ("kind", "more"), [("Table", {}), ("GlobalTable", {"Replicas": [HOME]})], ids=["table", "global"]
)
def test_a_table_has_the_templates_time_to_live(
    engine: LocalAws, deploy: Deploy, kind: str, more: dict[str, Any]
) -> None:
    """The template turns a table's TTL on and off, and an update keeps the items."""
    stack = deploy(Table=table(kind, **more, **TTL))
    assert time_to_live(engine, stack) == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}
    name = stack.resources["Table"]
    engine.client("dynamodb").put_item(TableName=name, Item={"key": {"S": "kept"}})
    stack = deploy(Table=table(kind, **more))
    assert stack.resources["Table"] == name
    assert time_to_live(engine, stack)["TimeToLiveStatus"] == "DISABLED"
    assert engine.client("dynamodb").scan(TableName=name)["Count"] == 1


def test_a_global_table_is_in_every_region_of_its_replicas(engine: LocalAws, deploy: Deploy) -> None:
    """What is written in one replica's region is read in the other's; a replica that is removed is gone there."""
    stack = deploy(Table=table("GlobalTable", Replicas=[HOME, AWAY], **TTL))
    name = stack.resources["Table"]
    west = engine.client("dynamodb", region="us-west-2")
    west.put_item(TableName=name, Item={"key": {"S": "far"}})
    assert engine.client("dynamodb").scan(TableName=name)["Count"] == 1
    assert time_to_live(engine, stack, "us-west-2")["TimeToLiveStatus"] == "ENABLED"
    deploy(Table=table("GlobalTable", Replicas=[HOME], **TTL))
    assert name not in west.list_tables()["TableNames"]
    engine.delete_stack(stack.name)
    assert name not in engine.client("dynamodb").list_tables()["TableNames"]
