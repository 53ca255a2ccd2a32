"""`crash_everywhere` finds what is wrong with a handler, and nothing wrong with a right one."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from idempotency import Consumer, Operation, Update
from idempotency.testing import BrokenPromiseError, World, crash_everywhere, eventbridge_event

EVENT = eventbridge_event({"idempotencyid": "k1", "data": {"orderID": "order_01"}})
ADD = {"TableName": "Points", "Key": {"id": {"S": "c1"}}, "UpdateExpression": "ADD n :one"} | {
    "ExpressionAttributeValues": {":one": {"N": "1"}}
}

type Work = Callable[[World, Operation], object]


def world() -> World:
    """A world with one table."""
    return World({"Points": ["id"]})


def built(work: Work, **settings: Any) -> Callable[[World], Any]:
    """Return what builds a handler over a world."""

    def build(world: World) -> Any:
        consumer: Consumer[Any] = Consumer("points", world.store, **({"key": "detail.idempotencyid"} | settings))
        return consumer.event_handler(lambda event, operation: work(world, operation))

    return build


def right(world: World, operation: Operation) -> None:
    """Call another system under the operation's own key, and register a write."""
    world.external("charge", lambda key: {"charged": key})(operation.downstream_key)
    operation.write(Update("Points", {"id": "c1"}, "ADD n :one", values={":one": 1}))


def direct(world: World, operation: Operation) -> None:
    """Write without registering."""
    world.dynamodb.update_item(**ADD)


def random_key(world: World, operation: Operation) -> None:
    """Call another system under another key each time."""
    world.external("charge", lambda key: None)(uuid.uuid4().hex)


def swallow(world: World, operation: Operation) -> None:
    """Forget an error."""
    try:
        world.external("charge", lambda key: None)(operation.downstream_key)
    except Exception:  # noqa: BLE001, S110 - the mistake
        pass


def test_a_right_handler_passes() -> None:
    print(crash_everywhere(built(right), EVENT, world=world))


@pytest.mark.parametrize(
    ("work", "advice"), [(direct, "operation.write"), (random_key, "operation.downstream_key"), (swallow, "raise")]
)
def test_mistakes(work, advice) -> None:
    with pytest.raises(BrokenPromiseError, match=advice) as e:
        crash_everywhere(built(work), EVENT, world=world)
    print(e.value)
