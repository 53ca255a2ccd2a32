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


HOME: Final = {"Region": {"Ref": "AWS::Region"}}
AWAY: Final = {"Region": "us-west-2"}


@needed("table_resources")
def test_a_global_table_is_in_every_region_of_its_replicas(engine: LocalAws, deploy: Deploy) -> None:
    """An item written in one region is read in the other, and survives an update that removes a replica."""
    stack = deploy(Table=table("GlobalTable", Replicas=[HOME, AWAY]))
    name = stack.resources["Table"]
    east, west = (engine.client("dynamodb", region=region) for region in ("us-east-1", "us-west-2"))
    west.put_item(TableName=name, Item={"key": {"S": "far"}})
    assert east.scan(TableName=name)["Count"] == 1
    assert deploy(Table=table("GlobalTable", Replicas=[HOME])).resources["Table"] == name
    assert east.scan(TableName=name)["Count"] == 1
    assert name not in west.list_tables()["TableNames"]
    engine.delete_stack(stack.name)
    assert name not in east.list_tables()["TableNames"]
