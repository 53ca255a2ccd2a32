"""What every store must let a consumer promise."""

from pytest_bdd import scenarios

scenarios("deliveries.feature", "failures.feature", "concurrency.feature", "crashes.feature", "window.feature")
