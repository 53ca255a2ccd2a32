"""The protocol on real servers, under any interleaving and bad luck."""

import pytest

from tests.stores.machine import check_protocol


@pytest.mark.parametrize(("store", "examples"), [("engine_dynamodb", 15), ("real_valkey", 40)])
def test_protocol_holds_under_any_interleaving(request: pytest.FixtureRequest, store: str, examples: int) -> None:
    """One commit a key, live claims exclusive, attempts counted and no key stuck, whatever is lost, late or killed."""
    check_protocol(request.getfixturevalue(store), examples)
