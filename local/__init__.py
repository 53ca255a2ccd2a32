"""The cloud's AWS: a local engine that the real template is deployed on. Never part of a deployed function."""
