"""What verbs return: facts with names, which renderers say."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from types import UnionType
from typing import (
    Any,
    Final,
    NamedTuple,
    TypeAliasType,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pytest
from msgspec import Struct

import ops.cli.app  # noqa: F401 - the verbs, and how what they return looks
from carride_idempotency.operators.explaining import Explained
from carride_idempotency.operators.redriving import Tried
from ops.cli.show import show
from ops.doctor import Finding
from ops.keys import Key, KeyList
from ops.stack import StackRef
from ops.verbs import VERBS, Plan

SENTENCES: Final = frozenset({"says", "sentence", "why"})
"""Names of fields that hold a sentence."""
SAID_BESIDE: Final = frozenset(
    {
        # The library's rendering of a record, whose fields stand beside it.
        (Explained, "says"),
        (Key, "says"),
        # The table of what this machine needs is written in words.
        (Finding, "why"),
        (KeyList, "says"),
        (Tried, "says"),
    }
)


CONSIST: Final = frozenset({Plan, Iterator, UnionType, Union, list})


def parts_of(kind: Any) -> Iterator[Any]:
    """Yield the types of which a type consists: of a choice, a list, a plan; or itself."""
    if isinstance(kind, TypeAliasType):
        kind = kind.__value__
    origin = get_origin(kind) or kind
    if origin not in CONSIST:
        yield origin
    for each in get_args(kind):
        yield from parts_of(each)


def is_typed(kind: Any) -> bool:
    """Return whether a type has fields with names."""
    if not isinstance(kind, type):
        return False
    return hasattr(kind, "_fields") or is_dataclass(kind) or issubclass(kind, Struct)


def within(kinds: Iterable[Any]) -> Iterator[Any]:
    """Yield types, and those of their fields."""
    seen = set[Any]()
    left = [*kinds]
    while left:
        kind = left.pop()
        if kind in seen or not is_typed(kind):
            continue
        seen.add(kind)
        yield kind
        for field in get_type_hints(kind).values():
            left += parts_of(field)


def unfit(function: Callable[..., Any]) -> set[str]:
    """Return what of a verb's result is not of a type with fields, a renderer, and no sentences."""
    shown = set(show.registry) - {object}
    returned = {*parts_of(get_type_hints(function)["return"])}
    found = {f"{kind} has no fields" for kind in returned if not is_typed(kind)}
    found |= {f"{kind} has no renderer" for kind in returned if shown.isdisjoint(kind.__mro__)}
    for kind in within(returned):
        for name, field in get_type_hints(kind).items():
            is_text = str in parts_of(field)
            if name in SENTENCES and is_text and (kind, name) not in SAID_BESIDE:
                found.add(f"{kind}.{name} is a sentence")
    return found


@pytest.mark.parametrize("name", sorted(VERBS))
def test_each_verb_returns_facts_that_a_renderer_says(name: str) -> None:
    """JSON, lines and pages are made of its fields: nobody has to read a sentence back."""
    assert unfit(VERBS[name].function) == set()


class Told(NamedTuple):
    """A result in words."""

    says: str


def a_text(stack: StackRef) -> str:
    return stack.name


def names(stack: StackRef) -> Plan[dict[str, Any]]:
    raise NotImplementedError(stack)


def words(stack: StackRef) -> Iterator[Told]:
    yield Told(stack.name)


@pytest.mark.parametrize(("function", "faults"), [(a_text, 1), (names, 5), (words, 2)])
def test_a_verb_whose_result_is_words_or_has_no_type_is_found(
    function: Callable[..., Any], faults: int
) -> None:
    """A text, a mapping, and a sentence in a field that nobody renders."""
    assert len(unfit(function)) == faults
