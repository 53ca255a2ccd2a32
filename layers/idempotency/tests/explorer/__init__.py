"""Explore every interleaving of a few deliveries of one key.

`process` runs the real `carride_idempotency.protocol.run.Runner` up to its next request. `world`
lists the possible next steps under the real conditions of `carride_idempotency.stores`, and visits
every state. `promises` says what must hold.
"""
