"""`crash_everywhere` finds planted mistakes, and accepts unusual handlers that are right."""

import asyncio
import inspect
import os
import secrets
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import uuid4

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ReadTimeoutError

from carride_idempotency import (
    ANY_CALLER,
    KAFKA,
    NOT_DONE,
    ConfigurationError,
    Consumer,
    Delete,
    Done,
    Keep,
    Operation,
    Policy,
    Put,
    Update,
)
from carride_idempotency.sources import DYNAMODB_STREAM
from carride_idempotency.testing import (
    NO_KEY,
    BrokenPromiseError,
    World,
    crash_everywhere,
    dynamodb_stream_event,
    eventbridge_event,
    http_event,
    kafka_event,
    sqs_event,
)
from carride_idempotency.testing.worlds import OVERTAKEN, Fault

DETAIL: Final = {"id": "k1", "order": "order-1", "total": 20}
EVENT: Final = eventbridge_event(DETAIL)
QUEUE: Final = sqs_event(DETAIL, DETAIL | {"id": "k2", "order": "order-2"})
PARTITIONS: Final = {
    f"topic-{number}": [record]
    for number in (0, 1)
    for record in kafka_event({"id": f"k{number}"}, partition=number)["records"][f"topic-{number}"]
}
POISONED: Final = sqs_event(DETAIL, DETAIL | {"id": "k2", "order": "poison"})
TABLES: Final = {"Points": ["id"], "Log": ["id"], "Orders": ["id"]}
FIFO: Final = "https://sqs.eu-west-1.amazonaws.com/123456789012/mail.fifo"
STANDARD: Final = FIFO.removesuffix(".fifo")
ONE: Final = {":one": {"N": "1"}}
ONE_AND_ZERO: Final = ONE | {":zero": {"N": "0"}}
NEW_AND_NONE: Final[dict[str, Any]] = {":new": {"L": [{"S": "x"}]}, ":none": {"L": []}}

type Work = Callable[[World, Operation, Mapping[str, Any]], object]


class Case(NamedTuple):
    """A handler's work, how it is built, and what is delivered to it."""

    work: Work
    event: Any = EVENT
    key: Any = "detail.id"
    policy: Mapping[str, Any] = {}
    decorate: str = "event_handler"
    settings: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    """The decorator's."""
    wrap: Callable[[Any], Any] = lambda handler: handler
    """Makes the Lambda handler from the library's."""

    def build(self, world: World) -> Any:
        consumer: Consumer[Any] = Consumer(
            "points",
            world.store,
            key=self.key,
            policy=Policy(**self.policy),
            dead_letters=world.dead_letters,
            **self.settings,
        )
        decorate = getattr(consumer, self.decorate)

        def work(event: Any, operation: Operation) -> object:
            return self.work(world, operation, event.get("detail", event))

        async def work_in_a_loop(event: Any, operation: Any) -> object:
            return await self.work(world, operation, event.get("detail", event))  # type: ignore[misc] # an async def

        is_async = inspect.iscoroutinefunction(self.work)
        return self.wrap(decorate(work_in_a_loop if is_async else work, **self.options))

    def run(self) -> int:
        return crash_everywhere(self.build, self.event, world=Systems)


class Systems(World):
    """Tables, and other systems that remember what they were told."""

    def __init__(self) -> None:
        super().__init__(TABLES)
        self.charges: dict[str, str] = {}
        self.seems_down = False
        self.charge: Any = self.external("charge", self._charge, key=lambda key: key)
        self.mail: Any = self.external("mail", lambda text: None, key=lambda text: NO_KEY)

    def _charge(self, key: str) -> str:
        return self.charges.setdefault(key, f"receipt {len(self.charges)}")

    def probe(self, key: str) -> Any:
        return Done(self.charges[key]) if key in self.charges else NOT_DONE

    def put(self, table: str, item: Mapping[str, Any], **options: Any) -> None:
        self.dynamodb.put_item(TableName=table, Item=dict(item), **options)

    def points(self) -> int:
        found = self.dynamodb.get_item(TableName="Points", Key={"id": {"S": "c1"}})
        return int(found["Item"]["n"]["N"]) if "Item" in found else 0


def add(operation: Operation) -> None:
    operation.write(Update("Points", {"id": "c1"}, "ADD n :one", values={":one": 1}))


SESSION: Final = boto3.Session("x", "x", region_name="eu-west-1")
SERVICES: Final = ("s3", "sqs", "sns", "stepfunctions", "events", "lambda")
CLIENTS: Final = {name: SESSION.client(name) for name in SERVICES}
TABLE: Final[Any] = SESSION.resource("dynamodb").Table("Points")


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer every call of AWS with nothing: only what was asked for matters."""
    monkeypatch.setattr(BaseClient, "_make_api_call", lambda *_: {})


# ── Mistakes ──────────────────────────────────────────────────────────────────────────────────────


def read_add_put(world: Any, _: Operation, __: Any) -> None:
    world.put("Points", {"id": {"S": "c1"}, "n": {"N": str(world.points() + 1)}})


def read_add_put_by_resource(_: World, __: Operation, ___: Any) -> None:
    item = TABLE.get_item(Key={"id": "c1"}).get("Item", {"id": "c1", "n": 0})
    TABLE.put_item(Item=item | {"n": item["n"] + 1})


def read_add_register(world: Any, operation: Operation, detail: Any) -> None:
    """Count in a direct write, and register another one."""
    read_add_put(world, operation, detail)
    add(operation)


def direct_update(expression: str, **values: Any) -> Work:
    def work(world: World, _: Operation, __: Any) -> None:
        world.dynamodb.update_item(
            TableName="Points",
            Key={"id": {"S": "c1"}},
            UpdateExpression=expression,
            ExpressionAttributeValues=values,
        )

    return work


def direct_put_of(make: Callable[[], str], name: str = "at") -> Work:
    def work(world: Any, _: Operation, __: Any) -> None:
        world.put("Log", {"id": {"S": "k1"}} | {name: {"S": make()}})

    return work


def direct_batch(world: World, _: Operation, __: Any) -> None:
    entry = {"PutRequest": {"Item": {"id": {"S": uuid4().hex}}}}
    world.dynamodb.batch_write_item(RequestItems={"Log": [entry]})


def direct_transaction(world: World, _: Operation, __: Any) -> None:
    update = {
        "TableName": "Points",
        "Key": {"id": {"S": "c1"}},
        "UpdateExpression": "ADD n :one",
        "ExpressionAttributeValues": ONE,
    }
    world.dynamodb.transact_write_items(TransactItems=[{"Update": update}])


def put_under_the_next_number(world: World, _: Operation, __: Any) -> None:
    items = world.dynamodb.query(
        TableName="Orders",
        KeyConditionExpression="id > :a",
        ExpressionAttributeValues={":a": {"S": "a"}},
    )["Items"]
    number = len(items)
    world.dynamodb.put_item(TableName="Orders", Item={"id": {"S": f"order-{number}"}})


def no_key(world: Any, operation: Operation, _: Any) -> None:
    world.mail("hello")
    add(operation)


def external_under(make: Callable[[Operation], str]) -> Work:
    def work(world: Any, operation: Operation, _: Any) -> None:
        world.charge(make(operation))

    return work


def http_beside_a_write(_: World, operation: Operation, __: Any) -> None:
    add(operation)
    with suppress(OSError), urllib.request.urlopen("http://127.0.0.1:9/notify", timeout=1):
        pass


def socket_beside_a_write(_: World, operation: Operation, __: Any) -> None:
    add(operation)
    with suppress(OSError), socket.create_connection(("127.0.0.1", 9), timeout=1):
        pass


def name_lookup_beside_a_write(_: World, operation: Operation, __: Any) -> None:
    add(operation)
    with suppress(OSError):
        socket.create_connection(("mail.example.com", 25), timeout=1)


def unjoined_thread(world: Any, operation: Operation, _: Any) -> None:
    key = operation.downstream_key
    threading.Thread(target=lambda: world.charge(key)).start()
    add(operation)


def unjoined_slow_thread(_: World, operation: Operation, __: Any) -> None:
    event = threading.Event()
    threading.Thread(target=lambda: event.wait(0.5)).start()
    add(operation)


def unawaited_future(world: Any, operation: Operation, _: Any) -> None:
    pool = ThreadPoolExecutor(1)
    pool.submit(world.charge, operation.downstream_key)
    add(operation)
    pool.shutdown(wait=False)


def slow_future(world: Any, operation: Operation, _: Any) -> None:
    """Leave a job behind whose call comes long after the handler's end."""
    pool = ThreadPoolExecutor(1)

    def compute_and_charge(key: str) -> None:
        sum(range(300_000))
        world.charge(key)

    pool.submit(compute_and_charge, operation.downstream_key)
    add(operation)


def future_behind_an_awaited_one(world: Any, operation: Operation, _: Any) -> None:
    pool = ThreadPoolExecutor(1)
    first = pool.submit(int)
    pool.submit(world.charge, operation.downstream_key)
    first.result()
    add(operation)
    pool.shutdown(wait=False)


def thread_of_a_joined_thread(world: Any, operation: Operation, _: Any) -> None:
    key = operation.downstream_key
    inner = threading.Thread(target=lambda: world.charge(key))
    outer = threading.Thread(target=inner.start)
    outer.start()
    outer.join()
    add(operation)


def swallowed(*errors: type[Exception]) -> Work:
    def work(world: Any, operation: Operation, _: Any) -> None:
        with suppress(*errors):
            world.charge(operation.downstream_key)
        add(operation)

    return work


def swallowed_beside_poison(world: Any, operation: Operation, detail: Any) -> None:
    if detail["order"] == "poison":
        raise ValueError("poison")
    with suppress(TimeoutError):
        world.charge(operation.downstream_key)


def skips_after_a_failure(world: Any, operation: Operation, _: Any) -> None:
    if world.seems_down:
        return
    try:
        world.charge(operation.downstream_key)
    except TimeoutError:
        world.seems_down = True
        raise


def swallowed_read(world: Any, operation: Operation, _: Any) -> None:
    try:
        points = world.points()
    except ReadTimeoutError:
        points = 100
    operation.write(Put("Points", {"id": "c2", "n": points}))


def send(service: str, operation_name: str, **parameters: Any) -> Work:
    def work(_: World, operation: Operation, __: Any) -> None:
        given = {
            name: value(operation) if callable(value) else value
            for name, value in parameters.items()
        }
        getattr(CLIENTS[service], operation_name)(**given)

    return work


def by_attempt(_: World, operation: Operation, __: Any) -> None:
    operation.write(Put("Log", {"id": f"{operation.key}-{operation.attempt}"}))


def counts_attempts(_: World, operation: Operation, __: Any) -> None:
    operation.write(Put("Points", {"id": "c1", "n": operation.attempt}))


def acknowledging(handler: Any) -> Any:
    def acknowledge(event: Any, context: Any) -> None:
        with suppress(Exception):
            handler(event, context)

    return acknowledge


def acknowledging_batches(handler: Any) -> Any:
    def acknowledge(event: Any, context: Any) -> Any:
        handler(event, context)
        return {"batchItemFailures": []}

    return acknowledge


def counting_before(handler: Any) -> Any:
    """Write outside of the operation, in the handler around it."""

    def count(event: Any, context: Any) -> Any:
        TABLE.update_item(
            Key={"id": "c1"},
            UpdateExpression="ADD n :one",
            ExpressionAttributeValues={":one": 1},
        )
        return handler(event, context)

    return count


def minute(event: Any) -> str:
    return f"{event['detail']['id']}-{datetime.now(UTC):%Y-%m-%dT%H:%M}"


def day(event: Any) -> str:
    return f"{event['detail']['id']}-{time.strftime('%Y-%m-%d')}"


def register(_: World, operation: Operation, __: Any) -> None:
    add(operation)


def key_of(operation: Operation) -> str:
    return operation.downstream_key


def charge_and_add(world: Any, operation: Operation, _: Any) -> None:
    world.charge(operation.downstream_key)
    add(operation)


BATCH: Final[dict[str, Any]] = {"event": QUEUE, "key": "id", "decorate": "batch_handler"}

MISTAKES: Final[Mapping[str, Case]] = {
    "read, add, put": Case(read_add_put),
    "read, add, put with a resource of boto3's": Case(read_add_put_by_resource),
    "read, add, put beside a registered write": Case(read_add_register),
    "ADD written directly": Case(direct_update("ADD n :one", **ONE)),
    "SET n = n + 1 written directly": Case(
        direct_update("SET n = if_not_exists(n, :zero) + :one", **ONE_AND_ZERO)
    ),
    "list_append written directly": Case(
        direct_update("SET l = list_append(if_not_exists(l, :none), :new)", **NEW_AND_NONE)
    ),
    "a random value written directly": Case(direct_put_of(secrets.token_hex)),
    "a random key written directly": Case(direct_batch),
    "the time written directly": Case(direct_put_of(lambda: datetime.now(UTC).isoformat())),
    "the time in seconds written directly": Case(direct_put_of(lambda: str(time.time()))),
    "a transaction written directly": Case(direct_transaction),
    "a number that follows what is there": Case(put_under_the_next_number),
    "a write around the operation": Case(register, wrap=counting_before),
    "a call without a key": Case(no_key),
    "a call under a random key": Case(external_under(lambda _: uuid4().hex)),
    "a call under the owner": Case(external_under(lambda operation: operation.owner)),
    "a call under the attempt": Case(external_under(lambda operation: f"k1-{operation.attempt}")),
    "a call under the time": Case(external_under(lambda _: str(time.time_ns()))),
    "an HTTP call beside a registered write": Case(http_beside_a_write),
    "a socket beside a registered write": Case(socket_beside_a_write),
    "a host's name beside a registered write": Case(name_lookup_beside_a_write),
    "a thread that nobody joins": Case(unjoined_thread),
    "a thread that goes on": Case(unjoined_slow_thread),
    "a future that nobody awaits": Case(unawaited_future),
    "a slow future that nobody awaits": Case(slow_future),
    "a future that nobody awaits, behind an awaited one": Case(future_behind_an_awaited_one),
    "a thread of a joined thread": Case(thread_of_a_joined_thread),
    "a swallowed timeout": Case(swallowed(TimeoutError)),
    "a swallowed error": Case(swallowed(Exception)),
    "a swallowed timeout beside a dead-lettered neighbour": Case(
        swallowed_beside_poison,
        event=POISONED,
        key="id",
        decorate="batch_handler",
        policy={"max_attempts": 1},
    ),
    "neighbours of a failure that are skipped": Case(
        skips_after_a_failure, policy={"max_attempts": 1, "concurrency": 1}, **BATCH
    ),
    "a swallowed read": Case(swallowed_read),
    "a key made of the minute": Case(register, key=minute),
    "a key made of the day": Case(register, key=day),
    "a key of the time in milliseconds": Case(register, key=lambda _: str(time.time_ns())),
    "a random idempotency key": Case(register, key=lambda _: uuid4().hex),
    "an item for each attempt": Case(by_attempt),
    "the attempt's number in an item": Case(counts_attempts),
    "a message to a standard queue": Case(
        send("sqs", "send_message", QueueUrl=STANDARD, MessageBody="x", MessageAttributes={})
    ),
    "a message under a random deduplication id": Case(
        send(
            "sqs",
            "send_message",
            QueueUrl=FIFO,
            MessageBody="x",
            MessageGroupId="g",
            MessageDeduplicationId=lambda _: uuid4().hex,
        )
    ),
    "an event on a bus": Case(
        send("events", "put_events", Entries=[{"Source": "s", "DetailType": "d", "Detail": "{}"}])
    ),
    "an execution under a random name": Case(
        send("stepfunctions", "start_execution", stateMachineArn="arn", name=lambda _: uuid4().hex)
    ),
    "an execution without a name": Case(
        send("stepfunctions", "start_execution", stateMachineArn="arn")
    ),
    "an object whose content has the time": Case(
        send("s3", "put_object", Bucket="b", Key="k", Body=lambda _: str(time.time()).encode())
    ),
    "an invocation of another function": Case(
        send("lambda", "invoke", FunctionName="f", Payload=b"{}")
    ),
    "errors acknowledged": Case(charge_and_add, wrap=acknowledging),
    "failures of a batch acknowledged": Case(charge_and_add, wrap=acknowledging_batches, **BATCH),
    "no effect": Case(lambda *_: None),
}


CALL_OF_A_THREAD: Final = "a thread makes the call charge .* after its invocation"
FINDINGS: Final[Mapping[str, str]] = {
    "a write around the operation": "direct Update Points took effect 2 times",
    "a call without a key": "external mail took effect 2 times",
    "an HTTP call beside a registered write": "a connection to 127.0.0.1 is not declared",
    "a socket beside a registered write": "a connection to 127.0.0.1 is not declared",
    "a host's name beside a registered write": "a connection to mail.example.com is not declared",
    "a thread that nobody joins": CALL_OF_A_THREAD,
    "a thread that goes on": "goes on after its invocation",
    "a future that nobody awaits": CALL_OF_A_THREAD,
    "a slow future that nobody awaits": CALL_OF_A_THREAD,
    "a future that nobody awaits, behind an awaited one": CALL_OF_A_THREAD,
    "a thread of a joined thread": CALL_OF_A_THREAD,
    "a swallowed timeout": "external charge is lost for points#k1",
    "a swallowed error": "external charge is lost for points#k1",
    "a swallowed timeout beside a dead-lettered neighbour": "external charge is lost for points#k1",
    "neighbours of a failure that are skipped": "external charge is lost for points#k2",
    "a swallowed read": "a table has Points .*unlike after a run without a fault",
    "a key made of the minute": "registered Update Points took effect 2 times",
    "a key made of the day": "registered Update Points took effect 2 times",
    "a key of the time in milliseconds": "registered Update Points took effect 2 times",
    "a random idempotency key": "registered Update Points took effect 2 times",
    "an item for each attempt": "a table has Log .*unlike after a run without a fault",
    "the attempt's number in an item": "a table has Points .*unlike after a run without a fault",
    "errors acknowledged": "the key points#k1 stays FAILED",
    "failures of a batch acknowledged": "the key points#k1 stays FAILED",
    "no effect": "no effect is seen",
}
"""What is found; for all other mistakes a direct write or an external call that took effect
twice."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str) -> None:
    """Whatever it doubles, loses, or does unseen, the message says what it is."""
    found = FINDINGS.get(name, "(direct|external) .* took effect 2 times, not 1")
    with pytest.raises(BrokenPromiseError, match=found):
        MISTAKES[name].run()


# ── Right handlers ────────────────────────────────────────────────────────────────────────────────


def registered_random_id(_: World, operation: Operation, __: Any) -> None:
    operation.write(Put("Log", {"id": uuid4().hex, "at": datetime.now(UTC).isoformat()}))


def external_with_probe(world: Any, operation: Operation, _: Any) -> None:
    operation.external("charge", world.charge, world.probe)
    add(operation)


def keeps(_: World, operation: Operation, __: Any) -> None:
    operation.write(Keep({"orderID": "order-1"}))


def direct_put_of_the_event(world: Any, _: Operation, detail: Any) -> None:
    world.put("Orders", {"id": {"S": detail["order"]}, "total": {"N": str(detail["total"])}})


def put_of_a_resource(_: World, __: Operation, detail: Any) -> None:
    TABLE.put_item(Item={"id": detail["order"], "n": detail["total"]})


def conditional_put(world: Any, operation: Operation, _: Any) -> None:
    with suppress(world.dynamodb.exceptions.ConditionalCheckFailedException):
        world.put(
            "Log",
            {"id": {"S": operation.downstream_key}, "at": {"S": str(time.time())}},
            ConditionExpression="attribute_not_exists(id)",
        )


def started_then_done(world: Any, operation: Operation, _: Any) -> None:
    for state in ("started", "done"):
        world.put("Orders", {"id": {"S": "order-1"}, "state": {"S": state}})
    add(operation)


def full_expressions(_: World, operation: Operation, __: Any) -> None:
    values = {":one": 1, ":none": [], ":new": ["x"], ":tags": {"a"}}
    operation.write(
        Update(
            "Points",
            {"id": "c1"},
            "set #free = if_not_exists(#free, :one) + :one, "
            "l = list_append(if_not_exists(l, :none), :new) ADD tags :tags",
            values=values,
            names={"#free": "free"},
        )
    )


def joined_threads(world: Any, operation: Operation, _: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(world.charge, operation.downstream_key).result()
    add(operation)


def lock_between_threads(world: Any, operation: Operation, _: Any) -> None:
    """Wait for a thread in a way that no function of threading shows."""
    lock = threading.Lock()
    lock.acquire()
    told = charge_in_a_thread_that_tells(world, operation)
    told.add_done_callback(lambda _: lock.release())
    lock.acquire()
    told.result()
    add(operation)


def thread_that_tells_its_end(world: Any, operation: Operation, _: Any) -> None:
    """Wait for the last step of a thread, which then ends by itself."""
    charge_in_a_thread_that_tells(world, operation).result()
    add(operation)


def charge_in_a_thread_that_tells(world: Any, operation: Operation) -> Future[str]:
    told: Future[str] = Future()

    def charge() -> None:
        try:
            told.set_result(world.charge(operation.downstream_key))
        except BaseException as error:  # noqa: BLE001 - raised where the thread is awaited
            told.set_exception(error)

    threading.Thread(target=charge).start()
    return told


async def charge_in_a_thread(world: Any, operation: Any, _: Any) -> None:
    await asyncio.to_thread(world.charge, operation.downstream_key)
    add(operation)


async def charge_in_the_loop(world: Any, operation: Any, _: Any) -> None:
    """Make the call in the loop's thread, where no other invocation could run."""
    await asyncio.sleep(20)
    world.charge(operation.downstream_key)
    add(operation)


def waits(_: World, operation: Operation, __: Any) -> None:
    time.sleep(2)
    add(operation)


def reads_elsewhere(world: Any, operation: Operation, _: Any) -> None:
    price = world.external("price", lambda: 7, key=lambda: None)()
    operation.write(Put("Orders", {"id": "order-1", "price": price}))


def deletes_and_puts(_: World, operation: Operation, __: Any) -> None:
    operation.write(Delete("Orders", {"id": "old"}), Put("Orders", {"id": "new"}))


def poison(world: Any, operation: Operation, detail: Any) -> None:
    if detail["order"] == "poison":
        raise ValueError("poison")
    world.charge(operation.downstream_key)
    add(operation)


def two_steps(world: Any, operation: Operation, _: Any) -> None:
    world.charge(operation.downstream_key_for("charge"))
    world.charge(operation.downstream_key_for("fee"))


RIGHT: Final[Mapping[str, Case]] = {
    "a registered item with a random id and the time": Case(registered_random_id),
    "an external call with a probe": Case(external_with_probe),
    "only a Keep": Case(keeps),
    "a put of what the event says": Case(direct_put_of_the_event),
    "the same by a resource of boto3's": Case(put_of_a_resource),
    "a put under a condition": Case(conditional_put),
    "an item that is started, then done": Case(started_then_done),
    "an object under the downstream key": Case(
        send("s3", "put_object", Bucket="b", Key=key_of, Body=b"x")
    ),
    "an object deleted": Case(send("s3", "delete_object", Bucket="b", Key="k")),
    "a message to a FIFO queue under the downstream key": Case(
        send(
            "sqs",
            "send_message",
            QueueUrl=FIFO,
            MessageBody="x",
            MessageGroupId="g",
            MessageDeduplicationId=key_of,
        )
    ),
    "an event to a FIFO topic under the downstream key": Case(
        send(
            "sns",
            "publish",
            TopicArn="arn:topic.fifo",
            Message="x",
            MessageGroupId="g",
            MessageDeduplicationId=key_of,
        )
    ),
    "an execution under the downstream key": Case(
        send("stepfunctions", "start_execution", stateMachineArn="arn", name=key_of)
    ),
    "full expressions": Case(full_expressions),
    "threads that are joined": Case(joined_threads),
    "a thread that tells its end": Case(thread_that_tells_its_end),
    "a lock between threads": Case(lock_between_threads),
    "an async def and a thread": Case(charge_in_a_thread),
    "an async def that waits": Case(charge_in_the_loop),
    "a handler that waits": Case(waits),
    "a call that changes nothing": Case(reads_elsewhere),
    "a deletion and a put": Case(deletes_and_puts),
    "two calls under keys of their own": Case(two_steps),
    "no claim": Case(register, policy={"atomic": True}),
    "no second run": Case(external_with_probe, policy={"on_crash": "quarantine"}),
    "a batch": Case(register, **BATCH),
    "a poison message beside a right one": Case(
        poison, event=POISONED, key="id", decorate="batch_handler", policy={"max_attempts": 1}
    ),
    "a stream": Case(
        register,
        event=dynamodb_stream_event({"id": "k1"}, {"id": "k2"}),
        key="NewImage.id.S",
        decorate="batch_handler",
        settings={"source": DYNAMODB_STREAM},
    ),
    "a topic": Case(
        register,
        event=kafka_event({"id": "k1"}) | {"records": PARTITIONS},
        key="id",
        decorate="batch_handler",
        settings={"source": KAFKA},
    ),
    "a request": Case(
        register,
        event=http_event("POST", "/points", {"customer": "c1"}),
        key=None,
        decorate="http_handler",
        options={"caller": ANY_CALLER},
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_an_unusual_right_handler_passes(case: Case) -> None:
    """However its effects are made, each takes place once."""
    assert case.run() >= 6


def test_threads_make_their_calls_in_the_order_of_their_starts() -> None:
    """Their speed has no influence: a thread whose call comes early waits for its turn."""
    names = [f"call {number}" for number in range(6)]

    def charge_in_threads(world: Any, _: Operation, __: Any) -> None:
        """Have the thread that was started last come to its call first."""
        begins = [threading.Event() for _ in names]
        begins[-1].set()

        def charge(number: int) -> None:
            begins[number].wait()
            begins[number - 1].set()
            world.charge(names[number])

        threads = [threading.Thread(target=charge, args=(each,)) for each in range(len(names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    world = Systems()
    with world.installed():
        world.invoke(Case(charge_in_threads).build(world), EVENT)
    assert list(world.charges) == names


def test_a_call_does_not_wait_for_ever_for_a_thread_that_never_waits() -> None:
    """The handler ends that thread after its call."""

    def charge_beside_a_busy_thread(world: Any, operation: Operation, _: Any) -> None:
        ends = threading.Event()

        def spin() -> None:
            while not ends.is_set():
                sum(range(100))

        thread = threading.Thread(target=spin)
        thread.start()
        world.charge(operation.downstream_key)
        ends.set()
        thread.join()

    world = Systems()
    with world.installed():
        run = world.invoke(Case(charge_beside_a_busy_thread).build(world), EVENT)
    assert (run.error, world.violations, len(world.charges)) == (None, [], 1)


def test_a_coroutine_function_is_no_declared_call() -> None:
    """Its call does nothing before it is awaited, so a fault would meet it too early."""

    async def charge(key: str) -> None: ...

    with pytest.raises(ConfigurationError, match="an async handler calls it without await"):
        World().external("charge", charge, key=str)


# ── The time of event loops ───────────────────────────────────────────────────────────────────────


def invoke_async(work: Any) -> tuple[Any, float]:
    """Invoke an ``async def`` in a world; return what it returns and how many seconds passed."""
    world = Systems()
    returned = []

    async def keep_what_it_returns(_: World, __: Any, ___: Any) -> None:
        returned.append(await work())

    began_ms = world.clock()
    with world.installed():
        run = world.invoke(Case(keep_what_it_returns).build(world), EVENT)
    if run.error is not None:
        raise run.error
    return returned[0], (world.clock() - began_ms) / 1000


def test_a_loop_that_waits_moves_the_clock() -> None:
    """An hour takes no time, and the handler sees that it has passed."""

    async def work() -> float:
        began = time.time()
        await asyncio.sleep(3_600)
        return time.time() - began

    really = time.monotonic()
    assert invoke_async(work) == (3_600, 3_600)
    assert time.monotonic() - really < 60


def test_a_loop_of_a_handlers_own_moves_the_clock() -> None:
    """A plain handler may run coroutines by itself."""
    world = Systems()
    began_ms = world.clock()
    handler = Case(lambda *_: asyncio.run(asyncio.sleep(2))).build(world)
    with world.installed():
        assert world.invoke(handler, EVENT).error is None
    assert world.clock() - began_ms == 2_000


def test_timers_of_a_loop_come_in_their_order() -> None:
    """Each sees the time at which it was due."""

    async def work() -> list[float]:
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def wake(after_s: float) -> float:
            await asyncio.sleep(after_s)
            return loop.time() - began

        return await asyncio.gather(*(wake(after_s) for after_s in (30, 0.25, 5, 0.0001)))

    woken, passed_s = invoke_async(work)
    assert woken == pytest.approx([30, 0.25, 5, 0], abs=0.01)
    assert passed_s == 30


def test_a_timeout_of_a_loop_ends_what_waits() -> None:
    """It comes at its time, and not when the work would have ended."""

    async def work() -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(60)
        except TimeoutError:
            return "timeout"
        return "end"

    assert invoke_async(work) == ("timeout", 5)


def test_a_timeout_does_not_overtake_a_thread_that_works_for_its_loop() -> None:
    """It ends before the timeout in reality, so it does in the world."""

    async def work() -> int:
        async with asyncio.timeout(60):
            return await asyncio.to_thread(lambda: sum(range(1_000_000)))

    assert invoke_async(work) == (499_999_500_000, 0)


def test_a_timeout_does_not_overtake_a_thread_that_waits_for_something_else() -> None:
    """What it waits for may come, as an answer that is read in a thread."""

    async def work() -> bytes:
        reads, writes = os.pipe()
        answer = threading.Timer(0.3, os.write, [writes, b"answer"])
        answer.start()
        async with asyncio.timeout(60):
            received = await asyncio.to_thread(os.read, reads, 6)
        answer.join()
        os.close(reads)
        os.close(writes)
        return received

    assert invoke_async(work) == (b"answer", 0)


def test_a_loop_that_waits_for_a_connection_has_the_real_time() -> None:
    """What comes over it is not overtaken by a timeout."""

    async def work() -> bytes:
        ours, theirs = socket.socketpair()
        answer = threading.Timer(0.05, theirs.sendall, [b"answer"])
        answer.start()
        reader, writer = await asyncio.open_connection(sock=ours)
        async with asyncio.timeout(60):
            received = await reader.read(6)
        answer.join()
        writer.close()
        theirs.close()
        return received

    received, passed_s = invoke_async(work)
    assert received == b"answer"
    assert passed_s == 0


def test_a_call_in_a_loop_can_be_overtaken() -> None:
    """The other delivery finds the key claimed, and not the loop in its way."""
    world = Systems()
    handler = Case(charge_in_the_loop).build(world)
    others = []

    def overtake() -> None:
        others.append(world.invoke(handler, EVENT, delivery="delivery-2"))

    fault = Fault(OVERTAKEN, lambda _, what: what.startswith("charge"), overtake)
    with world.installed():
        run = world.invoke(handler, EVENT, fault=fault)
    assert run.error is None
    assert [other.answer["outcome"] for other in others] == ["Busy"]
