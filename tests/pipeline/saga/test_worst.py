"""The worst mix in small: nothing lost, nothing doubled.

And without their protection, no consumer gets through it.
"""

import io
from datetime import datetime

import pytest

from carride.simulation_spec import Spec
from local import worst
from local.command import Progress
from local.local_aws import LocalAws
from local.simulated_gateway import Troubles
from local.worst import TROUBLES, Mix, Poisoned, engine, rehearse, worst_mix
from ops import replay
from ops.audit import reading
from ops.stack import StackRef

pytestmark = [pytest.mark.integration, pytest.mark.thorough]


def test_nothing_is_lost_or_doubled_in_the_worst_mix(cloud: LocalAws) -> None:
    """Copies, disorder, crashes, poison and a bad gateway.

    Every ride ends well, and a replay changes nothing.
    """
    progress = Progress(io.StringIO())
    troubles = TROUBLES._replace(hanging=0.04, late=0.04, busy=0.04, failed=0.04, dropped=0.04)
    troubles = troubles._replace(forgotten=0.2, refused=0.1, pending=0.2, kept=0.0)
    mix = Mix(worst_mix(16, seed=3), troubles, cars=6, at_once=40)
    result = rehearse(cloud, mix, progress)
    assert result.wrong == []
    assert result.poison > 0
    assert sum(result.gateway.values()) > 0
    assert sum(result.report.saga.endings.values()) == 16


def test_a_consumer_without_its_decorator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes effect more than once, by whatever means it writes, also by a replay.

    Each other difference is named.
    """
    consumers = ["ride-history", "dispatch", "payment"]
    whole = replay.start

    def half(
        ref: StackRef, name: str, since: datetime, _until: datetime, receivers: list[str]
    ) -> None:
        times = sorted(event.time for event in reading.published(ref))
        whole(ref, name, since, times[len(times) // 2], receivers)

    monkeypatch.setattr(replay, "start", half)
    monkeypatch.setattr(worst, "_poison", lambda _: [Poisoned("payment", "poison", "QUARANTINED")])
    with engine(consumers) as cloud:
        cloud.build()
        mix = Mix(Spec(rides=4, seed=4, duplicates=1, malformed=1), Troubles())
        result = rehearse(cloud, mix, Progress(io.StringIO()))
    wrong = "\n".join(result.wrong)
    not_dead = "payment: not dead-lettered poison"
    dead = "ride-history: dead-lettered None"
    for part in ("RideHistoryTable: changed", "events were not replayed", dead, not_dead):
        assert part in wrong
    assert [
        name for name, account in result.report.ledger.consumers.items() if account.doubled
    ] == consumers
