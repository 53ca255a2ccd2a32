"""A clock, a Lambda context, a dead-letter box, and a transport that fails on demand."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, NamedTuple

from carride_idempotency.dead_letters import DeadLetter
from carride_idempotency.stores.transport import NoAnswerError, ServiceError, Transport

REGION: Final = "eu-west-1"
ACCOUNT: Final = "123456789012"
START_MS: Final = 1_800_000_000_000
"""When a `ManualClock` starts: 2027-01-15T08:00:00Z."""


class Crash(BaseException):
    """The end of a process, as the code that it was running sees it.

    It is not an Exception, so that no handler catches it by accident.
    """


class Inline:
    """A consumer's ``concurrency`` that runs records in their order, and sends no heartbeats."""

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run every task."""
        for task in tasks:
            task()

    def repeat(self, beat: Callable[[], bool], interval_s: float) -> AbstractContextManager[object]:
        """Send no heartbeats."""
        return nullcontext()


class ManualClock:
    """A clock in epoch milliseconds that only the test moves.

    Its `sleep` can be a store's ``sleep``.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Return the current time."""
        return self.now_ms

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self.now_ms += round(seconds * 1000)

    sleep = advance


class CognitoIdentity:
    """The identity in the Lambda context of a call that no Cognito identity made."""

    cognito_identity_id: str | None = None
    cognito_identity_pool_id: str | None = None


class Invocation:
    """A Lambda context with all its attributes. Its deadline approaches as ``clock`` moves."""

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        request_id: str = "request-1",
        timeout_s: float = 30.0,
        function_name: str = "test",
    ) -> None:
        self.aws_request_id = request_id
        self.function_name = function_name
        self.function_version = "$LATEST"
        self.invoked_function_arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{function_name}"
        self.memory_limit_in_mb = "128"  # Lambda's is a string, too
        self.log_group_name = f"/aws/lambda/{function_name}"
        self.log_stream_name = "2027/01/15/[$LATEST]00000000000000000000000000000001"
        self.identity = CognitoIdentity()
        self.client_context: Any = None
        self.tenant_id: str | None = None
        self._clock = clock
        self._deadline_ms = clock() + int(timeout_s * 1000)

    def get_remaining_time_in_millis(self) -> int:
        """Return how much time is left."""
        return max(0, self._deadline_ms - self._clock())

    def w3c(self) -> dict[str, str]:
        """Return the trace context of the invocation: none."""
        return {}

    def log(self, message: object) -> None:
        """Write a message to standard output, as Lambda does to the function's log."""
        sys.stdout.write(str(message))


class DeadLetterBox:
    """Keeps dead letters in a list, or raises ``error`` while it is set."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.error: Exception | None = None

    def send(self, dead_letter: DeadLetter) -> None:
        """Keep a dead letter."""
        if self.error is not None:
            raise self.error
        self.letters.append(dead_letter)


class _Fault(NamedTuple):
    """What happens to a request."""

    happen: Callable[[], object] = lambda: None
    """Is called before the request is sent."""
    arrives: bool = True
    """Whether DynamoDB carries it out, although its sender gets an error."""
    error: Exception | None = None
    """What its sender gets instead of an answer."""


class FaultyTransport:
    """Passes requests on; each queued fault meets one request, in order."""

    def __init__(self, transport: Transport) -> None:
        self.longest_try_s = transport.longest_try_s
        self.requests: list[str] = []
        """The operations of the requests, one for each round trip."""
        self._transport = transport
        self._faults: deque[_Fault] = deque()
        self._lock = threading.Lock()

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request, or apply the next fault."""
        with self._lock:
            self.requests.append(operation)
            fault = self._faults.popleft() if self._faults else _Fault()
        fault.happen()
        if fault.error is None:
            return self._transport(operation, request)
        if fault.arrives:
            with suppress(ServiceError):
                self._transport(operation, request)
        raise fault.error

    def pass_on(self, times: int = 1) -> None:
        """Let this many requests through before the next fault."""
        self._faults.extend([_Fault()] * times)

    def lose_request(self) -> None:
        """Lose the next request."""
        self._faults.append(_Fault(arrives=False, error=NoAnswerError("the request was lost")))

    def lose_answer(self) -> None:
        """Perform the next request, and lose its answer."""
        self._faults.append(_Fault(error=NoAnswerError("the answer was lost")))

    def answer(
        self, code: str, *, status: int = 400, body: Mapping[str, Any] | None = None
    ) -> None:
        """Refuse the next request with an error of DynamoDB."""
        self._faults.append(
            _Fault(arrives=False, error=ServiceError(code, status, "made by a test", body or {}))
        )

    def meanwhile(self, happen: Callable[[], object]) -> None:
        """Call ``happen`` just before the next request takes place."""
        self._faults.append(_Fault(happen))
