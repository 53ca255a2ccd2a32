import argparse
from collections.abc import Callable

import pytest

from local.options import count, positive, share


def test_numbers_that_make_sense_are_read() -> None:
    """A count may be 0, a positive number may not, and a share is from 0 to 1."""
    assert (count("0"), positive("1"), share("0.25")) == (0, 1, 0.25)


@pytest.mark.parametrize(
    ("read", "text"),
    [(count, "-1"), (count, "x"), (count, "1.5"), (positive, "0"), (share, "-0.1"), (share, "1.1"), (share, "nan")],
)
def test_other_text_is_refused_in_words(read: Callable[[str], object], text: str) -> None:
    """Argparse prints the reason."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"whole number|less than|from 0 to 1"):
        read(text)
