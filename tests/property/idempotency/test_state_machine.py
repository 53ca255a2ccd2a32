"""The protocol on the stores that need nothing but this process, under any interleaving and bad luck."""

import pytest

from tests.stores.fixtures import *  # noqa: F403 - the stores, as fixtures
from tests.stores.machine import check_protocol


@pytest.mark.parametrize(
    ("store", "examples"), [("memory", 80), ("moto_dynamodb", 2), ("fake_valkey", 8), ("guides_sqlite", 4)]
)
def test_protocol_holds_under_any_interleaving(request: pytest.FixtureRequest, store: str, examples: int) -> None:
    """One commit a key, live claims exclusive, attempts counted and no key stuck, whatever is lost, late or killed."""
    check_protocol(request.getfixturevalue(store), examples)
