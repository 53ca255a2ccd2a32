"""An exhaustive explorer of the idempotency protocol: every interleaving of a few deliveries of one key.

The consumers in it are real: `process` runs `idempotency.runner.Runner` up to its next request and keeps it there as a
value. `world` says what may happen next (requests land, get lost or come late, processes die, time passes, DynamoDB
deletes), under the real conditions of `idempotency.stores`, and what must hold. `search` goes everywhere.
"""
