"""What a reader that cannot take all of a result gets of it."""

import json
from typing import Any, Final, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ops.bounds import LONGEST, page, shortened

MOST: Final = 2_000
VALUES: Final = st.recursive(
    st.none() | st.integers(0, 9**9) | st.text(max_size=40) | st.just("x" * 5_000),
    lambda inner: (
        st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner, max_size=30)
    ),
    max_leaves=60,
)


@given(VALUES, st.integers(0, 40))
def test_a_page_is_never_larger_than_was_asked_for(document: Any, start: int) -> None:
    """Whatever the document is like, and wherever one goes on."""
    assert len(json.dumps(page(document, MOST, start=start).document)) <= MOST


@given(st.lists(st.fixed_dictionaries({"key": st.text(max_size=60)}), max_size=200))
def test_the_pages_of_a_list_have_each_entry_once(entries: list[Any]) -> None:
    """With the cursor of one page, the next begins where it ended."""
    document = {"failures": entries, "hidden": {}}
    found = list[Any]()
    cursor: int | None = 0
    while cursor is not None:
        shown, cursor = page(document, MOST, start=cursor)
        assert shown["hidden"] == {}
        found += shown["failures"]
    assert found == entries


def test_what_fits_is_left_as_it_is() -> None:
    """There is nothing more then."""
    document = {"lost": 0, "problems": {"order_01": ["a", "b"]}}
    assert page(document, MOST) == (document, None)


def test_a_list_that_cannot_be_paged_says_how_much_is_missing() -> None:
    """Two long lists: neither holds more than half."""
    shown, cursor = page({"one": [*range(2_000)], "two": [*range(2_000)]}, MOST)
    assert cursor is None
    for entries in shown.values():
        assert entries[-1] == f"… and {2_000 - len(entries) + 1:,} more"


class Letter(NamedTuple):
    """Something that has no JSON."""

    error: str


class Line(msgspec.Struct):
    """Something that has no JSON either."""

    error: str


def test_data_for_a_terminal_keeps_its_types() -> None:
    """Only strings become shorter, and say how long they are."""
    long = "x" * (LONGEST + 1)
    short = f"{'x' * LONGEST}… (1,001 characters)"
    data = ({"a": [long]}, Letter(long), Line(long), 7)
    assert shortened(data) == ({"a": [short]}, Letter(short), Line(short), 7)
    assert shortened(short[:LONGEST]) == short[:LONGEST]
