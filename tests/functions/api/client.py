"""A client of the deployed API, and of the tables behind it."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from carride_idempotency import marshalling
from local.local_aws import LocalAws, Stack

BOOKING: Final = {
    "customerID": "customer_a",
    "pickup": "sector_01",
    "destination": "sector_03",
    "price": 1250,
}

TIMEOUT_S: Final = 60


class Answer(NamedTuple):
    """An answer of the API."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Api:
    """The API of one stack."""

    def __init__(self, cloud: LocalAws, stack: Stack) -> None:
        self.cloud = cloud
        self.stack = stack
        self.url = f"{cloud.endpoint_url}/_aws/execute-api/{stack.resources['CarRideApi']}/$default"

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        sign: bool = False,
    ) -> Answer:
        """Send a request; a body is sent as JSON."""
        content = None if body is None else json.dumps(body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        if sign:
            request = AWSRequest(method, f"{self.url}{path}", headers=headers, data=content)
            SigV4Auth(Credentials("test", "test"), "execute-api", self.cloud.region).add_auth(
                request
            )
            headers = dict(request.headers.items())
        answer = urllib3.request(
            method,
            f"{self.url}{path}",
            body=content,
            headers=headers,
            timeout=TIMEOUT_S,
            retries=False,
        )
        return Answer(answer.status, dict(answer.headers), answer.json())

    def items(self, output: str) -> list[dict[str, Any]]:
        """Return the items of a table, which an output of the stack names."""
        pages = (
            self.cloud.client("dynamodb")
            .get_paginator("scan")
            .paginate(TableName=self.stack.outputs[output])
        )
        return [marshalling.values(item) for page in pages for item in page["Items"]]
