"""`make mutants`: remove each rule of the library, then each guard of the application."""

from pathlib import Path
from typing import Final

from mutants import Catalogue, main
from mutants.library import LIBRARY, SIMULATION

STORIES: Final = "40"
"""How many stories the whole application may need, from the seed on that the catalogue names."""
APPLICATION: Final = Catalogue(
    file=Path(__file__).with_name("application.txt"),
    room=Path(__file__).parents[2],
    code=Path(),
    tests=Path(),
    proofs={
        "simulation": SIMULATION,
        "world": (
            *("tests.world", "--tier", "{}", "--stop"),
            *("--seeds", STORIES, "--first", "{}"),
        ),
        "sabotage": ("tests.world", "--seed", "{}", "--sabotage", "{}"),
    },
)

if __name__ == "__main__":
    raise SystemExit(main([LIBRARY, APPLICATION]))
