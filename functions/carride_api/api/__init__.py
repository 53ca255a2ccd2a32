"""The HTTP API: requests, decisions, and answers."""
