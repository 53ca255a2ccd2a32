"""The surroundings of both sides: one DynamoDB, one time that the adversity moves, and a wire that fails on demand."""

import itertools
import json
import logging
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import botocore.endpoint
import fakeredis
import pytest
from aws_lambda_powertools.utilities.idempotency import base
from aws_lambda_powertools.utilities.idempotency.persistence import base as persistence
from aws_lambda_powertools.utilities.idempotency.persistence import datarecord, dynamodb, redis
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ReadTimeoutError
from botocore.loaders import create_loader
from botocore.session import Session, get_session
from moto import mock_aws
from moto.core.models import botocore_stubber

from idempotency.clock import epoch_ms
from idempotency.testing import DeadLetterBox, Invocation, ManualClock
from tests.idempotency.differential.process import Process

POWERTOOLS_TABLE: Final = "Powertools"
TABLE: Final = "Idempotency"
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
_CLOCKS_OF_FAKEREDIS: Final = ("fakeredis._socket._base.time", "fakeredis.commands_mixins.server_mixin.time")


class _Raw(BytesIO):
    """A body, as botocore reads it from urllib3."""

    def stream(self, **_: object) -> Generator[bytes]:
        """Yield the body."""
        yield self.read()


def answer(url: str, status: int, body: bytes) -> AWSResponse:
    """Return what botocore reads from the network: ``body`` is JSON."""
    headers = HTTPHeaders()
    headers["content-type"] = "application/x-amz-json-1.0"
    return AWSResponse(url, status, headers, _Raw(body))


class Wire:
    """The way from any botocore client to DynamoDB, below botocore's own retries."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        """The operations that arrived, one for each round trip."""
        self._faults: deque[str | None] = deque()

    @cached_property
    def session(self) -> Session:
        """A botocore session whose clients speak over this wire."""
        session = get_session()
        session.register_component("data_loader", _LOADER)
        emitter = session.get_component("event_emitter")
        emitter.unregister("before-send", botocore_stubber)  # botocore would ask it even if there is an answer already
        emitter.register("before-send.dynamodb", self._send)
        return session

    def refuse(self, code: str, *, times: int) -> None:
        """Have the next requests refused with an error of DynamoDB's."""
        self._faults.extend([code] * times)

    def lose_answer(self) -> None:
        """Have the next request take place, and its answer get lost."""
        self._faults.append(None)

    def repair(self) -> None:
        """Forget the faults that no request has met."""
        self._faults.clear()

    def _send(self, event_name: str, request: Any, **_: object) -> AWSResponse | None:
        self.requests.append(event_name.rpartition(".")[2])
        if not self._faults:
            return botocore_stubber(event_name, request)
        code = self._faults.popleft()
        if code is None:
            botocore_stubber(event_name, request)
            raise ReadTimeoutError(endpoint_url=request.url)
        body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "made by a test"}
        return answer(request.url, _SERVER_ERRORS.get(code, 400), json.dumps(body).encode())


class Redis(fakeredis.FakeRedis):
    """A client of an empty server, which lets something else happen between two commands."""

    def __init__(self) -> None:
        super().__init__(server=fakeredis.FakeServer(), socket_timeout=1, decode_responses=True)
        self._left = 0
        self._happen: Callable[[], object] | None = None

    def before(self, number: int, happen: Callable[[], object]) -> None:
        """Have ``happen`` called before the command with this number; the next one is 1."""
        self._left, self._happen = number, happen

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""
        self._left -= 1
        if self._left == 0 and self._happen is not None:
            self._happen()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call] # redis-py does not type it


class _WallClock(ManualClock):
    """The time of this machine."""

    def __call__(self) -> int:
        return epoch_ms()

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)

    sleep = advance


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
        self.redis = Redis()
        self._numbers = itertools.count(1)

    def now_ms(self) -> int:
        """Return the time by the clock of the machine that runs now."""
        return self.time() + self.ahead_ms

    def invocation(self, timeout_s: float = 30.0) -> Any:
        """Return the context of a new invocation."""
        self.process.deadline_ms = self.time() + int(timeout_s * 1000)
        return Invocation(self.now_ms, request_id=f"request-{next(self._numbers)}", timeout_s=timeout_s)

    @contextmanager
    def endpoint(self, port: int) -> Generator[None]:
        """Let new clients speak to a port of this machine instead. Its sockets are real, and so is time in here."""
        before, self.time = self.time, _WallClock()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", f"http://127.0.0.1:{port}")
            yield
        self.time = before

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
    # Powertools warns of what it does, and logs it; what it does is in the table.
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"), mock_aws():
        patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
        for name, value in ACCOUNT.items():
            patch.setenv(name, value)
        calendar = _calendar(new.now_ms)
        for module in (base, persistence, datarecord, dynamodb, redis):
            patch.setattr(module, "dt", calendar)
        patch.setattr(botocore.endpoint, "time", types.SimpleNamespace(sleep=new.time.sleep))
        for clock in _CLOCKS_OF_FAKEREDIS:
            patch.setattr(clock, types.SimpleNamespace(time=lambda: new.time() / 1000))
        client: Any = new.wire.session.create_client("dynamodb")
        for table, key in ((TABLE, "idempotencyKey"), (POWERTOOLS_TABLE, "id")):
            client.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
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
