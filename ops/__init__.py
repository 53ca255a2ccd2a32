"""The operator's tools: never deployed."""
