"""The stores on real servers."""

import os
from typing import Final

from tests.idempotency.stores.fixtures import *  # noqa: F403 - the stores, as fixtures
from tests.idempotency.stores.fixtures import over

NAMED: Final = ["named_dynamodb"] if "DYNAMODB_ENDPOINT" in os.environ else []

backend = over("engine_dynamodb", "local_dynamodb", "lean_dynamodb", *NAMED, "real_valkey")
transactional = over("engine_dynamodb", "local_dynamodb", "lean_dynamodb", *NAMED)
