"""The protocol on the stores that need nothing but this process, under any interleaving and bad luck."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stores.fixtures import *  # noqa: F403 - the stores, as fixtures
from tests.stores.machine import ProtocolMachine


@pytest.mark.parametrize(("store", "examples"), [("memory", 150), ("moto_dynamodb", 10), ("fake_valkey", 30)])
def test_protocol_holds_under_any_interleaving(request: pytest.FixtureRequest, store: str, examples: int) -> None:
    """One commit a key, live claims exclusive, attempts counted and no key stuck, whatever is lost, late or killed."""
    opener = request.getfixturevalue(store)
    run_state_machine_as_test(
        lambda: ProtocolMachine(opener),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
