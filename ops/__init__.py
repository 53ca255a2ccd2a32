"""The operator's tools. They are never deployed."""
