"""Powertools' idempotency utility and this layer, in the same adversities side by side."""
