"""Publishing through a global endpoint, with the built layer for it and a real botocore."""

import json
import os
import subprocess
import sys
from typing import Any, Final

import pytest

from local import artifacts
from local.local_aws import ROOT, LocalAws

pytestmark = pytest.mark.integration

PACKAGE: Final = artifacts.FOLDER / "build/SigV4aLayer/python"
PUBLISH: Final = """
import json, sys
from datetime import UTC, datetime
from io import BytesIO

from botocore.awsrequest import AWSResponse

from carride.clients import events_client, sqs_client
from carride.bus_entry import BusEntry
from carride.publisher import PublishError, Publisher

endpoint_id, queue_url, network = sys.argv[1:]
sent = []


class Body(BytesIO):
    def stream(self, **_):
        yield self.read()


def keep(request, **_):
    sent.append((request.url, {name: str(value) for name, value in request.headers.items()}))
    if network == "none":
        answer = Body(b'{"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}')
        return AWSResponse(request.url, 200, {}, answer)


events = events_client()
events.meta.events.register("before-send.events.PutEvents", keep)
publisher = Publisher(
    events, sqs_client(), "bus", queue_url, endpoint_id=endpoint_id, max_attempts=1
)
entry = BusEntry(source="acr.com.car-ride", detail="{}", time=datetime.now(UTC))
try:
    (receipt,) = publisher.publish([entry], lambda: 30_000)
except PublishError as error:
    (receipt,) = error.receipts
print(json.dumps({"sent": sent, "code": receipt.code}))
"""


def publish(
    cloud: LocalAws, endpoint_id: str, network: str = "loopback", **environment: str
) -> dict[str, Any]:
    """Publish one event in a process of its own, which has the layer.

    Return what was sent, and what became of it.
    """
    queue_url = cloud.client("sqs").create_queue(QueueName="producer-dlq")["QueueUrl"]
    run = subprocess.run(
        [sys.executable, "-c", PUBLISH, endpoint_id, queue_url, network],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{PACKAGE}{os.pathsep}{ROOT / 'layers/carride'}",
            **cloud.environment(),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def test_requests_go_to_the_endpoint_signed_for_every_region(cloud: LocalAws) -> None:
    """By default requests go to the endpoint's own address, signed with SigV4A for all regions."""
    answer = publish(
        cloud,
        "abcde.veo",
        "none",
        AWS_IGNORE_CONFIGURED_ENDPOINT_URLS="true",
        AWS_DEFAULT_REGION="us-east-1",
    )
    ((url, headers),) = answer["sent"]
    assert url == "https://abcde.veo.endpoint.events.amazonaws.com/"
    assert "AWS4-ECDSA-P256-SHA256 Credential=test/" in headers["Authorization"]
    assert "*" in headers["X-Amz-Region-Set"]


def test_an_event_goes_through_an_endpoint(cloud: LocalAws) -> None:
    """The engine, which checks such signatures, takes the event."""
    regions = [cloud.client("events", region=region) for region in ("us-east-1", "us-west-2")]
    check = "arn:aws:route53:::healthcheck/11111111-1111-4111-8111-111111111111"
    regions[0].create_endpoint(
        Name="endpoint",
        EventBuses=[
            {"EventBusArn": each.create_event_bus(Name="bus")["EventBusArn"]} for each in regions
        ],
        ReplicationConfig={"State": "DISABLED"},
        RoutingConfig={
            "FailoverConfig": {
                "Primary": {"HealthCheck": check},
                "Secondary": {"Route": "us-west-2"},
            }
        },
    )
    assert publish(cloud, "endpoint.local")["code"] is None
    cloud.reset()
