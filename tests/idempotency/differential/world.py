"""What both sides share: one DynamoDB, one time that the adversity moves, and a wire that fails on demand."""

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

from idempotency.testing import Crash, DeadLetterBox, Inline, Invocation, ManualClock
from tests.idempotency.samples import create_tables

POWERTOOLS_TABLE: Final = "Powertools"
TABLE: Final = "Idempotency"
POINTS: Final = "Points"
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
_SERVER_ERRORS: Final = {"InternalServerError": 500}


class Wire:
    """The way from any botocore client to DynamoDB, below botocore's own retries."""

    def __init__(self) -> None:
        self.write_units = 0
        """What the writes that arrived cost, of items of at most 1 KB."""
        self._faults: deque[str | None] = deque()

    @cached_property
    def session(self) -> Session:
        """A botocore session whose clients speak over this wire."""
        session = get_session()
        session.register_component("data_loader", _LOADER)
        emitter = session.get_component("event_emitter")
        emitter.unregister("before-send", botocore_stubber)  # botocore would call it even after an answer
        emitter.register("before-send.dynamodb", self._send)
        return session

    def refuse(self, code: str, *, times: int) -> None:
        self._faults.extend([code] * times)

    def lose_answer(self) -> None:
        self._faults.append(None)

    def repair(self) -> None:
        """Forget the faults that no request has met."""
        self._faults.clear()

    def _send(self, event_name: str, request: Any, **_: object) -> AWSResponse | None:
        self.write_units += 2 * len(json.loads(request.body).get("TransactItems", [])) or 1
        if not self._faults:
            return botocore_stubber(event_name, request)
        code = self._faults.popleft()
        if code is None:
            botocore_stubber(event_name, request)
            raise ReadTimeoutError(endpoint_url=request.url)
        body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "made by a test"})
        return AWSResponse(request.url, _SERVER_ERRORS.get(code, 400), HTTPHeaders(), MockRawResponse(body))


class Process(Inline):
    """One process in virtual time, which runs the records of a batch one after another.

    It sends no heartbeats: a lease outlasts the invocations here.
    """

    def __init__(self, time: ManualClock) -> None:
        self.deadline_ms = 0
        self._time = time

    def spend(self, seconds: float) -> None:
        """Let work take time. Lambda kills the process at the invocation's deadline."""
        end_ms = self._time() + round(seconds * 1000)
        self._time.now_ms = min(end_ms, self.deadline_ms)
        if end_ms > self.deadline_ms:
            raise Crash


class World:
    """Everything that one side meets in one adversity."""

    def __init__(self) -> None:
        self.time = ManualClock()
        """The true time, which only the adversity, work and waiting move."""
        self.wire = Wire()
        self.ahead_ms = 0
        """By how much the clock of the machine that runs now is wrong."""
        self.process = Process(self.time)
        self.box = DeadLetterBox()
        """This layer's dead-letter queue."""
        self._numbers = itertools.count(1)

    def now_ms(self) -> int:
        """Return the time by the clock of the machine that runs now."""
        return self.time() + self.ahead_ms

    def invocation(self, timeout_s: float = 30.0) -> Any:
        self.process.deadline_ms = self.time() + int(timeout_s * 1000)
        return Invocation(self.now_ms, request_id=f"request-{next(self._numbers)}", timeout_s=timeout_s)

    @contextmanager
    def clock_ahead(self, by_ms: int) -> Generator[None]:
        """Let what is inside run on a machine whose clock is ahead."""
        before, self.ahead_ms = self.ahead_ms, by_ms
        yield
        self.ahead_ms = before


@contextmanager
def world() -> Generator[World]:
    """Make a world with its own tables, in which Powertools and botocore's pauses follow its time."""
    new = World()
    # Powertools' warnings and logs would hide the table.
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"), mock_aws():
        patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
        for name, value in ACCOUNT.items():
            patch.setenv(name, value)
        calendar = _calendar(new.now_ms)
        for module in (base, persistence, datarecord, dynamodb):
            patch.setattr(module, "dt", calendar)
        patch.setattr(botocore.endpoint, "time", types.SimpleNamespace(sleep=new.time.sleep))
        create_tables(
            new.wire.session.create_client("dynamodb"), {TABLE: "idempotencyKey", POWERTOOLS_TABLE: "id", POINTS: "id"}
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
