"""The two sides: how a user of each makes functions and handlers idempotent, with everything left at its defaults."""

from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import boto3
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CacheClientProtocol, CachePersistenceLayer

from idempotency import Consumer, DynamoDBStore, Policy, within
from idempotency.powertools import FencedPersistenceLayer
from idempotency.stores import Store
from idempotency.stores.transport import botocore_transport
from idempotency.stores.valkey import ValkeyStore
from idempotency.testing import DeadLetterBox
from tests.differential.world import POWERTOOLS_TABLE, TABLE, World

type Work = Callable[[str], object]
type EventWork = Callable[[dict[str, Any]], object]

KEY: Final = "detail.idempotencyid"
TIMEOUT_S: Final = 30.0


class Sandbox(Protocol):
    """One process of a function: its own objects over the shared table. Everything in it shares one store object."""

    def function(self, name: str, work: Work) -> Work:
        """Make a function idempotent by its one argument."""
        ...

    def handler(self, work: EventWork, *, key: str = KEY, payload: str = "", name: str = "handler") -> EventWork:
        """Make a handler of EventBridge events idempotent.

        ``key`` and ``payload``, what is compared, are JMESPath expressions; ``name`` is what the handler is called.
        """
        ...


class Side(Protocol):
    """One of the two."""

    name: str

    def sandbox(
        self, world: World, *, timeout_s: float = TIMEOUT_S, window_s: int | None = None, redis: bool = False
    ) -> Sandbox:
        """Start a process whose invocations may last ``timeout_s``; ``window_s`` replaces the default."""
        ...


class _PowertoolsSandbox:
    def __init__(self, world: World, layer: BasePersistenceLayer, config: dict[str, Any], timeout_s: float) -> None:
        self._world = world
        self._layer = layer
        self._config = config
        self._timeout_s = timeout_s

    def function(self, name: str, work: Work) -> Work:
        config = IdempotencyConfig(**self._config)

        def run(argument: str) -> object:
            return work(argument)

        run.__qualname__ = name
        once = idempotent_function(run, data_keyword_argument="argument", persistence_store=self._layer, config=config)

        def call(argument: str) -> object:
            config.register_lambda_context(self._world.invocation(self._timeout_s))
            return once(argument=argument)

        return call

    def handler(self, work: EventWork, *, key: str = KEY, payload: str = "", name: str = "handler") -> EventWork:
        def run(event: dict[str, Any], context: Any) -> object:
            return work(event)

        run.__qualname__ = name
        config = IdempotencyConfig(event_key_jmespath=key, payload_validation_jmespath=payload, **self._config)
        once = idempotent(persistence_store=self._layer, config=config)(run)

        return lambda event: once(event, self._world.invocation(self._timeout_s))


class Powertools:
    """AWS Lambda Powertools, as its documentation has it."""

    name = "Powertools"

    def sandbox(
        self, world: World, *, timeout_s: float = TIMEOUT_S, window_s: int | None = None, redis: bool = False
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

    def function(self, name: str, work: Work) -> Work:
        consumer = self._consumer(name)

        @consumer.function(key="argument")
        def once(argument: str) -> object:
            return work(argument)

        def call(argument: str) -> object:
            with within(self._world.invocation(self._timeout_s), self._world.now_ms):
                return once(argument)

        return call

    def handler(self, work: EventWork, *, key: str = KEY, payload: str = "", name: str = "handler") -> EventWork:
        consumer = self._consumer("payments", key)
        once = consumer.event_handler(lambda event, _: work(event))
        return lambda event: once(event, self._world.invocation(self._timeout_s))["outcome"]

    def _consumer(self, name: str, key: str | None = None) -> Consumer:
        world = self._world
        return Consumer(
            name,
            self._store,
            key=key,
            policy=self._policy,
            dead_letters=DeadLetterBox(),
            region="eu-west-1",
            clock=world.now_ms,
            sleep=world.time.sleep,
        )


class Bridge:
    """Powertools' decorators over this layer's store."""

    name = "bridge"

    def sandbox(
        self, world: World, *, timeout_s: float = TIMEOUT_S, window_s: int | None = None, redis: bool = False
    ) -> Sandbox:
        """Start a process."""
        layer = FencedPersistenceLayer(_own_store(world, redis=redis), "payments", clock=world.now_ms)
        config = {} if window_s is None else {"expires_after_seconds": window_s}
        return _PowertoolsSandbox(world, layer, config, timeout_s)


class Here:
    """This layer, with a dead-letter queue beside it."""

    name = "here"

    def sandbox(
        self, world: World, *, timeout_s: float = TIMEOUT_S, window_s: int | None = None, redis: bool = False
    ) -> Sandbox:
        """Start a process."""
        policy = Policy() if window_s is None else Policy(window=window_s)
        return _OwnSandbox(world, _own_store(world, redis=redis), policy, timeout_s)


def _own_store(world: World, *, redis: bool) -> Store:
    if redis:
        return ValkeyStore(world.redis, clock=world.now_ms, sleep=world.time.sleep)
    transport = botocore_transport(session=world.wire.session)
    return DynamoDBStore(TABLE, transport=transport, clock=world.now_ms, sleep=world.time.sleep)
