"""One operation, from its claim to its end. It imports `stores` and `dead_letters`."""
