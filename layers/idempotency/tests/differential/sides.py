"""The two sides: how a user of each makes functions and handlers idempotent, with the defaults.

Each class is one process of a function, with one store object over the shared table. Its
invocations may last ``timeout_s``.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import boto3
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)

from carride_idempotency import ANY_CALLER, Consumer, DynamoDBStore, lambda_deadline
from carride_idempotency.stores.transport import botocore_transport
from tests.differential.world import POWERTOOLS_TABLE, TABLE, World

type Work = Callable[..., object]
type EventWork = Callable[[dict[str, Any]], object]
type BatchHandler = Callable[[dict[str, Any]], Mapping[str, Any]]
type Side = type[Powertools | Here]

KEY: Final = "detail.idempotencyid"


class Powertools:
    """AWS Lambda Powertools, as its documentation has it."""

    def __init__(self, world: World, *, timeout_s: float = 30.0) -> None:
        session = boto3.session.Session(botocore_session=world.wire.session)
        self._layer = DynamoDBPersistenceLayer(POWERTOOLS_TABLE, boto3_session=session)
        self._invocation = functools.partial(world.invocation, timeout_s)

    def function(self, name: str, work: Work) -> Work:
        config = IdempotencyConfig()
        argument = _first_argument(work)

        def run(**arguments: object) -> object:
            return work(**arguments)

        run.__qualname__ = name
        once = idempotent_function(
            run, data_keyword_argument=argument, persistence_store=self._layer, config=config
        )

        def call(value: object) -> object:
            config.register_lambda_context(self._invocation())
            return once(**{argument: value})

        return call

    def handler(
        self,
        work: EventWork,
        *,
        key: str = KEY,
        payload: str = "",
        name: str = "handler",
        probe: Any = None,
    ) -> EventWork:
        """Make a handler of EventBridge events idempotent.

        ``key`` and ``payload``, which is compared, are JMESPath expressions; ``name`` is the
        handler's name. ``probe`` asks another system what the work has done there; Powertools has
        no use for it.
        """

        def run(event: dict[str, Any], context: Any) -> object:
            return work(event)

        run.__qualname__ = name
        config = IdempotencyConfig(event_key_jmespath=key, payload_validation_jmespath=payload)
        once = idempotent(persistence_store=self._layer, config=config)(run)
        return lambda event: once(event, self._invocation())

    def batch(self, work: EventWork) -> BatchHandler:
        config = IdempotencyConfig(event_key_jmespath=KEY)
        processor = BatchProcessor(event_type=EventType.SQS)

        def run(event: dict[str, Any]) -> object:
            return work(event)

        once = idempotent_function(
            run, data_keyword_argument="event", persistence_store=self._layer, config=config
        )

        def handler(event: dict[str, Any]) -> Mapping[str, Any]:
            context = self._invocation()
            config.register_lambda_context(context)
            return process_partial_response(
                event, lambda record: once(event=record.json_body), processor, context
            )

        return handler

    def http(self, work: EventWork) -> EventWork:
        return self.handler(work, key='headers."idempotency-key"', payload="body")


class Here:
    """This layer, with a dead-letter queue beside it."""

    def __init__(self, world: World, *, timeout_s: float = 30.0) -> None:
        self._world = world
        self._invocation = functools.partial(world.invocation, timeout_s)
        transport = botocore_transport(session=world.wire.session)
        self._store = DynamoDBStore(TABLE, transport=transport)

    def function(self, name: str, work: Work) -> Work:
        once = self._consumer().function(key=_first_argument(work), name=name)(work)

        def call(value: object) -> object:
            with lambda_deadline(self._invocation(), self._world.clock):
                return once(value)

        return call

    def handler(
        self,
        work: EventWork,
        *,
        key: str = KEY,
        payload: str = "",
        name: str = "handler",
        probe: Any = None,
    ) -> EventWork:
        """Make a handler of EventBridge events idempotent by a JMESPath expression.

        All of their data is compared.
        """
        once = self._consumer(key).event_handler(_with_operation(work, probe))
        return lambda event: once(event, self._invocation())["outcome"]

    def batch(self, work: EventWork) -> BatchHandler:
        once = self._consumer(KEY).batch_handler(_with_operation(work))
        return lambda event: once(event, self._invocation())

    def http(self, work: EventWork) -> EventWork:
        once = self._consumer().http_handler(caller=ANY_CALLER)(_with_operation(work))
        return lambda request: once(request, self._invocation())

    def _consumer(self, key: str | None = None) -> Consumer:
        return Consumer(
            "payments",
            self._store,
            key=key,
            dead_letters=self._world.dead_letters,
            region="eu-west-1",
        )


def _first_argument(work: Work) -> str:
    return next(iter(inspect.signature(work).parameters))


def _with_operation(work: EventWork, probe: Any = None) -> Callable[[dict[str, Any], Any], object]:
    @functools.wraps(work)
    def run(event: dict[str, Any], operation: Any) -> object:
        return operation.external("charge", lambda _: work(event), probe) if probe else work(event)

    return run


def get_then_put(world: World, name: str, work: Work) -> Work:
    """Make a function idempotent without a conditional write.

    Read the key, work, then write the key.
    """
    client: Any = world.wire.session.create_client("dynamodb")

    def call(value: object) -> object:
        key = {"idempotencyKey": {"S": f"{name}#{value}"}}
        stored = client.get_item(TableName=TABLE, Key=key, ConsistentRead=True).get("Item")
        if stored is not None:
            return stored["result"]["S"]
        result = work(value)
        client.put_item(TableName=TABLE, Item=key | {"result": {"S": str(result)}})
        return result

    return call
