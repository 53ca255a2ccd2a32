"""A client of the deployed API, and of the tables behind it."""

import http.client
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from idempotency import marshalling
from local.local_aws import HOST, LocalAws, Stack

BOOKING: Final = {"customerID": "customer_a", "pickup": "sector_01", "destination": "sector_03", "price": 1250}

OWN: Final = "CarRide"
"""The prefix of the types of the API's events."""

TIMEOUT_S: Final = 60

_COPIES: Final = 5


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
        self.path = f"/_aws/execute-api/{stack.resources['CarRideApi']}/$default"

    @property
    def url(self) -> str:
        """The URL of the API."""
        return f"{self.cloud.endpoint_url}{self.path}"

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
            SigV4Auth(Credentials("test", "test"), "execute-api", self.cloud.region).add_auth(request)
            headers = dict(request.headers.items())
        connection = http.client.HTTPConnection(HOST, self.cloud.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, f"{self.path}{path}", content, headers)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), json.loads(response.read()))
        finally:
            connection.close()

    def insist(self, method: str, path: str, body: object, *, key: str) -> Answer:
        """Send a request under one key until the function answers.

        Ten functions that start at once can take longer than the API waits for them, which it answers with 5xx.
        """
        for _ in range(_COPIES):
            answer = self.send(method, path, body, key=key)
            if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                break
        return answer

    def items(self, output: str) -> list[dict[str, Any]]:
        """Return the items of a table, which an output of the stack names."""
        pages = self.cloud.client("dynamodb").get_paginator("scan").paginate(TableName=self.stack.outputs[output])
        return [marshalling.values(item) for page in pages for item in page["Items"]]

    def outbox(self) -> list[dict[str, Any]]:
        """Return the outbox items that the API wrote; consumers write items too."""
        return [item for item in self.items("OutboxTableName") if item["type"].startswith(OWN)]

    def published(self) -> list[dict[str, Any]]:
        """Return every event of this API, or of a simulation, that the bus accepted."""
        pages = (
            self.cloud.client("logs")
            .get_paginator("filter_log_events")
            .paginate(logGroupName=self.stack.outputs["CarRideEventsLogGroupName"])
        )
        events = [json.loads(event["message"]) for page in pages for event in page["events"]]
        return [event for event in events if event["detail"]["type"].startswith(OWN)]

    def wait(self) -> None:
        """Wait until every event has reached its end."""
        self.cloud.wait_until_quiet(timeout=TIMEOUT_S)
