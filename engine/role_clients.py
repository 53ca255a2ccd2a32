"""Calls that a service makes with a role, so that a missing permission is refused."""

import functools
import json
import logging
from datetime import UTC, datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from ministack.core import lambda_runtime
from ministack.services import sqs

from engine.process import HOST
from engine.scope import Scope
from engine.settings import Settings

_logger = logging.getLogger("engine")


def client(
    settings: Settings, service: str, *, role: str, user: str, region: str | None = None
) -> Any:
    """Return a boto3 client of this engine that acts with a role.

    Args:
        settings: the engine's.
        service: boto3's name of the service.
        role: the role's ARN.
        user: the name of the function or pipe.
        region: where the service is. Default: the region of the current request.
    """
    account, here = Scope.current()
    # MiniStack makes sessions for functions only. It looks at the ARN and the role, not at the
    # function.
    arn = f"arn:aws:lambda:{region or here}:{account}:function:{user}"
    credentials = lambda_runtime.execution_credentials(
        {"FunctionArn": arn, "FunctionName": user, "Role": role}
    )
    return _client(f"http://{HOST}:{settings.port}", service, region or here, **credentials)


def dead_letter(
    settings: Settings, queue: str | None, record: dict[str, Any], *, role: str, user: str
) -> None:
    """Send a record of what was given up to the queue with this ARN.

    Log it if there is none, or it may not.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = json.dumps({"version": "1.0", "timestamp": now, **record})
    if not queue:
        _logger.warning("%s has no queue for failures; this is dropped: %s", user, body)
        return
    try:
        url = sqs._queue_url(queue.rsplit(":", 1)[-1])
        client(settings, "sqs", role=role, user=user).send_message(QueueUrl=url, MessageBody=body)
    except (BotoCoreError, ClientError):
        _logger.exception("%s could not send to %s: %s", user, queue, body)


@functools.cache
def _client(endpoint: str, service: str, region: str, **credentials: str) -> Any:
    session: Any = boto3.session.Session()  # typed for literal names only
    return session.client(
        service,
        region_name=region,
        endpoint_url=endpoint,
        **{name.lower(): value for name, value in credentials.items()},
        config=Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3}),
    )
