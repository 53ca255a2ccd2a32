from collections.abc import Callable
from typing import Any

import pytest

from carride import clients


@pytest.mark.parametrize(
    ("make", "attempts"), [(clients.events_client, 1), (clients.sqs_client, 1), (clients.dynamodb_client, 3)]
)
def test_a_client_gives_up_before_its_function_ends(make: Callable[[], Any], attempts: int) -> None:
    """All attempts of one call together take less than half of a function's 30 seconds."""
    config = make().meta.config
    assert config.retries["total_max_attempts"] == attempts
    assert attempts * (config.connect_timeout + config.read_timeout) < 15


@pytest.mark.parametrize("make", [clients.events_client, clients.sqs_client])
def test_the_publisher_reckons_with_what_its_clients_take(make: Callable[[], Any]) -> None:
    """The longest call that the publisher leaves time for is the longest that its clients make."""
    config = make().meta.config
    assert (config.connect_timeout + config.read_timeout) * 1000 == clients.LONGEST_CALL_MS
