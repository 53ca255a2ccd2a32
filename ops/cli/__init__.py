"""The operator's command line: `./carride VERB`.

`verbs` keeps the registry of verbs, each a function that returns data; the modules beside it define them. `show` prints
the data, and `app` makes the command line out of the registry and runs it.
"""
