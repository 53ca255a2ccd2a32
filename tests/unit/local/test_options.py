import argparse

import pytest

from local import chaos, demo
from local.options import count, positive, share


@pytest.mark.parametrize("text", ["-1", "x", "1.5", ""])
def test_a_count_is_a_whole_number_that_is_large_enough(text: str) -> None:
    """What is no such number is refused in words."""
    assert (count("0"), positive("1")) == (0, 1)
    with pytest.raises(argparse.ArgumentTypeError, match=r"whole number|less than 0"):
        count(text)


@pytest.mark.parametrize("text", ["-0.1", "1.1", "x", "nan"])
def test_a_share_is_from_0_to_1(text: str) -> None:
    """What is no such number is refused in words."""
    assert share("0.25") == 0.25
    with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 1"):
        share(text)


@pytest.mark.parametrize(
    ("parse", "words"),
    [
        (demo.parse, ["--rides", "0"]),
        (demo.parse, ["--duplicates", "2"]),
        (chaos.parse, ["--rides", "-5"]),
        (chaos.parse, ["--seeds", "0"]),
        (chaos.parse, ["--gateway", "lots"]),
    ],
)
def test_nothing_is_started_for_what_cannot_be(
    parse: object, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A command line that makes no sense ends with status 2 and the option's name, before anything is built."""
    assert callable(parse)
    with pytest.raises(SystemExit) as left:
        parse(words)
    assert left.value.code == 2
    assert words[0] in capsys.readouterr().err
