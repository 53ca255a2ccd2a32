"""Each freedom of the world is documented and used."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.world.freedoms import FREEDOMS, rows
from tests.world.run import run
from tests.world.story import ACTS, OUTBOX, WINDOWS, Act, Story, Tier, Window, tell

pytestmark = pytest.mark.proof

PAGE: Final = Path(__file__).parents[2] / "docs" / "simulation.md"
SEEDS: Final = (0, 23, 31, *range(1, 23))
"""The first three use every freedom, as long as nothing is drawn anew."""


def test_the_page_has_the_table_of_freedoms() -> None:
    """`python -m tests.world --freedoms` prints what stands between the marks."""
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- simulate: freedoms -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert table.splitlines() == list(rows())


@pytest.mark.thorough
def test_every_freedom_is_used() -> None:
    """A counter without a row is a KeyError; a row without a counter is one that stays unused."""
    unused = set(FREEDOMS)
    for seed in SEEDS:
        unused -= run(_in_which_much_fails(seed)).counts.keys()
        if not unused:
            return
    pytest.fail(f"no story used {sorted(unused)}")


def _in_which_much_fails(seed: int) -> Story:
    """Return a story in which every service fails now and then."""
    story = tell(seed, Tier.HEAVY, rides=6)
    kinds = (*WINDOWS, OUTBOX)
    windows = tuple(Window(what, begins_s=0.0, lasts_s=7_200.0, share=0.1) for what in kinds)
    acts = tuple(Act(what, at_s) for what in ACTS for at_s in (2_000.0, 20_000.0))
    capped = float(seed % 2)
    return story._replace(
        share=0.3,
        gateways_share=0.8,
        windows=windows,
        ticks=12,
        acts=acts if seed % 3 < 2 else (),
        days=2.5 if seed % 3 == 1 else 0.0,
        has_unreadable=seed % 3 == 1,
        has_peer=seed % 3 == 2,
        fails_over_s=3_000.0,
        by_hand=0.5,
        troubles=story.troubles._replace(capped=capped),
    )
