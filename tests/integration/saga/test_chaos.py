"""The worst mix in small: nothing lost, nothing doubled; and without its protection, no consumer gets through it."""

import io

import pytest

from idempotency import MemoryStore
from local.chaos import Mix, rehearse, table
from local.demo import Progress
from local.laptop import Laptop

pytestmark = pytest.mark.integration


def test_nothing_is_lost_or_doubled_in_the_worst_mix(laptop: Laptop) -> None:
    """Copies, disorder, crashes, poison and a bad gateway: every ride ends well, and a replay changes nothing."""
    mix = Mix(rides=16, cars=6, gateway=0.2)
    result = rehearse(laptop, mix, seed=3, store=MemoryStore(), progress=Progress(io.StringIO()))
    assert result.wrong() == []
    assert result.sound
    assert result.poison > 0
    assert sum(result.gateway.values()) > 0
    assert sum(result.saga.endings.values()) == mix.rides
    assert "held back" in table([result])


@pytest.mark.parametrize("consumer", ["ride-history", "dispatch", "payment"])
def test_a_consumer_without_its_decorator_is_noticed(laptop: Laptop, consumer: str) -> None:
    """Copies alone are enough to show that one consumer takes effect more than once."""
    mix = Mix(rides=4, out_of_order=0, crashes=0, poison=0, gateway=0)
    result = rehearse(laptop, mix, seed=4, store=MemoryStore(), progress=Progress(io.StringIO()), unprotected=consumer)
    assert not result.sound
    assert result.ledger.consumers[consumer].doubled > 0
    assert sum(account.doubled for name, account in result.ledger.consumers.items() if name != consumer) == 0
