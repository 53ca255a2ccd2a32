"""The conformance suite on the stores that need nothing but this process."""

import pytest

from tests.stores.backends import openers, over
from tests.stores.test_conformance import *  # noqa: F403 - the suite itself, run on this module's fixtures

pytestmark = pytest.mark.proof

__all__ = ["backend", "openers", "transactional"]

backend = over("memory", "fake_dynamodb", "fake_valkey", "fake_redis")
transactional = over("memory", "fake_dynamodb")
