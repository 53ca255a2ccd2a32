"""What all stories in this process share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _imports_are_kept() -> Iterator[None]:
    """Have the garbage collector not look at what is imported: a story leaves much garbage."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
