from collections.abc import Callable
from typing import Any

import pytest

from carride import clients


@pytest.mark.parametrize("make", [clients.events_client, clients.sqs_client])
def test_the_publisher_reckons_with_what_its_clients_take(make: Callable[[], Any]) -> None:
    """The longest call that the publisher leaves time for is the one attempt that its clients make."""
    config = make().meta.config
    assert config.retries["total_max_attempts"] == 1
    assert (config.connect_timeout + config.read_timeout) * 1000 == clients.LONGEST_CALL_MS
