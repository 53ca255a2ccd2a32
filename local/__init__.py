"""The real template on a local engine: demo and fault injection. It is never deployed."""
