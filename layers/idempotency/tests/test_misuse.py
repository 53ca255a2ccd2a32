"""Mistakes that are easy to make: each is refused where it is made, with what to do."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import MagicMock, Mock

import pytest

from carride_idempotency import (
    ANY_CALLER,
    CANNOT_TELL,
    EVENTBRIDGE,
    KAFKA,
    SNS,
    SQS,
    TRANSPORT_ID,
    AsyncOperation,
    ConfigurationError,
    Consumer,
    DynamoDBStore,
    MissingKeyError,
    Operation,
    Policy,
    Put,
    SqsDeadLetters,
    ValkeyStore,
    emf,
    forget,
    logged,
    open_store,
    release,
    settle,
)
from carride_idempotency.errors import UnfinishedWorkError
from carride_idempotency.record import FAILED
from carride_idempotency.testing import World as Tables
from carride_idempotency.testing import (
    crash_everywhere,
    eventbridge_event,
    lambda_context,
    sqs_event,
)
from tests.samples import World, event

KINESIS_BATCH: Final = {
    "Records": [{"eventSource": "aws:kinesis", "eventID": "1", "kinesis": {"data": "e30="}}]
}
CONSOLE_TEST_EVENT: Final = {"key1": "value1"}


def settings(**given: Any) -> Callable[[World], object]:
    """Build a consumer with these settings."""
    return lambda world: world.consumer(**given)


def stored_in(store: Any) -> Callable[[World], object]:
    """Build a consumer over something that is not a store."""
    return lambda _: Consumer("history", store)


def single(message: Any, context: Any = None, **given: Any) -> Callable[[World], object]:
    """Deliver a single event to a consumer with these settings."""

    def deliver(world: World) -> object:
        handler = world.consumer(**given).event_handler(world.work)
        return handler(message, lambda_context() if context is None else context)

    return deliver


def batch(message: Any, context: Any = None, **given: Any) -> Callable[[World], object]:
    """Deliver a batch to a consumer with these settings."""

    def deliver(world: World) -> object:
        handler = world.consumer(**given).batch_handler(world.work)
        return handler(message, lambda_context() if context is None else context)

    return deliver


def request(message: Any) -> Callable[[World], object]:
    """Deliver an event to a handler of requests."""

    def deliver(world: World) -> object:
        handler = world.consumer(key=None).http_handler(caller=ANY_CALLER)(answer)
        return handler(message, lambda_context())

    return deliver


def answer(_: Any, __: Any) -> object:
    return {"statusCode": 200}


def handler_of(world: World) -> Callable[[Any], Any]:
    return lambda _: world.consumer().event_handler(world.work)


def bare_function(world: World) -> object:
    def charge(order_id: str) -> None: ...

    decorate: Any = world.consumer().function
    return decorate(charge)


def function_without_a_key(world: World) -> object:
    decorate: Any = world.consumer().function
    return decorate()


def operation_without_a_default(world: World) -> object:
    @world.consumer().function(key="order_id")
    def charge(order_id: str, operation: Any) -> None: ...

    return charge


def function_without_the_argument(world: World) -> object:
    @world.consumer().function(key="order")
    def charge(order_id: str) -> None: ...

    return charge


def function_of_two_keys(key: Any) -> Callable[[World], object]:
    def decorate(world: World) -> object:
        @world.consumer().function(key=key)
        def charge(card: str, order_id: str) -> None: ...

        return charge

    return decorate


def handler_of_one_argument(world: World) -> object:
    work: Any = lambda message: None  # noqa: E731
    return world.consumer().event_handler(work)


def request_handler_of_one_argument(world: World) -> object:
    work: Any = lambda message: None  # noqa: E731
    return world.consumer(key=None).http_handler(caller="headers.from")(work)


def handler_with_lambdas_context(decorator: str) -> Callable[[World], object]:
    def work(message: Any, context: Any) -> None: ...

    async def work_in_a_loop(message: Any, context: Any) -> None: ...

    def decorate(world: World) -> object:
        chosen: Any = work_in_a_loop if decorator == "event_handler" else work
        decorator_of: Any = getattr(world.consumer(), decorator)
        given = {"caller": ANY_CALLER} if decorator == "http_handler" else {}
        return decorator_of(**given)(chosen) if given else decorator_of(chosen)

    return decorate


def block_as_decorator(world: World) -> object:
    decorate: Any = world.consumer().operation("k1")
    return decorate(lambda: None)


def mocked_remaining_time() -> MagicMock:
    context = MagicMock()
    context.get_remaining_time_in_millis.return_value = 30_000
    return context


MISTAKES: Final[dict[str, tuple[Callable[[World], object], str]]] = {
    "store is a text": (stored_in("Records"), r"store= is a str: open one: .*open_store"),
    "store is None": (stored_in(None), r"store= is None: open one"),
    "store is a class": (stored_in(DynamoDBStore), r"store= is the class DynamoDBStore"),
    "dead letters are a text": (
        settings(dead_letters="https://queue"),
        r"dead_letters= is a str: write dead_letters=SqsDeadLetters",
    ),
    "dead letters are a function": (settings(dead_letters=print), r"SqsDeadLetters"),
    "policy is a dictionary": (
        lambda world: Consumer("history", world.store, policy={"window": 1}),  # type: ignore[arg-type]
        r"policy= is a dict: write policy=Policy",
    ),
    "source is a text": (settings(source="sqs"), r"source= is a str: import SQS"),
    "observer is a text": (settings(observe="logger"), r"observe= is a str: pass a function"),
    "one of several observers is None": (settings(observe=[print, None]), r"observe= is .*None"),
    "name is None": (settings(name=None), r"name is a string, not None"),
    "key is a number": (settings(key=5), r"key= is a JMESPath expression or a function"),
    "queue's address is unset": (lambda _: SqsDeadLetters(None), r"URL of a queue, not None"),  # type: ignore[arg-type]
    "queue's name": (lambda _: SqsDeadLetters("letters"), r"URL of a queue, not 'letters'"),
    "table is unset": (lambda _: DynamoDBStore(None), r"not None: set the environment variable"),  # type: ignore[arg-type]
    "store's address is unset": (lambda _: open_store(None), r"not None: set the environment"),  # type: ignore[arg-type]
    "window is a text": (lambda _: Policy(window="7 days"), r"or a timedelta, not '7 days'"),  # type: ignore[arg-type]
    "window of no whole second": (
        lambda _: Policy(window=timedelta(seconds=1.5)),
        r"window must be a whole number of seconds",
    ),
    "limit is a text": (lambda _: Policy(lease="3"), r"must be a number, not '3'"),  # type: ignore[arg-type]
    "limit is a fraction": (
        lambda _: Policy(max_attempts=2.5),  # type: ignore[arg-type]
        r"max_attempts must be a whole number, not 2\.5",
    ),
    "choice is misspelt": (
        lambda _: Policy(on_crash="quarantined"),  # type: ignore[arg-type]
        r"'retry' or 'quarantine', not 'quarantined'",
    ),
    "backoff is a number": (lambda _: Policy(backoff=3), r"backoff must be a function .*not 3"),  # type: ignore[arg-type]
    "outage is a class": (
        lambda _: Policy(outages=ConnectionError),  # type: ignore[arg-type]
        r"tuple of exceptions, such as \(ConnectionError,\)",
    ),
    "outage is a name": (
        lambda _: Policy(outages=("ConnectionError",)),  # type: ignore[arg-type]
        r"tuple of exceptions, such as \(ConnectionError,\)",
    ),
    "metrics without a namespace": (settings(observe=emf), r"emf\(namespace\), logged\(logger\)"),
    "log without a logger": (settings(observe=[logged]), r"emf\(namespace\), logged\(logger\)"),
    "namespace is empty": (lambda _: emf(""), r"write emf\('Billing'\), not emf\(''\)"),
    "logger is a name": (lambda _: logged("shop"), r"logged\(logging\.getLogger\('billing'\)\)"),  # type: ignore[arg-type]
    "transport is a client": (
        lambda _: DynamoDBStore("Records", transport=SimpleNamespace()),
        r"transport= is a SimpleNamespace: write transport=botocore_transport",
    ),
    "client of Valkey is an address": (
        lambda _: ValkeyStore("valkey://localhost"),
        r"takes a client, not a str: .*open_store\(\"valkey://<host>\"\)",
    ),
    "released store is an address": (
        lambda _: release("dynamodb:Records", "history#1"),  # type: ignore[arg-type]
        r"write release\(open_store",
    ),
    "forgotten key stands first": (
        lambda world: forget("history#1", world.store),  # type: ignore[arg-type]
        r"the first argument is a store",
    ),
    "call is settled with a text": (
        lambda world: settle(world.store, "history#1", "charge", "done"),  # type: ignore[arg-type]
        r"Done\(result\) or NOT_DONE, not 'done'",
    ),
    "call is settled with a doubt": (
        lambda world: settle(world.store, "history#1", "charge", CANNOT_TELL),
        r"Done\(result\) or NOT_DONE",
    ),
    "methods are one text": (
        lambda world: world.consumer(key=None).http_handler(caller="id", methods="POST")(answer),
        r"write methods=\['POST'\]",
    ),
    "queue's event for a request handler": (
        request(sqs_event({"id": "1"})),
        r"fields \['Records'\]\. Do this: decorate it with @consumer\.batch_handler",
    ),
    "console's event for a request handler": (request(CONSOLE_TEST_EVENT), r"http_event builds"),
    "key of a test's table is a text": (
        lambda _: Tables({"Invoices": "id"}),
        r"write \{'Invoices': \['id'\]\}",
    ),
    "test's world is not a function": (
        lambda world: crash_everywhere(handler_of(world), event(), world=Tables()),  # type: ignore[arg-type]
        r"write world=lambda: World\(\.\.\.\)",
    ),
    "test builds no handler": (
        lambda _: crash_everywhere(lambda world: None, event(), world=Tables),  # type: ignore[arg-type]
        r"build\(world\) returns the handler, but it returned None",
    ),
    "function without parentheses": (
        bare_function,
        r'key of charge: write @consumer\.function\(key="<argument>"\)',
    ),
    "function without a key": (function_without_a_key, r"write @consumer\.function\(key="),
    "function without the argument": (
        function_without_the_argument,
        r"name arguments, but charge has no argument 'order': it has \['order_id'\]",
    ),
    "function of two key arguments": (
        function_of_two_keys(("card", "order_id")),
        r"key= names one argument, not .*let one argument be a tuple",
    ),
    "function of two key arguments in a text": (
        function_of_two_keys("card, order_id"),
        r"key= names one argument, not .*let one argument be a tuple",
    ),
    "operation without a default": (
        operation_without_a_default,
        r"operation of charge a default: .*operation: Operation \| None = None",
    ),
    "handler of one argument": (handler_of_one_argument, r"\(event, operation\)"),
    "request handler of one argument": (
        request_handler_of_one_argument,
        r"@http_handler calls .* with two arguments",
    ),
    "handler with Lambda's context": (
        handler_with_lambdas_context("event_handler"),
        r"work_in_a_loop\(event, operation\), and operation\.context where",
    ),
    "batch handler with Lambda's context": (
        handler_with_lambdas_context("batch_handler"),
        r"@batch_handler calls work with an event and an operation",
    ),
    "request handler with Lambda's context": (
        handler_with_lambdas_context("http_handler"),
        r"@http_handler calls work with an event and an operation",
    ),
    "block as a decorator": (block_as_decorator, r"decorate with @consumer\.function"),
    "Kinesis without its source": (
        batch(KINESIS_BATCH),
        r"event of aws:kinesis.*@consumer\.batch_handler of a consumer with source=KINESIS",
    ),
    "Kinesis for a handler of single events": (single(KINESIS_BATCH), r"source=KINESIS"),
    "batch without records": (
        batch(CONSOLE_TEST_EVENT),
        r"takes events of aws:sqs, and this one has the fields \['key1'\].*testing builds",
    ),
    "batch is a list": (batch([1]), r"takes events of aws:sqs, and this one has a list"),
    "batch of Kafka without records": (batch(CONSOLE_TEST_EVENT, source=KAFKA), r"'records'"),
    "topic without records": (single(CONSOLE_TEST_EVENT, source=SNS), r"events of aws:sns"),
    "event without an id": (single(CONSOLE_TEST_EVENT, key=TRANSPORT_ID), r"KeyError: 'id'"),
    "single event for a batch handler": (
        batch(event(), source=EVENTBRIDGE),
        r"Do this: decorate it with @consumer\.event_handler",
    ),
    "batch for a handler of single events": (
        single(sqs_event({"id": "1"}), source=SQS),
        r"Do this: decorate it with @consumer\.batch_handler",
    ),
    "context is a MagicMock": (
        single(event(), MagicMock()),
        r"its get_remaining_time_in_millis is a MagicMock. A test passes .*lambda_context\(\)",
    ),
    "context is a Mock": (single(event(), Mock()), r"get_remaining_time_in_millis is a Mock"),
    "context with a mocked request id": (
        single(event(), mocked_remaining_time()),
        r"its aws_request_id is a MagicMock",
    ),
    "context of a batch is a MagicMock": (
        batch(sqs_event({"id": "1"}), MagicMock()),
        r"get_remaining_time_in_millis is a MagicMock",
    ),
    "context is a dictionary": (single(event(), {}), r"it has no get_remaining_time_in_millis"),
    "context without a request id": (
        single(event(), SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000)),
        r"it has no aws_request_id",
    ),
}


@pytest.mark.parametrize(("make", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_with_what_to_do(
    world: World, make: Callable[[World], object], says: str
) -> None:
    """The error is a ConfigurationError, and nothing has run."""
    with pytest.raises(ConfigurationError, match=says):
        make(world)
    assert not world.work.runs
    assert not world.box.letters


def test_a_block_that_was_not_entered_says_so(world: World) -> None:
    """The attributes of a block are those of `with`."""
    block: Any = world.consumer().operation("k1")
    with pytest.raises(
        AttributeError, match=r"write `with consumer\.operation\(\.\.\.\) as block:`"
    ):
        block.complete(1)
    with block:
        pass
    with pytest.raises(RuntimeError, match="is entered once"), block:
        pass


def test_a_window_may_be_a_timedelta(world: World) -> None:
    """It is the same window as that number of seconds."""
    days = Policy(window=timedelta(days=7))
    assert days.window_s == Policy(window=7 * 86_400).window_s == 604_800
    handler = world.consumer(policy={"window": timedelta(days=7)}).event_handler(world.work)
    handler(eventbridge_event({"idempotencyid": "k1"}), lambda_context())
    record = world.store.read("history#k1")
    assert record is not None
    assert record.expiry == world.clock() // 1000 + 604_800


@pytest.mark.parametrize(
    "given",
    [
        ("charge", "call"),
        (lambda key: key, "charge"),
        ("charge", lambda: "paid"),
        ("charge", lambda key, amount: amount),
        ("charge", lambda key: key, "probe"),
    ],
    ids=["no function", "in the wrong order", "no argument", "two arguments", "no probe"],
)
def test_an_external_call_that_cannot_be_made_leaves_no_doubt(world: World, given: Any) -> None:
    """No intent is written, so the next attempt makes it without an operator."""
    consumer = world.consumer()

    @consumer.event_handler
    def wrong(_: Any, operation: Operation) -> None:
        operation.external(*given)

    @consumer.event_handler
    def right(_: Any, operation: Operation) -> None:
        operation.external("charge", lambda key: key)

    with pytest.raises(ConfigurationError, match="Nothing was called"):
        wrong(event(), lambda_context())
    assert right(event(), lambda_context())["outcome"] == "Retried"


def test_an_external_call_that_is_not_awaited_fails_its_run(world: World) -> None:
    """It was not made, so the work is not done."""

    @world.consumer().event_handler
    async def handler(_: Any, operation: AsyncOperation) -> None:
        operation.external("charge", charge).close()

    async def charge(key: str) -> str:
        return key

    with pytest.raises(UnfinishedWorkError, match=r"charge\. Write `await operation\.external"):
        handler(event(), lambda_context())
    record = world.store.read("history#k1")
    assert record is not None
    assert record.status == FAILED


def test_a_plain_call_of_an_async_operation_has_been_made(world: World) -> None:
    """Its answer is the result: an error would leave a call of unknown outcome."""
    charges: list[str] = []

    def charge(key: str) -> str:
        charges.append(key)
        return "paid"

    @world.consumer().event_handler
    async def handler(_: Any, operation: AsyncOperation) -> None:
        plain: Any = charge
        assert await operation.external("charge", plain) == "paid"

    assert handler(event(), lambda_context())["outcome"] == "New"
    assert len(charges) == 1


@pytest.mark.parametrize("atomic", [False, True])
def test_what_comes_after_the_end_of_a_run_is_refused(world: World, *, atomic: bool) -> None:
    """The effect would be lost without a word, and so would the record of the call."""
    kept: list[Operation] = []

    @world.consumer(policy={"atomic": atomic}).event_handler
    def handler(_: Any, operation: Operation) -> None:
        kept.append(operation)

    handler(event(), lambda_context())
    with pytest.raises(UnfinishedWorkError, match="call write before the handler returns"):
        kept[0].write(Put("Invoices", {"id": "1"}))
    with pytest.raises(UnfinishedWorkError, match="make external calls before"):
        kept[0].external("charge", lambda key: pytest.fail("it is called"))


@pytest.mark.parametrize("effects", [Put("Invoices", {"id": "1"}), [Put("Invoices", {"id": "1"})]])
def test_effects_that_are_returned_and_not_registered_fail_the_run(
    world: World, effects: Any
) -> None:
    """A handler's result is not read, so they would be lost."""
    handler = world.consumer().event_handler(lambda _, __: effects)
    with pytest.raises(UnfinishedWorkError, match=r"returned a Put.*operation\.write"):
        handler(event(), lambda_context())


def test_work_of_a_block_that_was_done_is_refused(world: World) -> None:
    """It has forgotten to ask, so a duplicate would take effect again."""
    with world.consumer().operation("k1") as block:
        block.complete("first")
    with (
        pytest.raises(RuntimeError, match=r"write `if not block\.done:`"),
        world.consumer().operation("k1") as block,
    ):
        block.complete("second")


def test_a_call_without_its_key_names_the_argument(world: World) -> None:
    """A function has no event in which the key was looked for."""

    @world.consumer().function(key="order_id")
    def confirm(order_id: Any) -> None: ...

    with pytest.raises(MissingKeyError, match=r"is missing.*the argument order_id of confirm"):
        confirm(None)
    with pytest.raises(MissingKeyError, match=r"a float is not .*give a string, a whole number"):
        confirm(1.5)
