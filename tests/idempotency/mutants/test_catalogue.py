"""Every mutant still applies, so that `make mutants` does not find out at its end."""

import pytest

from tests.idempotency.mutants.__main__ import LAYER, ROOT, Mutant, catalogue


@pytest.mark.parametrize("mutant", list(catalogue()), ids=lambda mutant: mutant.rule)
def test_code_of_a_mutant_stands_once_in_its_file(mutant: Mutant) -> None:
    """A mutant replaces one passage; otherwise it would change nothing, or too much."""
    assert (ROOT / LAYER / mutant.file).read_text().count(mutant.code) == 1
    assert mutant.without != mutant.code
