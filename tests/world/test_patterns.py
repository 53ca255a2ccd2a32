"""The world's event patterns let through what moto's do."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from moto.events.models import EventPattern

from carride.facts import ALIASES, FACTS
from tests.world.patterns import matches
from tests.world.wiring import REGION, wiring

pytestmark = pytest.mark.proof

SOURCES = ("acr.com.car-ride", "acr.com.car-ride-simulator", "acr.com.car-ride-heartbeat")


def _events() -> Iterator[dict[str, Any]]:
    """Yield events of every type, in both envelopes, from several sources, replayed and not."""
    details: list[dict[str, Any]] = [{}]
    for name in [*FACTS, *ALIASES, "Other"]:
        details.append({"type": name, "specversion": "1.0", "idempotencyid": "1"})
        details.append({"attributes": {"type": name, "idempotencyId": "1"}})
    replays: list[dict[str, str]] = [
        {},
        {"replay-name": f"{REGION}.again"},
        {"replay-name": "plan.again"},
    ]
    for detail in details:
        for source in (
            "acr.com.car-ride",
            "acr.com.car-ride-simulator",
            "acr.com.car-ride-heartbeat",
        ):
            for replay in replays:
                for kind in ("CarRideEvent", "Other"):
                    yield {"source": source, "detail-type": kind, "detail": detail, **replay}


def test_a_rule_lets_through_the_events_that_motos_does() -> None:
    """For every rule of the stack and events of every form."""
    pairs = 0
    for rule in wiring().rules.values():
        peer = EventPattern(None, json.loads(json.dumps(rule.pattern)))
        for event in _events():
            assert matches(rule.pattern, event) == peer.matches_event(cast("Any", event)), event
            pairs += 1
    assert pairs > 2_000


def test_a_condition_that_is_not_known_is_refused() -> None:
    """Otherwise a new one in the template would match nothing here, or everything."""
    with pytest.raises(NotImplementedError, match="teach"):
        matches({"source": [{"suffix": "ride"}]}, {"source": "ride"})
