"""The stores on real servers."""

import os
from typing import Final

from tests.idempotency.stores.backends import openers, over

__all__ = ["backend", "openers", "transactional"]

NAMED: Final = ["named_dynamodb"] if "DYNAMODB_ENDPOINT" in os.environ else []

backend = over("engine_dynamodb", "local_dynamodb", "lean_dynamodb", *NAMED, "real_valkey")
transactional = over("engine_dynamodb", "local_dynamodb", "lean_dynamodb", *NAMED)
