"""What a store knows after its last try: the one loop that every backend sends in, and how each reads its errors."""

from collections.abc import Callable, Mapping
from typing import Any

import fakeredis
import pytest
import redis
import valkey
from hypothesis import given
from hypothesis import strategies as st

from idempotency import DynamoDBStore, Update
from idempotency.errors import EffectsRejectedError, StoreRefusedError, StoreUnavailableError
from idempotency.record import COMPLETED, IN_PROGRESS, Record
from idempotency.stores.dynamodb_effects import DynamoDBEffects
from idempotency.stores.retries import Retries, Verdict
from idempotency.stores.transport import NoAnswerError, ServiceError
from idempotency.stores.valkey import ValkeyStore
from idempotency.testing import ManualClock

MOST_TRIES = 6
LONGEST_TRY_S = 1.5
CLAIM = Record("history#k1", IN_PROGRESS, "owner-1", 1, 1_800_000_030_000, None, None, None, None, 0, 0)
DONE = CLAIM._replace(status=COMPLETED, lease_ms=None)
CHARGE = Update("Rides", {"id": "order_01"}, "ADD charges :one", values={":one": 1})


class MetError(Exception):
    """What a try meets."""

    def __init__(self, verdict: Verdict | None) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


class Sender:
    """Sends a request whose tries meet what the test says, and then succeed, at times that it keeps."""

    def __init__(self, meets: list[Verdict | None]) -> None:
        self.clock = ManualClock()
        self.began_ms = self.clock()
        self.tries_ms: list[int] = []
        self._meets = iter(meets)

    def send(self, until_ms: int | None = None) -> str:
        """Send it."""

        def request() -> str:
            self.tries_ms.append(self.clock() - self.began_ms)
            for verdict in self._meets:
                raise MetError(verdict)
            return "answer"

        def judge(error: Exception) -> Verdict | None:
            assert isinstance(error, MetError)
            return error.verdict

        retries = Retries(self.clock, self.clock.sleep, jitter=lambda: 1.0)
        return retries.send("a step", request, judge, longest_try_s=LONGEST_TRY_S, until_ms=until_ms)


@given(st.lists(st.sampled_from([*Verdict, None]), max_size=MOST_TRIES + 1))
def test_one_unanswered_try_leaves_the_outcome_unknown(meets: list[Verdict | None]) -> None:
    """A request ends at its answer, a refusal for good or the sixth try; only what was always refused is definite."""
    goes_on = (Verdict.UNANSWERED, Verdict.PASSING)
    last = next((number for number, verdict in enumerate(meets) if verdict not in goes_on), len(meets))
    tried = meets[: min(last + 1, MOST_TRIES)]
    sender = Sender(meets)
    if last == len(meets) < MOST_TRIES:
        assert sender.send() == "answer"
        tried = [*meets, None]
    elif tried[-1] in {Verdict.ANSWERED, None}:
        with pytest.raises(MetError):
            sender.send()
    else:
        with pytest.raises(StoreUnavailableError if Verdict.UNANSWERED in tried else StoreRefusedError) as ended:
            sender.send()
        assert isinstance(ended.value.__cause__, MetError)
    assert sender.tries_ms == [0, 25, 75, 175, 375, 775][: len(tried)]


@pytest.mark.parametrize("verdict", [Verdict.UNANSWERED, Verdict.PASSING])
@pytest.mark.parametrize(("left_ms", "tries"), [(-1, 1), (1_524, 1), (1_525, 2), (1_600, 3), (None, MOST_TRIES)])
def test_no_try_but_the_first_begins_that_cannot_end_in_time(verdict: Verdict, left_ms: int | None, tries: int) -> None:
    """A further try that could last past ``until_ms`` is not begun; whether to begin at all is the caller's to know."""
    sender = Sender([verdict] * MOST_TRIES)
    with pytest.raises((StoreUnavailableError, StoreRefusedError)):
        sender.send(None if left_ms is None else sender.began_ms + left_ms)
    assert len(sender.tries_ms) == tries


# ── How each backend's errors are read ────────────────────────────────────────────────────────────────────────────────


def service_error(code: str, status: int = 400, reasons: list[str] | None = None, message: str = "") -> ServiceError:
    """An error of DynamoDB's."""
    body = {} if reasons is None else {"CancellationReasons": [{"Code": reason} for reason in reasons]}
    return ServiceError(code, status, message, body)


def cancelled(*reasons: str) -> ServiceError:
    """A cancelled transaction, with a reason for each of its actions."""
    return service_error("TransactionCanceledException", reasons=list(reasons))


def unexplained(message: str, reasons: list[str] | None = None) -> ServiceError:
    """A cancelled transaction without a reason for each of its actions."""
    return service_error("TransactionCanceledException", reasons=reasons, message=message)


class Script:
    """A transport, and a client of Valkey, whose every try meets the next error."""

    longest_try_s = 1.5

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.tries = 0

    def __call__(self, *request: object, **_: object) -> Mapping[str, Any]:
        """Meet the next error, or the last one again."""
        self.tries += 1
        raise self.errors[min(self.tries, len(self.errors)) - 1]


type Send = Callable[[Script], object]


def by_valkey(package: type[Any]) -> Send:
    """A step over a client of this package."""

    def send(script: Script) -> object:
        with package(socket_timeout=1) as client:
            client.evalsha = script
            return ValkeyStore(client, sleep=lambda seconds: None).advance(DONE)

    return send


def store(script: Script) -> DynamoDBStore:
    """A store over the script."""
    return DynamoDBStore("Idempotency", transport=script, sleep=lambda seconds: None)


WRITE: Send = lambda script: store(script).advance(DONE)  # noqa: E731 - a table of ways to send
READ: Send = lambda script: store(script).read("k")  # noqa: E731 - as above
COMMIT: Send = lambda script: store(script).advance(DONE, [CHARGE])  # noqa: E731 - as above
EFFECTS: Send = lambda script: DynamoDBEffects(transport=script, sleep=lambda seconds: None).write([CHARGE] * 2)  # noqa: E731 - as above
VALKEY, REDIS = by_valkey(fakeredis.FakeValkey), by_valkey(fakeredis.FakeRedis)
ALL = (WRITE, READ, COMMIT, EFFECTS)

UNANSWERED: list[tuple[Send, Exception]] = [
    *((send, NoAnswerError("timed out")) for send in ALL),
    *((send, service_error("InternalServerError", 500)) for send in ALL),
    (WRITE, service_error("SomethingNew", 503)),
    (COMMIT, service_error("TransactionInProgressException")),
    (EFFECTS, service_error("TransactionInProgressException")),
    (VALKEY, valkey.ConnectionError("reset by peer")),
    (VALKEY, valkey.TimeoutError("timed out")),
    (VALKEY, valkey.exceptions.InvalidResponse("no protocol")),
    (VALKEY, valkey.exceptions.ValkeyClusterException("no node can be reached")),
    (REDIS, redis.ConnectionError("reset by peer")),
    (REDIS, redis.exceptions.RedisClusterException("no node can be reached")),
]
PASSING: list[tuple[Send, Exception]] = [
    *((send, service_error("ThrottlingException")) for send in ALL),
    *((send, service_error("RequestLimitExceeded")) for send in ALL),
    (READ, service_error("ProvisionedThroughputExceededException")),
    (WRITE, service_error("TransactionConflictException")),
    *((send, cancelled("None", "TransactionConflict")) for send in (COMMIT, EFFECTS)),
    (COMMIT, cancelled("ProvisionedThroughputExceeded", "None")),
    *((send, unexplained("... [None, TransactionConflict]")) for send in (COMMIT, EFFECTS)),
    (COMMIT, unexplained("... [ThrottlingError]", ["ThrottlingError"])),
    (VALKEY, valkey.ReadOnlyError("You can't write against a read only replica.")),
    (VALKEY, valkey.BusyLoadingError("loading the dataset in memory")),
    (VALKEY, valkey.exceptions.TryAgainError("TRYAGAIN")),  # type: ignore[no-untyped-call]  # valkey-py has no type here
    (REDIS, redis.ReadOnlyError("You can't write against a read only replica.")),
]
REFUSED: list[tuple[Send, Exception]] = [
    *((send, service_error("AccessDeniedException")) for send in ALL),
    *((send, service_error("ResourceNotFoundException")) for send in ALL),
    *((send, service_error("ExpiredTokenException")) for send in ALL),
    *((send, service_error("NoCredentialsError", 0)) for send in ALL),
    *((send, service_error("ValidationException")) for send in (WRITE, READ)),
    (COMMIT, cancelled("ValidationError", "None")),
    *((send, cancelled("None", "SomethingNew")) for send in (COMMIT, EFFECTS)),
    *((send, unexplained("no reason")) for send in (COMMIT, EFFECTS)),
    *((send, unexplained("[ConditionalCheckFailed]", ["ConditionalCheckFailed"])) for send in (COMMIT, EFFECTS)),
    (COMMIT, unexplained("[ConditionalCheckFailed, TransactionConflict]")),
    (VALKEY, valkey.AuthenticationError("NOAUTH Authentication required")),
    (VALKEY, valkey.exceptions.NoPermissionError("NOPERM no permissions to run this script")),
    (VALKEY, valkey.exceptions.OutOfMemoryError("OOM command not allowed")),
    (VALKEY, valkey.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")),
    (VALKEY, valkey.ResponseError("MISCONF the server cannot persist on disk")),
    (REDIS, redis.AuthenticationError("WRONGPASS invalid username-password pair")),
    (REDIS, redis.exceptions.OutOfMemoryError("OOM command not allowed")),
]


def is_unanswered(send: Send) -> Exception:
    """What a try without an answer raises there."""
    lost: dict[Send, type[Exception]] = {VALKEY: valkey.TimeoutError, REDIS: redis.TimeoutError}
    return lost.get(send, NoAnswerError)("no answer")


@pytest.mark.parametrize(("send", "error"), UNANSWERED)
def test_what_was_not_answered_is_unknown(send: Send, error: Exception) -> None:
    """A try that may have taken place is made again, and without a later answer its outcome is unknown."""
    script = Script([error])
    with pytest.raises(StoreUnavailableError):
        send(script)
    assert script.tries == MOST_TRIES


@pytest.mark.parametrize(
    ("send", "error", "tries"), [(*case, MOST_TRIES) for case in PASSING] + [(*case, 1) for case in REFUSED]
)
def test_what_was_refused_is_told_with_its_reason(send: Send, error: Exception, tries: int) -> None:
    """Only what may pass is sent again; a refusal is definite, unless an earlier try of the same step got no answer."""
    script = Script([error])
    with pytest.raises(StoreRefusedError) as refused:
        send(script)
    assert str(error) in str(refused.value)
    assert script.tries == tries

    with pytest.raises(StoreUnavailableError):
        send(Script([is_unanswered(send), error]))


@pytest.mark.parametrize("send", [COMMIT, EFFECTS])
@pytest.mark.parametrize(
    "error",
    [
        service_error("ValidationException"),
        cancelled("None", "ItemCollectionSizeLimitExceeded"),
        cancelled("ThrottlingError", "ValidationError"),
    ],
)
def test_invalid_effects_are_rejected_for_good(send: Send, error: Exception) -> None:
    """What DynamoDB finds invalid stays so; after a try without an answer, nothing is said of it."""
    script = Script([error])
    with pytest.raises(EffectsRejectedError):
        send(script)
    assert script.tries == 1
    with pytest.raises(StoreUnavailableError):
        send(Script([NoAnswerError("lost"), error]))
