"""The catalogue of mutants has each rule of the protocol. `make mutants` checks its entries."""

import re

from mutants import mutants_of
from mutants.library import LIBRARY

RULES = LIBRARY.room / "PROTOCOL.md"


def test_every_mutant_removes_a_named_rule() -> None:
    """The list of rules and the catalogue name the same ones."""
    listed = re.findall(r"^\| \*\*([a-z]+)\*\* \|", RULES.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {mutant.name for mutant in mutants_of(LIBRARY)} == set(listed)
