"""Every way in: after three failures and a mend, an operation runs, or its event is in a letter."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import pytest

from carride_idempotency import (
    ANY_CALLER,
    DYNAMODB_STREAM,
    KAFKA,
    KINESIS,
    SNS,
    SNS_IN_SQS,
    SQS,
    Put,
    Source,
    release,
)
from carride_idempotency.errors import QuarantinedError
from carride_idempotency.record import QUARANTINED
from carride_idempotency.testing import (
    Crash,
    dynamodb_stream_event,
    eventbridge_event,
    http_event,
    kafka_event,
    kinesis_event,
    sns_event,
    sqs_event,
)
from tests.samples import EFFECT, RIDES, World

ORDER: Final = {"id": "k1"}
ATTEMPTS: Final = 3

type Work = Callable[[Any], object]
"""What a run does, given its operation."""


def message(event: Any, key: str, source: Source | None, decorator: str) -> Any:
    """Return how a message of a source comes in, to a plain function or an `async def`."""

    def deliver(world: World, work: Work, *, is_async: bool = False, **given: Any) -> object:
        consumer = world.consumer(key=key, source=source, **given)

        async def work_in_a_loop(_: Any, operation: Any) -> object:
            return work(operation)

        decorate: Any = getattr(consumer, decorator)
        handler = decorate(work_in_a_loop if is_async else lambda _, operation: work(operation))
        return handler(event, world.invocation())

    return deliver


def request(world: World, work: Work, *, is_async: bool = False, **given: Any) -> object:
    decorate = world.consumer(key=None, **given).http_handler(caller=ANY_CALLER)

    async def work_in_a_loop(_: Any, operation: Any) -> object:
        return {"statusCode": 201, "body": work(operation)}

    def plain(_: Any, operation: Any) -> object:
        return {"statusCode": 201, "body": work(operation)}

    event = http_event("POST", "/rides", ORDER, key="k1")
    chosen: Any = work_in_a_loop if is_async else plain
    answer = decorate(chosen)(event, world.invocation())
    if answer["statusCode"] >= 500:
        raise QuarantinedError("history#k1", ATTEMPTS, answer["body"])
    return answer


def function(world: World, work: Work, *, is_async: bool = False, **given: Any) -> object:
    consumer = world.consumer(key=None, **given)
    if is_async:

        @consumer.function(key="order", name="charge")
        async def charge_in_a_loop(order: str, operation: Any = None) -> object:
            return work(operation)

        return asyncio.run(charge_in_a_loop("k1"))

    @consumer.function(key="order", name="charge")
    def charge(order: str, operation: Any = None) -> object:
        return work(operation)

    return charge("k1")


def block(world: World, work: Work, *, is_async: bool = False, **given: Any) -> object:
    consumer = world.consumer(key=None, **given)

    async def in_a_loop() -> object:
        async with consumer.operation("k1", ORDER, name="charge") as block:
            if not block.done:
                block.complete(work(block.operation))
        return block.result

    if is_async:
        return asyncio.run(in_a_loop())
    with consumer.operation("k1", ORDER, name="charge") as block:
        if not block.done:
            block.complete(work(block.operation))
    return block.result


TRANSPORTS: Final[Mapping[str, Any]] = {
    "EventBridge": message(eventbridge_event(ORDER), "detail.id", None, "event_handler"),
    "SNS": message(sns_event(ORDER), "id", SNS, "event_handler"),
    "SQS": message(sqs_event(ORDER), "id", SQS, "batch_handler"),
    "SNS in SQS": message(
        sqs_event(sns_event(ORDER)["Records"][0]["Sns"]), "id", SNS_IN_SQS, "batch_handler"
    ),
    "Kinesis": message(kinesis_event(ORDER), "id", KINESIS, "batch_handler"),
    "DynamoDB": message(
        dynamodb_stream_event(ORDER), "Keys.id.S", DYNAMODB_STREAM, "batch_handler"
    ),
    "Kafka": message(kafka_event(ORDER), "id", KAFKA, "batch_handler"),
}
CALLERS: Final[Mapping[str, Any]] = {"request": request, "function": function, "block": block}
WAYS: Final = {**TRANSPORTS, **CALLERS}


def raises(operation: Any) -> object:
    operation.write(EFFECT)
    raise ArithmeticError("no tariff")


def crashes(operation: Any) -> object:
    raise Crash


def conflicts(operation: Any) -> object:
    operation.write(Put(RIDES, {"id": "order_02"}, condition="attribute_exists(id)"))
    return None


def unfinished(operation: Any) -> object:
    operation.write(EFFECT)
    return (each for each in "ab")


def mended(operation: Any) -> object:
    operation.write(EFFECT)
    return None


FAILURES: Final = [raises, crashes, conflicts, unfinished]


def deliver(way: Any, world: World, work: Work, **given: Any) -> bool:
    """Deliver an operation, long after the delivery before; return whether it was acknowledged."""
    world.clock.advance(120)
    with suppress(Exception, Crash):
        way(world, work, **given)
        return True
    return False


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_after_three_failures_and_a_mend_it_runs_or_is_in_a_letter(
    world: World, way: Any, failure: Work, *, is_async: bool
) -> None:
    """Nobody finds only an error: there is one letter, and a release lets the operation run."""
    for _ in range(ATTEMPTS):
        deliver(way, world, failure, is_async=is_async)
    for _ in range(2):
        deliver(way, world, mended, is_async=is_async)
    if world.effects == 0:
        (letter,) = world.box.letters
        assert letter.key is not None
        found = world.store.read(letter.key)
        assert found is not None
        assert (found.status, found.dead_lettered) == (QUARANTINED, True)
        assert release(world.store, letter.key, clock=world.clock)
        deliver(way, world, mended, is_async=is_async)
    assert world.effects == 1
    assert len(world.box.letters) <= 1


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_without_a_queue_nothing_is_acknowledged_that_has_not_run(
    world: World, way: Any, failure: Work
) -> None:
    """The transport keeps its event, and a caller gets an error, however often it asks."""
    for _ in range(ATTEMPTS):
        assert not deliver(way, world, failure, dead_letters=None)
    for _ in range(2):
        is_acknowledged = deliver(way, world, mended, dead_letters=None)
        assert is_acknowledged == (world.effects == 1)


@pytest.mark.parametrize("way", CALLERS.values(), ids=CALLERS)
def test_a_sender_that_owns_its_key_gets_its_answer_after_the_mend(world: World, way: Any) -> None:
    """With every exception an outage, no failure uses up an attempt: the next copy runs."""
    policy = {"outages": (Exception,)}
    for _ in range(10):
        assert not deliver(way, world, raises, policy=policy)
    assert deliver(way, world, mended, policy=policy)
    assert (world.effects, world.box.letters) == (1, [])
