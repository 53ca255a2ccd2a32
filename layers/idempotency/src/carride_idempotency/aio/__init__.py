"""Calls, blocks and handlers in event loops. It imports `protocol`."""
