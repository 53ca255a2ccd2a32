"""What holds for every test: no real account, and no network outside the tests of the pipeline."""

import functools
import gc
import hashlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import botocore.session
import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from local.local_aws import LocalAws

# What imports and collection make stays until the end: the collector need not look at it again and
# again. `pytest_collection_finish` starts the collector.
gc.disable()

pytest_plugins = ["carride_idempotency.testing.plugin"]

TIERS: Final = ("integration", "peer", "proof", "thorough")
"""The tiers besides the unit tests. A test file says its own: ``pytestmark =
pytest.mark.proof``."""

LONGEST: Final = (
    "tests/template/test_new_consumer.py",
    "tests/pipeline/operator/test_newcomer.py",
    "tests/regions/test_commands.py",
    "tests/containers/test_sam_local.py",
    "tests/pipeline/test_desk.py",
    "tests/regions/test_failover.py",
    "tests/pipeline/test_replay.py",
    "tests/pipeline/e2e/test_demo.py",
    "tests/pipeline/test_once.py",
    "tests/pipeline/test_verify.py",
    "tests/pipeline/test_audit.py",
    "tests/pipeline/test_redrive.py",
    "tests/template/security/test_every_path.py",
    "tests/pipeline/operator/test_runbooks.py",
    "tests/pipeline/saga/test_worst.py",
    "tests/world/test_world.py",
    "tests/world/test_sabotage.py",
    "tests/world/test_freedoms.py",
    "tests/pipeline/test_gradual.py",
    "tests/pipeline/operator/test_restore.py",
    "tests/pipeline/test_lookup.py",
    "tests/regions/test_lost_region.py",
    "tests/pipeline/e2e/test_invoke.py",
)
"""The files that take longest: at the end of a tier, one would leave the other workers idle."""

# Whatever account the shell is logged in to, no test can reach it but those that DYNAMODB_ENDPOINT
# is meant for.
SHELL: Final = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("AWS_")}
ACCOUNT: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
}
"""An account that does not exist."""
os.environ |= ACCOUNT
os.environ |= {
    "CARRIDE_CHANGES": os.devnull,
    "CARRIDE_PLANS": os.devnull,
}
# What a function finds in its environment when it is imported; tests that call it give it settings
# of their own.
FUNCTION_ENVIRONMENT: Final = {
    **{f"{name.upper()}_TABLE": f"{name}s" for name in ("assignment", "booking", "car", "payment")},
    "DEAD_LETTER_QUEUE_URL": "https://sqs.us-east-1.amazonaws.com/000000000000/dead-letters",
    "EVENT_BUS_NAME": "bus",
    "IDEMPOTENCY_STORE": "dynamodb:idempotency",
    "IDEMPOTENCY_TABLE": "idempotency",
    "OPERATOR_TABLE": "operator",
    "RIDE_HISTORY_TABLE": "history",
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
    """Begin with the longest tests, and take the network away from those that need none."""
    items.sort(key=_place)
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in ("integration", "peer")):
            item.add_marker(pytest.mark.disable_socket)


def _place(item: pytest.Item) -> int:
    """Return where an item's file stands in `LONGEST`; the others follow, as they are."""
    file = item.nodeid.partition("::")[0]
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


def pytest_collection_finish() -> None:
    """Have the garbage collector look only at what tests make, and less often."""
    gc.freeze()
    gc.set_threshold(20_000, 20)
    gc.enable()


@pytest.fixture(scope="session")
def cloud() -> "Iterator[LocalAws]":
    """An engine, with what `sam build` makes of the template; Lambda's retries follow soon."""
    from local.local_aws import FAULTS, LocalAws  # noqa: PLC0415 - most tests need no engine

    with LocalAws("--retry-delays=0.2,0.4", *FAULTS) as started:
        started.build()
        yield started


class _Stdout:
    """The standard output of the moment: pytest replaces it for each test."""

    def write(self, text: str) -> int:
        return sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


@pytest.fixture(autouse=True)
def _functions_log_to_stdout() -> None:
    """Let tests capture the logger's lines, although it was imported with another output."""
    if telemetry := sys.modules.get("carride.telemetry"):
        telemetry.logger.logger_handler.stream = _Stdout()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A stack name of this test's own, short enough for the names that are derived from it."""
    test = str(request.node.name)
    readable = re.sub("[^A-Za-z0-9]+", "-", test)[:32].strip("-")
    return f"{readable}-{hashlib.blake2b(test.encode(), digest_size=3).hexdigest()}"
