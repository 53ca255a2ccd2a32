"""MiniStack with the behaviour of AWS that it lacks, for SAM templates on this machine.

See README.md.
"""
