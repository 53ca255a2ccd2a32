"""The conformance suite on the stores that need nothing but this process."""

from tests.idempotency.stores.fixtures import *  # noqa: F403 - the stores, as fixtures
from tests.idempotency.stores.fixtures import over
from tests.idempotency.stores.test_conformance import *  # noqa: F403 - the suite itself, run on this module's fixtures

backend = over("memory", "moto_dynamodb", "fake_valkey", "fake_redis")
transactional = over("memory", "moto_dynamodb")
