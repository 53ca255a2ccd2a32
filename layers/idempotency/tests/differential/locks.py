"""A lock in Redis that is released after the work, and this layer on Valkey."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import fakeredis

from carride_idempotency import Consumer
from carride_idempotency.stores.valkey import ValkeyStore
from tests.differential.adversities import Payments, got

LOCK: Final = "A LOCK IN REDIS"
HERE: Final = "HERE, ON VALKEY"
_LOCK_S: Final = 60


def locked(client: Any, work: Callable[[str], object]) -> Callable[[str], object]:
    """Make a function run once at a time: take a lock, work, release the lock."""

    def call(argument: str) -> object:
        lock = f"lock:{argument}"
        if not client.set(lock, "held", nx=True, ex=_LOCK_S):
            raise RuntimeError(f"{argument} is being processed")
        try:
            return work(argument)
        finally:
            client.delete(lock)

    return call


def remembered(client: Any, work: Callable[[str], object]) -> Callable[[str], object]:
    """Make a function run once by this layer."""
    consumer: Consumer[Any] = Consumer("payments", ValkeyStore(client))

    @consumer.function(key="argument", name="charge")
    def call(argument: str) -> object:
        return work(argument)

    return call


SIDES: Final = {LOCK: locked, HERE: remembered}


class Adversity(NamedTuple):
    """A row of the table."""

    name: str
    lock: str
    here: str
    seen: Callable[[str], str]

    def observe(self, side: str) -> str:
        """Say what a side is seen to do."""
        return self.seen(side)


def _delivered_again(side: str) -> str:
    payments = Payments()
    with fakeredis.FakeValkey(socket_timeout=1) as client:
        call = SIDES[side](client, payments)
        call("order_01")
        again = got(lambda: call("order_01"))
    return f"a redelivery {again}; {payments.times}"


ADVERSITIES: Final = [
    Adversity(
        "an event is delivered again after it was completed",
        lock="a redelivery gets 'payment 2'; charged twice",
        here="a redelivery gets 'payment 1'; charged once",
        seen=_delivered_again,
    ),
]
