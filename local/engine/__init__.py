"""MiniStack with the behaviour of AWS that it lacks, for SAM templates on this machine: see README.md.

Each plug-in is one module for one behaviour. Its docstring says what AWS does, what stock MiniStack does and where it
plugs in. This package runs in the environment ``.venv-engine`` and is never deployed.
"""
