"""What every store must let a consumer promise."""

from pytest_bdd import scenarios

scenarios("idempotency.feature")
