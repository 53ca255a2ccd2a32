"""What holds for every test: no real account, and no network outside the tests of the pipeline."""

import functools
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import botocore.session
import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from local.local_aws import LocalAws

pytest_plugins = ["carride_idempotency.testing.plugin"]

TESTS: Final = Path(__file__).parent
PROOFS: Final = tuple(
    TESTS / "idempotency" / name
    for name in (
        "bench",
        "differential",
        "explorer",
        "simulation",
        "test_distribution.py",
        "test_store_conformance.py",
    )
)
PEERS: Final = tuple(
    TESTS / name for name in ("containers", "idempotency/stores", "pipeline/test_desk.py")
)
INTEGRATION: Final = tuple(
    TESTS / folder for folder in ("engine", "functions/api", "pipeline", "regions", "template")
)

# Whatever account the shell is logged in to, no test can reach it but those that DYNAMODB_ENDPOINT
# is meant for.
SHELL: Final = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("AWS_")}
os.environ |= {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
    "CARRIDE_CHANGES": os.devnull,
}
# What a function finds in its environment when it is imported; tests that call it give it settings
# of their own.
FUNCTION_ENVIRONMENT: Final = {
    **{f"{name.upper()}_TABLE": f"{name}s" for name in ("assignment", "booking", "car", "payment")},
    "DEAD_LETTER_QUEUE_URL": "https://sqs.us-east-1.amazonaws.com/000000000000/dead-letters",
    "EVENT_BUS_NAME": "bus",
    "IDEMPOTENCY_STORE": "dynamodb:idempotency",
    "IDEMPOTENCY_TABLE": "idempotency",
    "IDEMPOTENCY_TRANSPORT": "botocore",  # which moto answers
    "LEASE_SECONDS": "30",
    "OUTBOX_TABLE": "outbox",
    "PAYMENT_GATEWAY_URL": "http://127.0.0.1:9",
    "POWERTOOLS_METRICS_NAMESPACE": "CarRide",
    "POWERTOOLS_SERVICE_NAME": "test",
    "PRODUCER_DLQ_URL": "https://sqs.us-east-1.amazonaws.com/000000000000/producer-dlq",
    "SIMULATED_GATEWAY_TABLE": "gateway",
    "SIMULATOR_FUNCTION_NAME": "simulator",
    "STAGE": "local",
}
os.environ |= FUNCTION_ENVIRONMENT

# A slow machine breaks no property.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# AWS's descriptions of its services are megabytes of JSON, which every session of botocore's would
# read for itself.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the folders of a tier that is not run: importing them takes seconds."""
    tiers = {"not integration": INTEGRATION, "not proof": PROOFS, "not peer": PEERS}
    left_out = [folders for tier, folders in tiers.items() if tier in config.option.markexpr]
    return (
        any(collection_path.is_relative_to(folder) for folders in left_out for folder in folders)
        or None
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by tier, and take the network away from those that need none."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in PEERS):
            item.add_marker(pytest.mark.peer)
        elif any(item.path.is_relative_to(folder) for folder in INTEGRATION):
            item.add_marker(pytest.mark.integration)
        else:
            item.add_marker(pytest.mark.disable_socket)
        if any(item.path.is_relative_to(folder) for folder in PROOFS):
            item.add_marker(pytest.mark.proof)


@pytest.fixture(scope="session")
def cloud() -> "Iterator[LocalAws]":
    """An engine, with what `sam build` makes of the template; Lambda's retries follow soon."""
    from local.local_aws import FAULTS, LocalAws  # noqa: PLC0415 - most tests need no engine

    with LocalAws("--retry-delays=0.2,0.4", *FAULTS) as started:
        started.build()
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A stack name of this test's own, short enough for the names that are derived from it."""
    test = str(request.node.name)
    readable = re.sub("[^A-Za-z0-9]+", "-", test)[:32].strip("-")
    return f"{readable}-{hashlib.blake2b(test.encode(), digest_size=3).hexdigest()}"
