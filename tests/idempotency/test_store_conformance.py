"""The conformance suite on the stores that need nothing but this process."""

import pytest

from tests.idempotency.stores.backends import LAYOUTS, openers, over
from tests.idempotency.stores.test_conformance import *  # noqa: F403 - the suite itself, run on this module's fixtures

pytestmark = pytest.mark.proof

__all__ = ["backend", "openers", "transactional"]

EXISTING = [f"fake_{name}" for name in LAYOUTS]  # on DynamoDB Local in stores/conftest.py

backend = over("memory", "fake_dynamodb", "fake_valkey", "fake_redis", *EXISTING)
transactional = over("memory", "fake_dynamodb", *EXISTING)
