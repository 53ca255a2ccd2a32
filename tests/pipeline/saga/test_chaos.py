"""The worst mix in small: nothing lost, nothing doubled; and without their protection, no consumer gets through it."""

import io

from carride.simulation import Spec
from idempotency import MemoryStore
from local.chaos import cloud_without, mix, rehearse
from local.command import Progress
from local.local_aws import LocalAws


def test_nothing_is_lost_or_doubled_in_the_worst_mix(cloud: LocalAws) -> None:
    """Copies, disorder, crashes, poison and a bad gateway: every ride ends well, and a replay changes nothing."""
    progress = Progress(io.StringIO())
    result = rehearse(cloud, mix(16, seed=3), store=MemoryStore(), progress=progress, cars=6, at_once=40, troubles=0.2)
    assert result.wrong == []
    assert result.poison > 0
    assert sum(result.gateway.values()) > 0
    assert sum(result.report.saga.endings.values()) == 16


def test_a_consumer_without_its_decorator_is_noticed() -> None:
    """Copies alone are enough to show that it takes effect more than once, by whatever means it writes."""
    consumers = ["ride-history", "dispatch", "payment"]
    with cloud_without(consumers) as cloud:
        cloud.build()
        spec, progress = Spec(rides=4, seed=4, duplicates=1), Progress(io.StringIO())
        result = rehearse(cloud, spec, store=MemoryStore(), progress=progress, troubles=0)
    assert result.wrong
    assert [name for name, account in result.report.ledger.consumers.items() if account.doubled] == consumers
