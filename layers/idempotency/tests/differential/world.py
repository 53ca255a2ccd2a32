"""What both sides share.

One DynamoDB, one time that the adversity moves, and a wire that fails on demand.
"""

import itertools
import json
import logging
import types
import warnings
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final

import botocore.endpoint
import pytest
from aws_lambda_powertools.utilities.idempotency import base
from aws_lambda_powertools.utilities.idempotency.persistence import base as persistence
from aws_lambda_powertools.utilities.idempotency.persistence import datarecord, dynamodb
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ReadTimeoutError
from botocore.loaders import create_loader
from botocore.session import Session, get_session
from moto import mock_aws
from moto.core.botocore_stubber import MockRawResponse
from moto.core.models import botocore_stubber

from carride_idempotency import testing
from carride_idempotency.testing import Crash, Inline, Invocation, ManualClock
from tests.samples import create_tables

POWERTOOLS_TABLE: Final = "Powertools"
TABLE: Final = "Idempotency"
LOST: Final = "lost"
ACCOUNT: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_LAMBDA_FUNCTION_NAME": "payments",
}
"""The environment of a function in an account that does not exist."""

_LOADER: Final = create_loader()
"""Reads the services' models from disk, once for all worlds."""


class Wire:
    """The way from any botocore client to DynamoDB, below botocore's own retries."""

    def __init__(self) -> None:
        self.faults: deque[str] = deque()
        """What the next requests meet: the code of a refusal, or that the answer is `LOST`."""

    @cached_property
    def session(self) -> Session:
        """A botocore session whose clients speak over this wire."""
        session = get_session()
        session.register_component("data_loader", _LOADER)
        emitter = session.get_component("event_emitter")
        # Botocore would call it even after an answer.
        emitter.unregister("before-send", botocore_stubber)
        emitter.register("before-send.dynamodb", self._send)
        return session

    def _send(self, event_name: str, request: Any, **_: object) -> AWSResponse | None:
        if not self.faults:
            return botocore_stubber(event_name, request)
        code = self.faults.popleft()
        if code == LOST:
            botocore_stubber(event_name, request)
            raise ReadTimeoutError(endpoint_url=request.url)
        status = 500 if code == "InternalServerError" else 400
        body = json.dumps(
            {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "made by a test"}
        )
        return AWSResponse(request.url, status, HTTPHeaders(), MockRawResponse(body))


class Time(ManualClock):
    """The true time, and the clock of the machine that runs now, which is ``ahead_ms`` ahead."""

    ahead_ms = 0

    def __call__(self) -> int:
        return self.now_ms + self.ahead_ms


class Process(Inline):
    """One process in virtual time.

    It sends no heartbeats: a lease outlasts the invocations here.
    """

    def __init__(self, clock: Time) -> None:
        self.deadline_ms = 0
        self._clock = clock

    def spend(self, seconds: float) -> None:
        """Let work take time. Lambda kills the process at the invocation's deadline."""
        end_ms = self._clock.now_ms + round(seconds * 1000)
        self._clock.now_ms = min(end_ms, self.deadline_ms)
        if end_ms > self.deadline_ms:
            raise Crash


class World(testing.World):
    """Everything that one side meets in one adversity."""

    def __init__(self) -> None:
        self.clock: Time
        super().__init__(None, clock=Time())
        self.concurrency = Process(self.clock)
        self.wire = Wire()
        self._numbers = itertools.count(1)

    def invocation(self, timeout_s: float) -> Any:
        self.concurrency.deadline_ms = self.clock.now_ms + int(timeout_s * 1000)
        return Invocation(
            self.clock, request_id=f"request-{next(self._numbers)}", timeout_s=timeout_s
        )


@contextmanager
def inside[W: World](new: W) -> Generator[W]:
    """Give a world its tables, and let Powertools' and botocore's pauses follow its time."""
    # Powertools' warnings and logs would hide the table.
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(action="ignore"),
        mock_aws(),
        new.installed(),
    ):
        patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
        for name, value in ACCOUNT.items():
            patch.setenv(name, value)
        calendar = _calendar(new.clock)
        for module in (base, persistence, datarecord, dynamodb):
            patch.setattr(module, "dt", calendar)
        patch.setattr(botocore.endpoint, "time", types.SimpleNamespace(sleep=new.clock.sleep))
        create_tables(
            new.wire.session.create_client("dynamodb"),
            {TABLE: "idempotencyKey", POWERTOOLS_TABLE: "id"},
        )
        yield new


def _calendar(now_ms: Callable[[], int]) -> types.SimpleNamespace:
    """Return what Powertools' modules import as `datetime`, with another now."""

    class Datetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            moment = datetime.fromtimestamp(now_ms() / 1000, UTC)
            return moment.astimezone(tz) if tz else moment.astimezone().replace(tzinfo=None)

    return types.SimpleNamespace(datetime=Datetime, timedelta=timedelta)
