"""What holds for every test of the library: no real account, no network, time that stands still."""

import functools
import gc
import os
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import botocore.session
import hypothesis
import pytest

from carride_idempotency.testing import ManualClock
from tests.samples import World

# What imports and collection make stays until the end: the collector need not look at it again and
# again. `pytest_collection_finish` starts the collector.
gc.disable()

# An environment that has the library as a distribution loads its plugin by itself.
if not entry_points(group="pytest11", name="carride_idempotency"):
    pytest_plugins = ["carride_idempotency.testing.plugin"]

TIERS: Final = ("integration", "peer", "proof", "thorough")
"""The tiers besides the unit tests. A test file says its own: ``pytestmark =
pytest.mark.proof``."""

# Whatever account the shell is logged in to, no test can reach it but those that DYNAMODB_ENDPOINT
# is meant for.
SHELL: Final = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("AWS_")}
os.environ |= {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
    "DEAD_LETTER_QUEUE_URL": "https://sqs.us-east-1.amazonaws.com/000000000000/dead-letters",
    "IDEMPOTENCY_STORE": "dynamodb:idempotency",
    "IDEMPOTENCY_TRANSPORT": "botocore",  # which moto answers
}

# A slow machine breaks no property.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# AWS's descriptions of its services are megabytes of JSON, which every session of botocore's would
# read for itself.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the files of a tier that ``-m`` leaves out: importing them takes seconds."""
    chosen = config.option.markexpr
    if not chosen or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    own = re.search(r"^pytestmark = .*?mark\.(\w+)", text, re.MULTILINE | re.DOTALL)
    if own is not None and f"not {own[1]}" in chosen:
        return True
    wanted = [tier for tier in TIERS if re.search(rf"(?<!not )\b{tier}\b", chosen)]
    if wanted and not any(f"mark.{tier}" in text for tier in wanted):
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take the network away from the tests that need none."""
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in ("integration", "peer")):
            item.add_marker(pytest.mark.disable_socket)


def pytest_collection_finish() -> None:
    """Have the garbage collector look only at what tests make, and less often."""
    gc.freeze()
    gc.set_threshold(20_000, 20)
    gc.enable()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world() -> World:
    return World()
