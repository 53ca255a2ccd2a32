"""The two sides: how a user of each makes functions and handlers idempotent, with everything left at its defaults."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

import boto3
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CacheClientProtocol, CachePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.serialization.dataclass import DataclassSerializer

from idempotency import Consumer, DynamoDBStore, Policy, lambda_deadline
from idempotency.stores import Store
from idempotency.stores.transport import botocore_transport
from idempotency.stores.valkey import ValkeyStore
from tests.differential.transports import BatchHandler
from tests.differential.world import POWERTOOLS_TABLE, TABLE, World

type Work = Callable[..., object]
type EventWork = Callable[[dict[str, Any]], object]

KEY: Final = "detail.idempotencyid"
TIMEOUT_S: Final = 30.0


class Sandbox(Protocol):
    """One process of a function: its own objects over the shared table. Everything in it shares one store object."""

    def function(self, name: str, work: Work, *, returns: type | None = None) -> Work:
        """Make a function idempotent by its first argument; ``returns`` is the dataclass of its results."""
        ...

    def handler(self, work: EventWork, *, key: str = KEY, payload: str = "", name: str = "handler") -> EventWork:
        """Make a handler of EventBridge events idempotent.

        ``key`` and ``payload``, what is compared, are JMESPath expressions; ``name`` is what the handler is called.
        """
        ...

    def batch(self, work: EventWork) -> BatchHandler:
        """Make a handler of SQS batches, each record of which is idempotent by its key."""
        ...

    def http(self, work: EventWork) -> EventWork:
        """Make a handler of HTTP requests idempotent by their Idempotency-Key; their bodies are compared."""
        ...


class Side(Protocol):
    """One of the two."""

    name: str

    def sandbox(
        self,
        world: World,
        *,
        timeout_s: float = TIMEOUT_S,
        window_s: int | None = None,
        redis: bool = False,
        repeats: bool = True,
    ) -> Sandbox:
        """Start a process whose invocations may last ``timeout_s``.

        ``window_s`` replaces the default. Without ``repeats`` its work must not be repeated after a crash, if that can
        be said at all.
        """
        ...


class _PowertoolsSandbox:
    def __init__(self, world: World, layer: BasePersistenceLayer, config: dict[str, Any], timeout_s: float) -> None:
        self._world = world
        self._layer = layer
        self._config = config
        self._timeout_s = timeout_s

    def function(self, name: str, work: Work, *, returns: type | None = None) -> Work:
        config = IdempotencyConfig(**self._config)
        argument = _first_argument(work)

        def run(**arguments: object) -> object:
            return work(**arguments)

        run.__qualname__ = name
        once = idempotent_function(
            run,
            data_keyword_argument=argument,
            persistence_store=self._layer,
            config=config,
            output_serializer=None if returns is None else DataclassSerializer(returns),
        )

        def call(value: object) -> object:
            config.register_lambda_context(self._world.invocation(self._timeout_s))
            return once(**{argument: value})

        return call

    def handler(self, work: EventWork, *, key: str = KEY, payload: str = "", name: str = "handler") -> EventWork:
        def run(event: dict[str, Any], context: Any) -> object:
            return work(event)

        run.__qualname__ = name
        config = IdempotencyConfig(event_key_jmespath=key, payload_validation_jmespath=payload, **self._config)
        once = idempotent(persistence_store=self._layer, config=config)(run)

        return lambda event: once(event, self._world.invocation(self._timeout_s))

    def batch(self, work: EventWork) -> BatchHandler:
        config = IdempotencyConfig(event_key_jmespath=KEY, **self._config)
        processor = BatchProcessor(event_type=EventType.SQS)

        def run(event: dict[str, Any]) -> object:
            return work(event)

        once = idempotent_function(run, data_keyword_argument="event", persistence_store=self._layer, config=config)

        def handler(event: dict[str, Any]) -> Mapping[str, Any]:
            context = self._world.invocation(self._timeout_s)
            config.register_lambda_context(context)
            return process_partial_response(event, lambda record: once(event=record.json_body), processor, context)

        return handler

    def http(self, work: EventWork) -> EventWork:
        return self.handler(work, key='headers."idempotency-key"', payload="body")


class Powertools:
    """AWS Lambda Powertools, as its documentation has it."""

    name = "Powertools"

    def sandbox(
        self,
        world: World,
        *,
        timeout_s: float = TIMEOUT_S,
        window_s: int | None = None,
        redis: bool = False,
        repeats: bool = True,
    ) -> Sandbox:
        """Start a process."""
        layer: BasePersistenceLayer
        if redis:
            layer = CachePersistenceLayer(client=cast("CacheClientProtocol", world.redis))
        else:
            session = boto3.session.Session(botocore_session=world.wire.session)
            layer = DynamoDBPersistenceLayer(POWERTOOLS_TABLE, boto3_session=session)
        config = {} if window_s is None else {"expires_after_seconds": window_s}
        return _PowertoolsSandbox(world, layer, config, timeout_s)


class _OwnSandbox:
    def __init__(self, world: World, store: Store, policy: Policy, timeout_s: float) -> None:
        self._world = world
        self._store = store
        self._policy = policy
        self._timeout_s = timeout_s

    def function(self, name: str, work: Work, *, returns: type | None = None) -> Work:
        once = self._consumer().function(key=_first_argument(work), name=name)(work)

        def call(value: object) -> object:
            with lambda_deadline(self._world.invocation(self._timeout_s), self._world.now_ms):
                return once(value)

        return call

    def handler(self, work: EventWork, *, key: str = KEY, payload: str = "", name: str = "handler") -> EventWork:
        once = self._consumer(key).event_handler(_with_operation(work))
        return lambda event: once(event, self._world.invocation(self._timeout_s))["outcome"]

    def batch(self, work: EventWork) -> BatchHandler:
        once = self._consumer(KEY).batch_handler(_with_operation(work))
        return lambda event: once(event, self._world.invocation(self._timeout_s))

    def http(self, work: EventWork) -> EventWork:
        once = self._consumer().http_handler(_with_operation(work))
        return lambda request: once(request, self._world.invocation(self._timeout_s))

    def _consumer(self, key: str | None = None) -> Consumer:
        world = self._world
        return Consumer(
            "payments",
            self._store,
            key=key,
            policy=self._policy,
            dead_letters=world.box,
            region="eu-west-1",
            clock=world.now_ms,
            sleep=world.time.sleep,
            concurrency=world.process,
        )


class Here:
    """This layer, with a dead-letter queue beside it."""

    name = "here"

    def sandbox(
        self,
        world: World,
        *,
        timeout_s: float = TIMEOUT_S,
        window_s: int | None = None,
        redis: bool = False,
        repeats: bool = True,
    ) -> Sandbox:
        """Start a process."""
        policy = Policy(window=window_s or Policy().window, on_crash="retry" if repeats else "quarantine")
        return _OwnSandbox(world, _own_store(world, redis=redis), policy, timeout_s)


def _own_store(world: World, *, redis: bool) -> Store:
    if redis:
        return ValkeyStore(world.redis, clock=world.now_ms, sleep=world.time.sleep)
    transport = botocore_transport(session=world.wire.session)
    return DynamoDBStore(TABLE, transport=transport, clock=world.now_ms, sleep=world.time.sleep)


def _first_argument(work: Work) -> str:
    return next(iter(inspect.signature(work).parameters))


def _with_operation(work: EventWork) -> Callable[[dict[str, Any], Any], object]:
    """Return ``work`` as this layer calls it."""

    @functools.wraps(work)
    def run(event: dict[str, Any], operation: Any) -> object:
        return work(event)

    return run
