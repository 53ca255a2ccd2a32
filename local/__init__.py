"""The real template on a local engine: demo, chaos and fault injection.

Never part of a deployed function.
"""
