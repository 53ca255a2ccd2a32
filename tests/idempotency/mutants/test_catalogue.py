"""Every mutant still applies, so that `make mutants` does not find out at its end."""

import re

import pytest

from tests.idempotency.mutants.__main__ import (
    APPLICATION,
    LAYER,
    LAYERS,
    ROOT,
    Mutant,
    catalogue,
)

RULES = ROOT / LAYER.parent / "PROTOCOL.md"


@pytest.mark.parametrize(
    "mutant", [*catalogue(LAYERS), *catalogue(APPLICATION)], ids=lambda mutant: mutant.rule
)
def test_code_of_a_mutant_stands_once_in_its_file(mutant: Mutant) -> None:
    """A mutant replaces one passage; otherwise it would change nothing, or too much."""
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.code) == 1
    assert mutant.without != mutant.code
    if mutant.file.suffix == ".py":
        compile(text.replace(mutant.code, mutant.without), str(mutant.file), "exec")


def test_every_mutant_removes_a_named_rule() -> None:
    """The list of rules and the catalogue name the same ones."""
    listed = re.findall(r"^\| \*\*([a-z]+)\*\* \|", RULES.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {mutant.name for mutant in catalogue(LAYERS)} == set(listed)
