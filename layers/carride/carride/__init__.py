"""Rides, their events, and how to publish them.

Import from the modules, so that a cold start loads only what the function uses.
"""
