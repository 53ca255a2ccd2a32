"""Calls of a service with a role: signed with the role's session, so that a missing permission is refused."""

import functools
from typing import Any

import boto3
from botocore.config import Config
from ministack.core import lambda_runtime

from local.engine.process import HOST
from local.engine.scope import Scope
from local.engine.settings import Settings


def client(settings: Settings, service: str, *, role: str, user: str, region: str | None = None) -> Any:
    """Return a boto3 client of this engine that acts with a role.

    Args:
        settings: Where the engine listens.
        service: As boto3 names it.
        role: ARN of the role.
        user: Name of the function or pipe that uses the role; it names the session.
        region: Region of the service; left out, the current one.
    """
    account, here = Scope.current()
    # MiniStack makes sessions for functions only. It looks at the ARN and the role, not at the function.
    arn = f"arn:aws:lambda:{region or here}:{account}:function:{user}"
    credentials = lambda_runtime.execution_credentials({"FunctionArn": arn, "FunctionName": user, "Role": role})
    return _client(f"http://{HOST}:{settings.port}", service, region or here, **credentials)


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
