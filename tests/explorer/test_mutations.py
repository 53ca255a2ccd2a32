"""The explorer finds what is wrong with the protocol as soon as one of its rules is taken out."""

import pytest

from tests.explorer.mutations import MUTATIONS, Mutation
from tests.explorer.search import explore

MOST_STATES = 500_000
"""A counterexample lies near, or its scenario is too large for it."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_rule_taken_out_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule there is a story in which its promise is broken, step by step."""
    mutation.apply(monkeypatch)
    story = explore(mutation.scenario, max_states=MOST_STATES).story
    assert story is not None
    assert story.promise == mutation.promise
    assert str(story).endswith(f"BROKEN: {mutation.promise}")


def test_a_story_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counterexample can be read from its first step to the broken promise, without the code."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == "a released key keeps its attempts")
    mutation.apply(monkeypatch)
    assert str(explore(mutation.scenario).story) == "\n".join(
        (
            "    0.0 s  D1 is delivered to a machine",
            "    0.0 s  #1 (D1, a machine): insert [IN_PROGRESS of #1, attempt 1, lease to 6.0 s] takes place",
            "    0.0 s  #1 (D1, a machine): handler raises a permanent error",
            "    0.0 s  #1 (D1, a machine): advance [QUARANTINED of #1, attempt 1] takes place",
            "    0.0 s  operator releases the key",
            "BROKEN: a key that was given back is run again",
        )
    )
