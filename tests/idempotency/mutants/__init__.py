"""Removes each rule of the idempotency layer in turn, and expects its tests to go red."""
