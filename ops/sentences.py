"""The sentences for facts: the line and the page say them alike, and nobody reads them back.

A module with facts registers their sentences:

    @says.register
    def _(need: Need) -> str: ...
"""

from functools import singledispatch


@singledispatch
def says(fact: object) -> str:
    """Return the sentence for a fact, without a capital and a full stop."""
    raise TypeError(f"{type(fact).__name__} has no sentence")
