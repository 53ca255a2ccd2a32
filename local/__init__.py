"""The real template on a local engine: demo, chaos and fault injection. It is never deployed."""
