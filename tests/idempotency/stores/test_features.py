"""What every store must let a consumer promise, on real servers."""

from pytest_bdd import scenarios

from tests.idempotency.features.steps import *  # noqa: F403 - step definitions are fixtures, found where they are imported

scenarios("../features/idempotency.feature")
