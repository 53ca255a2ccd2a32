"""Rides, their events, and how to publish them.

Import from the modules: each function pays at its cold start for those it uses, and for no other.
"""
