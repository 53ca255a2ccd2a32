"""The AWS clients of functions. Their timeouts fit inside a function's time; botocore's own of 60 s outlive it.

Those of the publisher make a single attempt a call: it repeats calls itself, since it knows the deadline and which
entries are left.
"""

from typing import TYPE_CHECKING, Final, cast

from botocore.config import Config
from botocore.session import get_session

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient

CONNECT_TIMEOUT_S: Final = 1
READ_TIMEOUT_S: Final = 3
LONGEST_CALL_MS: Final = (CONNECT_TIMEOUT_S + READ_TIMEOUT_S) * 1000

_SINGLE_ATTEMPT: Final = Config(
    connect_timeout=CONNECT_TIMEOUT_S,
    read_timeout=READ_TIMEOUT_S,
    retries={"mode": "standard", "total_max_attempts": 1},
    tcp_keepalive=True,
)


def events_client() -> "EventBridgeClient":
    """Make a client for EventBridge."""
    return cast("EventBridgeClient", get_session().create_client("events", config=_SINGLE_ATTEMPT))


def sqs_client() -> "SQSClient":
    """Make a client for SQS."""
    return cast("SQSClient", get_session().create_client("sqs", config=_SINGLE_ATTEMPT))


def lambda_client() -> "LambdaClient":
    """Make a client for Lambda, which makes up to two attempts a call."""
    config = _SINGLE_ATTEMPT.merge(Config(retries={"mode": "standard", "total_max_attempts": 2}))
    return cast("LambdaClient", get_session().create_client("lambda", config=config))


def dynamodb_client(session: "Session | None" = None, *, connect_s: float = 1, read_s: float = 2) -> "DynamoDBClient":
    """Make a client for DynamoDB, which makes up to three attempts a call, and is for many threads.

    Args:
        session: the session to use; a second client of one session costs a tenth of the first one's start.
        connect_s: after how many seconds an attempt to connect is given up.
        read_s: after how many seconds an attempt without an answer is given up.
    """
    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=20,
        tcp_keepalive=True,
    )
    return cast("DynamoDBClient", (session or get_session()).create_client("dynamodb", config=config))
