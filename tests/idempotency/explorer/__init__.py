"""Explores every interleaving of a few deliveries of one key.

`process` runs the real `idempotency.runner.Runner` up to its next request and keeps it there as a value. `world` lists
what may happen next under the real conditions of `idempotency.stores`. `promises` says what must hold. `search` visits
every state.
"""
