from local.local_aws import LocalAws
from tests.engine.support import function, needed, template


@needed("serverless_transform")
def test_a_release_publishes_a_version(engine: LocalAws, name: str) -> None:
    """The SAM transform sees the deployment's parameters: the alias stays where it is until the release changes."""
    client = engine.client("lambda")
    for release, description, version in (("01", "", "1"), ("01", "changed", "1"), ("02", "changed", "2")):
        alias = {"AutoPublishAlias": "live", "AutoPublishCodeSha256": {"Ref": "Release"}}
        body = template({"Function": function("return 1", Description=description, **alias)})
        parameter = {"Release": {"Type": "String", "Default": ""}}
        stack = engine.deploy_fast(name, body | {"Parameters": parameter}, Release=release)
        live = client.get_alias(FunctionName=stack.resources["Function"], Name="live")
        assert live["FunctionVersion"] == version
