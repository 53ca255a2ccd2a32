"""Events as people read them."""

import json
from typing import Any

import pytest

from ops.payloads import readable
from ops.tests.desk_world import event_of, published_detail
from tests.kit.rides import Life

EVENT = event_of(Life("order_01").created)


def test_data_of_the_outbox_is_shown_as_json() -> None:
    """The pipe publishes it in base64; all else is as it was published."""
    published = {"id": "1", "detail": published_detail(EVENT)}
    assert readable(published) == {"id": "1", "detail": EVENT.to_detail()}
    assert "data_base64" in published["detail"]


@pytest.mark.parametrize(
    "event",
    [
        None,
        "text",
        {"detail": EVENT.to_detail()},
        {"detail": {"data_base64": "not base64"}},
        {"detail": {"data_base64": "e30"}},
        {"detail": {"data_base64": "eyI="}},
        {"detail": {"data_base64": 7}},
        {"detail": {"data_base64": "e30=", "data": {}}},
        {"detail": {"data_base64": "W1tb" * 30_000}},
    ],
    ids=lambda each: json.dumps(each)[:40],
)
def test_anything_else_is_shown_as_it_is(event: Any) -> None:
    """What breaks the contract is looked at for how it does so."""
    assert readable(event) == event
