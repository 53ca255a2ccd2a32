"""What operators' tools know of the consumers: their names, and how they are protected."""

from collections.abc import Iterator
from functools import wraps
from typing import Any, Final

import pytest
from moto import mock_aws

from carride.facts import CarRideAccepted, CarRideCreated
from carride_idempotency import Consumer, Policy
from carride_idempotency.operators.choosing import consumer_of
from carride_idempotency.record import FAILED, QUARANTINED, Record
from ops import keys, records
from ops.audit.evidence import CONSUMERS
from ops.policies import POLICIES
from ops.stack import StackRef
from ops.tests.world import AWAY, empty_stack, put_record
from tests.functions.world import CONSUMED, DEV, STAFF, World, request
from tests.kit.rides import booked

SETTINGS: Final = {"lease", "window", "letter_retention"}
"""What the environment of a function sets, or the wiring that all consumers share."""
ADDED: Final = {each.name for each in CONSUMERS} - CONSUMED.keys()
"""Consumers of `make new-consumer`, which the tests' world does not run."""


@pytest.fixture
def ref() -> Iterator[StackRef]:
    with mock_aws():
        yield empty_stack()


def decisive(policy: Policy) -> dict[str, object]:
    """Return what a policy's function does not take from its environment."""
    fields = Policy.__dataclass_fields__
    return {name: getattr(policy, name) for name in fields if name not in SETTINGS}


def functions_at_work() -> World:
    """Return a world in which every function has protected an operation."""
    world = World()
    world.restart(DEV)
    world.park("car_01")
    world.book(authorizer=STAFF)
    world.publish(CarRideCreated.of(booked("order_1")), CarRideAccepted.of(booked("order_1")))
    world.ask(request("POST", "/carrides/simulate", {"rides": 1}, key="s", authorizer=STAFF))
    world.reconcile()
    return world


def test_the_tools_know_every_consumer_and_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name or a limit that differed would refuse keys, or say what their deliveries do not do."""
    wired = dict[str, Policy]()
    make = Consumer.__init__

    @wraps(make)
    def spy(self: Any, name: str, *arguments: Any, **options: Any) -> None:
        wired[name] = options["policy"]
        make(self, name, *arguments, **options)

    monkeypatch.setattr(Consumer, "__init__", spy)
    functions_at_work()
    assert wired.keys() | ADDED == POLICIES.keys()
    for name, policy in wired.items():
        assert decisive(policy) == decisive(POLICIES[name]), name


def test_every_key_of_a_working_stack_can_be_released_and_forgotten(ref: StackRef) -> None:
    """Keys of operations inside a run, such as ``reconciler/settle#…``, are among them."""
    world = functions_at_work()
    written = [*world.items("idempotency"), *world.items("history")]
    keys = [item["idempotencyKey"] for item in written]
    assert {consumer_of(key) for key in keys} | ADDED == POLICIES.keys()
    assert any(key.startswith("reconciler/settle#") for key in keys)
    for key in keys:
        given_up = Record(key, QUARANTINED, "o", 3, None, None, "1:f", "d", AWAY, 1, 1, error="x")
        put_record(ref, given_up)
        records.release(ref, key).do()
        left = records.StackRecords(ref).read(key)
        assert left is not None
        assert left.status == FAILED
        records.forget(ref, key).do()
        assert records.StackRecords(ref).read(key) is None


def test_a_keys_attempts_are_counted_by_its_consumers_policy(ref: StackRef) -> None:
    """A failed request of the API runs again long after a consumer's key would be quarantined."""
    last = POLICIES["dispatch"].max_attempts
    for key, says in (
        ("dispatch#1", f"all {last} attempts are used up"),
        ("carride-api#1", f"the next delivery runs as attempt {last + 1}"),
        ("carride-api-simulate#1", f"the next delivery runs as attempt {last + 1}"),
    ):
        failed = Record(key, FAILED, "o", last, None, None, "1:f", "d", AWAY, 1, 1, error="x")
        put_record(ref, failed)
        (found,) = keys.keys(ref, key).keys
        assert says in found.says
