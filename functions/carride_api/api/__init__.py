"""The HTTP API: what a request may ask for, what becomes of it, and how that is told."""
