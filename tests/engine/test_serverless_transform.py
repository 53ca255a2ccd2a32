"""What the SAM transform makes of a template can depend on the deployment's parameters."""

from typing import Any, Final

from local.local_aws import LocalAws
from tests.engine.support import function, needed, template

PARAMETERS: Final = {
    "Release": {"Type": "String", "Default": ""},
    "Strategy": {"Type": "String", "Default": "AllAtOnce"},
}
MAPPINGS: Final = {"Strategies": {"AllAtOnce": {"Gradual": False}, "Canary10Percent5Minutes": {"Gradual": True}}}


def released(**properties: Any) -> dict[str, Any]:
    """A template of a function that is published when its release changes, and gradually if the strategy says so."""
    alias = {
        "AutoPublishAlias": "live",
        "AutoPublishCodeSha256": {"Ref": "Release"},
        "DeploymentPreference": {
            "Enabled": {"Fn::FindInMap": ["Strategies", {"Ref": "Strategy"}, "Gradual"]},
            "Type": {"Ref": "Strategy"},
        },
    }
    return template({"Function": function("return 1", **alias, **properties)}) | {
        "Parameters": PARAMETERS,
        "Mappings": MAPPINGS,
    }


def live(cloud: LocalAws, name: str) -> str:
    """Return the version that the alias points to."""
    client = cloud.client("lambda")
    return str(client.get_alias(FunctionName=cloud.stack(name).resources["Function"], Name="live")["FunctionVersion"])


@needed("serverless_transform")
def test_a_release_publishes_a_version(engine: LocalAws, name: str) -> None:
    """The alias stays where it is until the release changes."""
    engine.deploy_fast(name, released(), Release="0000000001")
    engine.deploy_fast(name, released(Description="changed"), Release="0000000001")
    assert live(engine, name) == "1"
    engine.deploy_fast(name, released(Description="changed"), Release="0000000002")
    assert live(engine, name) == "2"


def test_a_strategy_adds_what_codedeploy_needs(engine: LocalAws, name: str) -> None:
    """Resources that SAM adds for a value are those of that value, not of the default."""
    assert "FunctionDeploymentGroup" not in engine.deploy_fast(name, released()).resources
    stack = engine.deploy_fast(name, released(), Strategy="Canary10Percent5Minutes")
    assert {"ServerlessDeploymentApplication", "FunctionDeploymentGroup"} <= set(stack.resources)
