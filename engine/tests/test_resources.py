"""Resources of a template: each case of resources.yaml, tables, APIs, names and nested stacks."""

from pathlib import Path
from typing import Any, Final

import jmespath
import pytest
import yaml
from botocore.awsrequest import AWSRequest
from botocore.httpsession import URLLib3Session

from engine.client import LocalCloud
from engine.process import EngineError
from engine.tests.conftest import Deploy
from engine.tests.support import QUEUE, function, needed, template

pytestmark = pytest.mark.integration

CASES: Final[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("resources.yaml").read_text(encoding="utf-8")
)
HOME: Final = {"Region": {"Ref": "AWS::Region"}}
AWAY: Final = {"Region": "us-west-2"}


@needed("*_resources")
@pytest.mark.parametrize("case", CASES)
def test_a_template_may_hold_it(engine: LocalCloud, deploy: Deploy, case: str) -> None:
    """A stack with such resources is created, updated with a change, and deleted."""
    resources, (service, operation, request, expression) = (
        CASES[case]["resources"],
        CASES[case]["seen"],
    )
    for more in ({}, {"More": QUEUE}):
        stack = deploy(**resources, **more)
        filled = {
            name: stack.resources.get(value.removeprefix("$"), value)
            for name, value in request.items()
        }
        assert jmespath.search(expression, getattr(engine.client(service), operation)(**filled))
    engine.delete_stack(stack.name)


def table(kind: str, **properties: Any) -> Any:
    keys = {
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
    }
    return {"Type": f"AWS::DynamoDB::{kind}", "Properties": keys | properties}


@needed("table_resources")
def test_a_global_table_is_in_every_region_of_its_replicas(
    engine: LocalCloud, deploy: Deploy
) -> None:
    """An item of one region is read in the other, and survives the removal of a replica."""
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


@needed("nested_updates")
def test_an_update_of_a_nested_stack_keeps_the_attributes_of_what_it_leaves(
    engine: LocalCloud, name: str, tmp_path: Path
) -> None:
    """`Fn::GetAtt` of an unchanged resource stays the same when its stack changes."""
    group = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": f"/{name}"}}
    queue = {
        "Type": "AWS::SQS::Queue",
        "Properties": {"MessageRetentionPeriod": {"Ref": "Seconds"}},
    }
    inner = {
        "Parameters": {"Seconds": {"Type": "Number"}},
        "Resources": {"Group": group, "Queue": queue},
        "Outputs": {"Arn": {"Value": {"Fn::GetAtt": ["Group", "Arn"]}}},
    }
    (tmp_path / "inner.yaml").write_text(yaml.safe_dump(inner))
    for seconds in (60, 120):
        nested = {"TemplateURL": "inner.yaml", "Parameters": {"Seconds": seconds}}
        outer = {
            "Resources": {"Inner": {"Type": "AWS::CloudFormation::Stack", "Properties": nested}},
            "Outputs": {"Arn": {"Value": {"Fn::GetAtt": ["Inner", "Outputs.Arn"]}}},
        }
        (tmp_path / "outer.yaml").write_text(yaml.safe_dump(outer))
        arn = engine.apply(name, tmp_path / "outer.yaml").outputs["Arn"]
        assert arn == f"arn:aws:logs:us-east-1:000000000000:log-group:/{name}:*"


@needed("generated_names")
def test_a_role_belongs_to_one_region(engine: LocalCloud, name: str) -> None:
    """Stacks of one name in two regions have roles of their own, though roles are global.

    An update keeps them.
    """

    def roles(description: str) -> list[str]:
        document = {"Version": "2012-10-17", "Statement": []}
        properties = {"AssumeRolePolicyDocument": document, "Description": description}
        body = template({"Role": {"Type": "AWS::IAM::Role", "Properties": properties}})
        regions = ("us-east-1", "us-west-2")
        return [engine.apply(name, body, region=region).resources["Role"] for region in regions]

    made = roles("first")
    assert len(set(made)) == 2
    assert roles("second") == made


@needed("http_api")
def test_a_route_of_the_document_reaches_its_function(engine: LocalCloud, deploy: Deploy) -> None:
    """A path and method of the API call their function with the path's parameters.

    Another method does not.
    """
    body = (
        'seen = [event["routeKey"], event["pathParameters"]["ride"]]\n'
        'return {"statusCode": 201, "body": json.dumps(seen)}'
    )
    route = {
        "Type": "HttpApi",
        "Properties": {"ApiId": {"Ref": "Api"}, "Path": "/rides/{ride}", "Method": "put"},
    }
    api = {"Type": "AWS::Serverless::HttpApi", "Properties": {}}
    stack = deploy(Api=api, Function=function(body, Events={"Ride": route}))
    url = f"{engine.endpoint_url}/_aws/execute-api/{stack.resources['Api']}/$default/rides/7"
    put, delete = (
        URLLib3Session().send(AWSRequest(method, url).prepare()) for method in ("PUT", "DELETE")
    )
    assert (put.status_code, put.text) == (201, '["PUT /rides/{ride}", "7"]')
    assert delete.status_code == 404


def test_what_a_resource_lacks_is_said_in_words(deploy: Deploy) -> None:
    """MiniStack's own reason is the bare name of what it did not find."""
    with pytest.raises(EngineError, match="to make an AWS::Backup::BackupPlan: add it"):
        deploy(Plan={"Type": "AWS::Backup::BackupPlan"})


def test_a_loop_is_left_to_cloudformation(engine: LocalCloud, tmp_path: Path) -> None:
    """A template with `Fn::ForEach` is uploaded as it is written."""
    loop = ["Name", ["One"], {"${Name}Queue": {"Type": "AWS::SQS::Queue"}}]
    written = {"Resources": {"Fn::ForEach::Queues": loop, "Queue": QUEUE}}
    path = tmp_path / "template.yaml"
    path.write_text(yaml.safe_dump(written), encoding="utf-8")
    assert engine.packaged(path) == written
