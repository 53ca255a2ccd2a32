"""The stores on real servers."""

import os
from typing import Final

import pytest

from tests.stores.backends import openers, over

__all__ = ["backend", "openers", "transactional"]

NAMED: Final = ["named_dynamodb"] if "DYNAMODB_ENDPOINT" in os.environ else []
DYNAMODB: Final = [
    pytest.param(name, marks=pytest.mark.peer)
    for name in ("local_dynamodb", "lean_dynamodb", *NAMED)
]

backend = over(*DYNAMODB, pytest.param("real_valkey", marks=pytest.mark.peer))
transactional = over(*DYNAMODB)
