"""Through what producers publish."""

from typing import Any, Final

import pytest

from tests.template.stack import Stack, stack

SIGNING: Final = "SigV4aLayer"
STREAM: Final = "arn:aws:dynamodb:us-west-2:123456789012:table/carride-Outbox/stream/2026-11-21T00:00:00.000"
PEER: Final = {"PeerRegion": "us-west-2"}


def simulator(deployed: Stack) -> dict[str, Any]:
    """Return the simulator's properties."""
    return deployed.of_type("AWS::Lambda::Function")["CarRideSimulatorFunction"]


def loads_signing(deployed: Stack) -> bool:
    """Whether the simulator loads the layer that signs for an endpoint, and the stack has it."""
    names = {name.rstrip("0123456789abcdef") for name in deployed.of_type("AWS::Lambda::LayerVersion")}
    loaded = str(simulator(deployed)["Layers"])
    assert (SIGNING in names) is (SIGNING in loaded)
    return SIGNING in loaded


@pytest.mark.parametrize(
    ("chosen", "endpoint_id"),
    [
        ({}, ""),
        ({"Role": "primary", **PEER}, ""),
        (
            {"Role": "primary", **PEER, "GlobalEndpoint": "present"},
            {"Fn::GetAtt": ["CarRideEndpoint", "EndpointId"]},
        ),
        ({"Role": "secondary", **PEER, "OutboxStreamArn": STREAM}, ""),
        (
            {"Role": "secondary", **PEER, "OutboxStreamArn": STREAM, "GlobalEndpointId": "abcde.veo"},
            {"Ref": "GlobalEndpointId"},
        ),
    ],
    ids=["standalone", "primary without", "primary with", "secondary without", "secondary with"],
)
def test_who_publishes_through_an_endpoint_can_sign_for_it(chosen: dict[str, str], endpoint_id: object) -> None:
    """The simulator has the signing layer exactly where it is given an endpoint: elsewhere it would only cost time."""
    deployed = stack(**chosen)
    assert simulator(deployed)["Environment"]["Variables"]["EVENT_ENDPOINT_ID"] == endpoint_id
    pipe = deployed.of_type("AWS::Pipes::Pipe")["OutboxPipe"]["TargetParameters"]["EventBridgeEventBusParameters"]
    assert pipe.get("EndpointId", "") == endpoint_id
    assert loads_signing(deployed) is (endpoint_id != "")
