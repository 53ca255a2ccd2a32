"""MiniStack with the behaviour of AWS that CarRide rests on and that MiniStack lacks.

``python -m local.engine --port N`` starts MiniStack in this process, bound to loopback, after the plug-ins of
`local.engine.plug_ins` were applied. A plug-in is one module for one behaviour. Its docstring says what AWS
does, what stock MiniStack does and where it plugs in; a canary test fails once stock MiniStack has the behaviour, so
that the module can be deleted. This package runs in the environment ``.venv-engine`` and is never deployed.
"""
