"""`crash_everywhere` passes right handlers on every store and source, and blames others."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final
from uuid import uuid4

import boto3
import pytest
from moto import mock_aws

from carride_idempotency import (
    ConfigurationError,
    Consumer,
    MemoryStore,
    Operation,
    Policy,
    Update,
    lambda_deadline,
)
from carride_idempotency.errors import OutOfTimeError
from carride_idempotency.http import idempotency_key
from carride_idempotency.sources import DYNAMODB_STREAM
from carride_idempotency.testing import (
    NO_KEY,
    BrokenPromiseError,
    CrashEverywhere,
    World,
    dynamodb_stream_event,
    eventbridge_event,
    http_event,
    lambda_context,
    sqs_event,
)
from carride_idempotency.testing.worlds import CRASH_BEFORE, Fault
from tests.samples import create_tables

DETAIL: Final = {"idempotencyid": "k1", "data": {"orderID": "order_01"}}
EVENT: Final = eventbridge_event(DETAIL)
SOURCES: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "events": (EVENT, {}),
    "events that must not run again": (EVENT, {"policy": Policy(on_crash="quarantine")}),
    "queue": (
        sqs_event(DETAIL, DETAIL | {"idempotencyid": "k2"}),
        {"decorate": "batch_handler", "key": "idempotencyid"},
    ),
    "stream": (
        dynamodb_stream_event({"id": "k1"}, {"id": "k2"}),
        {"decorate": "batch_handler", "key": "NewImage.id.S", "source": DYNAMODB_STREAM},
    ),
    "requests": (
        http_event("POST", "/points", {"customer": "c1"}),
        {"decorate": "http_handler", "key": idempotency_key},
    ),
}
WORLDS: Final[dict[str, Callable[[], World]]] = {
    "dynamodb": lambda: World({"Points": ["id"]}),
    "memory": lambda: World(store=MemoryStore(apply=lambda effects: None)),
}
points = WORLDS["dynamodb"]

type Crash = CrashEverywhere


def right(world: World, operation: Operation) -> None:
    """Call another system under the operation's key, and register a write."""
    world.external("charge", lambda key: None, key=str)(operation.downstream_key)
    operation.write(Update("Points", {"id": "c1"}, "ADD n :one", values={":one": 1}))


def build(
    world: World, *, work: Any = right, decorate: str = "event_handler", **settings: Any
) -> Any:
    defaults: dict[str, Any] = {"key": "detail.idempotencyid", "dead_letters": world.dead_letters}
    consumer: Consumer[Any] = Consumer("points", world.store, **(defaults | settings))
    return getattr(consumer, decorate)(lambda event, operation: work(world, operation))


@pytest.mark.proof
@pytest.mark.parametrize("policy", [{}, {"atomic": True}], ids=str)
@pytest.mark.parametrize("make", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize(("event", "settings"), SOURCES.values(), ids=SOURCES)
def test_a_right_handler_passes(
    crash_everywhere: Crash,
    event: Any,
    settings: dict[str, Any],
    make: Callable[[], World],
    policy: dict[str, Any],
) -> None:
    """Whatever delivers the event, whichever store keeps the record, and whatever the policy is."""
    handler = partial(build, **({"policy": Policy(**policy)} | settings))
    assert crash_everywhere(handler, event, world=make, next_version=partial(handler)) >= 24


@pytest.mark.proof
def test_calls_of_boto3_are_seen(crash_everywhere: Crash) -> None:
    """On moto's tables a registered write passes.

    What the handler sends by a client of its own does not.
    """

    def moto() -> World:
        client.delete_table(TableName="Idempotency")
        create_tables(client, {"Idempotency": "idempotencyKey"})
        return World(None)

    def send(_: World, __: Operation) -> None:
        queue.send_message(QueueUrl=url, MessageBody="a point")

    def add(_: World, __: Operation) -> None:
        given: Any = {
            "UpdateExpression": "ADD n :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        client.update_item(TableName="Points", Key={"id": {"S": "c1"}}, **given)

    def put(_: World, __: Operation) -> None:
        boto3.resource("dynamodb").Table("Points").put_item(
            Item={"id": "c1", "idempotencyKey": "k1"}
        )

    with mock_aws():
        client = boto3.client("dynamodb")
        create_tables(client, {"Idempotency": "idempotencyKey", "Points": "id"})
        queue = boto3.client("sqs")
        url = queue.create_queue(QueueName="queue")["QueueUrl"]
        crash = partial(
            crash_everywhere,
            event=EVENT,
            world=moto,
            without=["crash before", "overtaken", "taken over"],
        )
        assert crash(build) == 9
        assert crash(partial(build, work=put)) == 9, "a second put of one item changes nothing"
        for work, found in ((add, "direct Update Points"), (send, "direct SendMessage of sqs")):
            with pytest.raises(
                BrokenPromiseError, match=f"{found} took effect 2 times.*operation.write"
            ):
                crash(partial(build, work=work))


def test_a_dead_process_writes_nothing() -> None:
    """Code that goes on after a crash gets no further than its next call."""

    def go_on(world: World, operation: Operation) -> None:
        with suppress(BaseException):
            right(world, operation)
        world.dynamodb.put_item(TableName="Points", Item={"id": {"S": "c1"}})

    world = points()
    with world.installed():
        run = world.invoke(
            build(world, work=go_on),
            EVENT,
            fault=Fault(CRASH_BEFORE, lambda number, _: number == 2),
        )
    assert (run.dead, world.dynamodb.all("Points"), world.once()) == (True, [], {})


def test_a_run_may_outlive_its_lease(crash_everywhere: Crash) -> None:
    """Another delivery then runs the handler too, and shares the operation's downstream key."""

    def work(world: World, operation: Operation) -> None:
        world.external("charge", lambda key: None, key=str)(operation.owner)

    others = ["crash before", "crash after", "request lost", "answer lost", "overtaken"]
    with pytest.raises(BrokenPromiseError, match="external charge took effect 2 times"):
        crash_everywhere(partial(build, work=work), EVENT, world=points, without=others)


def swallow(world: World, operation: Operation) -> None:
    """Forget the error of a call."""
    with suppress(Exception):
        world.external("mail", lambda key: None, key=str)(operation.downstream_key)


def send_a_random_key(world: World, _: Operation) -> None:
    """Call another system under a key that the next attempt does not have."""
    world.external("mail", lambda key: None, key=str)(uuid4().hex)


def send_unrecognised(world: World, operation: Operation) -> None:
    """Call another system that recognises no repeated call."""
    world.external("mail", lambda key: None, key=lambda _: NO_KEY)(operation.downstream_key)


def write_directly(world: World, _: Operation) -> None:
    """Write outside of the commit."""
    values = {":one": {"N": "1"}}
    key = {"id": {"S": "c1"}}
    world.dynamodb.update_item(
        TableName="Points", Key=key, UpdateExpression="ADD n :one", ExpressionAttributeValues=values
    )


def acknowledging(world: World) -> Any:
    """Start a process of a handler that acknowledges what has failed."""
    handler = build(world)

    def acknowledge(event: Any, context: Any) -> None:
        with suppress(Exception):
            handler(event, context)

    return acknowledge


@pytest.mark.parametrize(
    ("wrong", "later", "found"),
    [
        (partial(build, work=lambda *_: None), None, "no effect is seen"),
        (
            partial(build, work=lambda world, _: world.nothing),
            None,
            "without a fault, the event is not acknowledged",
        ),
        (partial(build, work=swallow), None, "mail is lost.*raise its errors"),
        (
            partial(build, work=send_a_random_key),
            None,
            "mail took effect 2 times, not 1.*operation.downstream_key",
        ),
        (
            partial(build, work=send_unrecognised),
            None,
            "mail took effect 2 times, not 1.*NO_KEY.*and a probe",
        ),
        (
            partial(build, work=write_directly),
            None,
            "Update Points took effect 2 times, not 1.*operation.write",
        ),
        (acknowledging, None, "the key points#k1 stays FAILED"),
        (build, partial(build, key="id"), "took effect 2 times, not 1"),
        (
            build,
            partial(build, payload="detail.idempotencyid"),
            "the key points#k1 stays IN_PROGRESS",
        ),
    ],
)
def test_other_mistakes_are_named(
    crash_everywhere: Crash, wrong: Any, later: Any, found: str
) -> None:
    """Such as a swallowed error, a random key, an early write, or a version with other keys."""
    with pytest.raises(BrokenPromiseError, match=found):
        crash_everywhere(wrong, EVENT, world=points, next_version=later)


def test_a_handler_of_no_module_needs_its_builder(crash_everywhere: Crash) -> None:
    """A process of it could not be started again."""
    with pytest.raises(ConfigurationError, match="build"):
        crash_everywhere(build(points()), EVENT)


def test_a_deadline_outside_of_an_invocation_is_of_the_worlds_clock() -> None:
    """A test may call a plain handler itself, and not by `World.invoke`."""
    world = World({})
    with world.installed():
        consumer: Consumer = Consumer("mails", world.store)

        @consumer.function(key="order", name="confirm")
        def confirm(order: str) -> str:
            return order

        with lambda_deadline(lambda_context(clock=world.clock)):
            assert confirm("order-1") == "order-1"
            world.clock.advance(30)
            with pytest.raises(OutOfTimeError):
                confirm("order-2")
