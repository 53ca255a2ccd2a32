"""The retry loop of all stores, and how each store classifies errors."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import fakeredis
import pytest
import redis
import valkey
from hypothesis import given
from hypothesis import strategies as st

from carride_idempotency import DynamoDBStore, Update
from carride_idempotency.errors import (
    EffectsRejectedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from carride_idempotency.record import COMPLETED, Record
from carride_idempotency.stores.retries import Retries, Verdict
from carride_idempotency.stores.transport import NoAnswerError, ServiceError
from carride_idempotency.stores.valkey import ValkeyStore
from carride_idempotency.testing import ManualClock

MOST_TRIES = 6
UNANSWERED = Verdict.UNANSWERED
PASSING = Verdict.PASSING
REFUSED = Verdict.REFUSED


class MetError(Exception):
    """What a try meets."""


def drive(meets: list[Verdict | None], left_ms: int | None = None) -> tuple[object, list[int]]:
    """Send a request whose tries meet this and then succeed.

    Return how it ended, and when its tries began.
    """
    clock = ManualClock(0)
    tries_ms = []
    script = iter(meets)

    def request() -> str:
        tries_ms.append(clock())
        for verdict in script:
            raise MetError(verdict)
        return "answer"

    retries = Retries(clock, clock.sleep, jitter=lambda: 1.0)
    try:
        end: object = retries.send(
            "a step", request, lambda error: error.args[0], longest_try_s=1.5, until_ms=left_ms
        )
    except Exception as error:  # noqa: BLE001 - it is the outcome
        end = error
    return end, tries_ms


@given(st.lists(st.sampled_from([*Verdict, None]), max_size=MOST_TRIES + 1))
def test_one_unanswered_try_leaves_the_outcome_unknown(meets: list[Verdict | None]) -> None:
    """A request ends at an answer, a final refusal or the sixth try.

    One unanswered try makes its outcome unknown.
    """
    ends = next(
        (number for number, met in enumerate(meets) if met not in {UNANSWERED, PASSING}), len(meets)
    )
    tried = meets[: min(ends + 1, MOST_TRIES)]
    end, tries_ms = drive(meets)
    if ends == len(meets) < MOST_TRIES:
        assert end == "answer"
        tried.append(None)
    elif tried[-1] in {Verdict.ANSWERED, None}:
        assert isinstance(end, MetError)
    else:
        assert type(end) is (StoreUnavailableError if UNANSWERED in tried else StoreRefusedError)
        assert isinstance(end.__cause__, MetError)
    assert tries_ms == [0, 25, 75, 175, 375, 775][: len(tried)]


@pytest.mark.parametrize("verdict", [UNANSWERED, PASSING])
@pytest.mark.parametrize(
    ("left_ms", "tries"), [(-1, 1), (1_524, 1), (1_525, 2), (1_600, 3), (None, MOST_TRIES)]
)
def test_no_try_but_the_first_begins_that_cannot_end_in_time(
    verdict: Verdict, left_ms: int | None, tries: int
) -> None:
    """No retry begins that could last past ``until_ms``; the first try always begins."""
    _, tries_ms = drive([verdict] * MOST_TRIES, left_ms)
    assert len(tries_ms) == tries


class Script:
    """A transport or script runner that raises these errors in turn, then the last for ever."""

    longest_try_s = 1.5

    def __init__(self, *errors: Exception) -> None:
        self.errors = errors
        self.tries = 0

    def __call__(self, *request: object) -> Mapping[str, Any]:
        self.tries += 1
        raise self.errors[min(self.tries, len(self.errors)) - 1]


type Send = Callable[[Script], object]
DONE = Record("history#k1", COMPLETED, "owner-1", 1, None, None, None, None, None, 0, 0)
CHARGE = Update("Rides", {"id": "order_01"}, "ADD charges :one", values={":one": 1})


def over(script: Script) -> DynamoDBStore:
    return DynamoDBStore("Idempotency", transport=script, sleep=lambda seconds: None)


def write(script: Script) -> object:
    return over(script).update_if_owner(DONE)


def read(script: Script) -> object:
    return over(script).read("k")


def commit(script: Script) -> object:
    return over(script).update_if_owner(DONE, [CHARGE])


def step(script: Script, fake: type[Any] = fakeredis.FakeValkey) -> object:
    client = fake(socket_timeout=1)
    client.evalsha = script
    return ValkeyStore(client, sleep=lambda seconds: None).update_if_owner(DONE)


step_of_redis = partial(step, fake=fakeredis.FakeRedis)


def service(code: str, status: int = 400) -> ServiceError:
    return ServiceError(code, status, "", {})


def cancelled(*reasons: str, message: str = "") -> ServiceError:
    """Make the error of a cancelled transaction of two actions, with these reasons."""
    body = {"CancellationReasons": [{"Code": reason} for reason in reasons]} if reasons else {}
    return ServiceError("TransactionCanceledException", 400, message, body)


LOST: dict[Send, Exception] = {
    step: valkey.TimeoutError("lost"),
    step_of_redis: redis.TimeoutError("lost"),
}
ANY = (write, read, commit)
ENDS: dict[Verdict | None, type[Exception]] = {
    UNANSWERED: StoreUnavailableError,
    PASSING: StoreRefusedError,
    REFUSED: StoreRefusedError,
    None: EffectsRejectedError,
}
CASES: list[tuple[Verdict | None, tuple[Send, ...], list[Exception]]] = [
    (
        UNANSWERED,
        ANY,
        [NoAnswerError("lost"), service("InternalServerError", 500), service("SomethingNew", 503)],
    ),
    (UNANSWERED, (commit,), [service("TransactionInProgressException")]),
    (PASSING, ANY, [service("ThrottlingException"), service("RequestLimitExceeded")]),
    (
        PASSING,
        ANY,
        [
            service("ProvisionedThroughputExceededException"),
            service("TransactionConflictException"),
        ],
    ),
    (
        PASSING,
        (commit,),
        [cancelled("None", "TransactionConflict"), cancelled("ThrottlingError", "None")],
    ),
    (PASSING, (commit,), [cancelled(message="... [None, TransactionConflict]")]),
    (PASSING, (commit,), [cancelled("None", message="... [None, ProvisionedThroughputExceeded]")]),
    (REFUSED, ANY, [service("AccessDeniedException"), service("ResourceNotFoundException")]),
    (REFUSED, ANY, [service("ExpiredTokenException"), service("NoCredentialsError", 0)]),
    (REFUSED, (write, read), [service("ValidationException")]),
    (REFUSED, (commit,), [cancelled("ValidationError", "None")]),
    (REFUSED, (commit,), [cancelled("None", "SomethingNew"), cancelled(message="no reason")]),
    (
        REFUSED,
        (commit,),
        [cancelled("ConditionalCheckFailed"), cancelled(message="[ConditionalCheckFailed, None]")],
    ),
    (
        None,
        (commit,),
        [service("ValidationException"), cancelled("None", "ItemCollectionSizeLimitExceeded")],
    ),
    (None, (commit,), [cancelled("ThrottlingError", "ValidationError")]),
    (UNANSWERED, (step,), [valkey.ConnectionError("reset"), valkey.TimeoutError("timed out")]),
    (
        UNANSWERED,
        (step,),
        [valkey.exceptions.InvalidResponse("!"), valkey.exceptions.ValkeyClusterException("gone")],
    ),
    (
        UNANSWERED,
        (step_of_redis,),
        [redis.ConnectionError("reset"), redis.exceptions.RedisClusterException("gone")],
    ),
    (PASSING, (step,), [valkey.ReadOnlyError("READONLY"), valkey.BusyLoadingError("LOADING")]),
    (
        PASSING,
        (step_of_redis,),
        [redis.ReadOnlyError("READONLY"), redis.exceptions.ClusterDownError("CLUSTERDOWN")],
    ),
    (REFUSED, (step,), [valkey.ResponseError("MISCONF"), valkey.AuthenticationError("NOAUTH")]),
    (
        REFUSED,
        (step,),
        [valkey.exceptions.NoPermissionError("NOPERM"), valkey.exceptions.OutOfMemoryError("OOM")],
    ),
    (
        REFUSED,
        (step_of_redis,),
        [redis.ResponseError("WRONGTYPE"), redis.AuthenticationError("WRONGPASS")],
    ),
]


@pytest.mark.parametrize(
    ("verdict", "send", "error"),
    [
        (verdict, send, error)
        for verdict, sends, errors in CASES
        for send in sends
        for error in errors
    ],
)
def test_only_an_answer_is_definite(verdict: Verdict | None, send: Send, error: Exception) -> None:
    """A refusal is definite, and invalid effects fail, unless an earlier try got no answer."""
    script = Script(error)
    with pytest.raises(ENDS[verdict]) as ended:
        send(script)
    assert str(error) in str(ended.value)
    assert script.tries == (1 if verdict in {REFUSED, None} else MOST_TRIES)
    with pytest.raises(StoreUnavailableError):
        send(Script(LOST.get(send, NoAnswerError("lost")), error))
