"""Where work comes in: batches, messages, calls and blocks. It imports `aio` and `protocol`."""
