"""The worst mix in small: nothing lost, nothing doubled; and without their protection, no consumer gets through it."""

import io

from idempotency import MemoryStore
from local.chaos import Mix, cloud_without, rehearse, table
from local.command import Progress
from local.local_aws import LocalAws


def test_nothing_is_lost_or_doubled_in_the_worst_mix(cloud: LocalAws) -> None:
    """Copies, disorder, crashes, poison and a bad gateway: every ride ends well, and a replay changes nothing."""
    mix = Mix(rides=16, cars=6, at_once=40, gateway=0.2)
    result = rehearse(cloud, mix, seed=3, store=MemoryStore(), progress=Progress(io.StringIO()))
    assert result.wrong() == []
    assert result.sound
    assert result.poison > 0
    assert sum(result.gateway.values()) > 0
    assert sum(result.saga.endings.values()) == mix.rides
    assert "waiting for redrive" in table([result])


def test_a_consumer_without_its_decorator_is_noticed() -> None:
    """Copies alone are enough to show that it takes effect more than once, by whatever means it writes."""
    mix = Mix(rides=4, duplicates=1, out_of_order=0, crashes=0, poison=0, gateway=0)
    consumers = ["ride-history", "dispatch", "payment"]
    with cloud_without(consumers) as cloud:
        cloud.build()
        result = rehearse(cloud, mix, seed=4, store=MemoryStore(), progress=Progress(io.StringIO()))
    assert not result.sound
    assert [name for name, account in result.ledger.consumers.items() if account.doubled] == consumers
