"""The rules of the library, and what must fail without each."""

from pathlib import Path
from typing import Final

from mutants import Catalogue

SEEDS: Final = "3000"
"""How many seeds the simulation may need to find a broken promise."""
SIMULATION: Final = ("shop", "--stop", "--seeds", SEEDS, "--source", "{}")
LIBRARY: Final = Catalogue(
    file=Path(__file__).with_name("catalogue.txt"),
    room=Path(__file__).parents[2],
    code=Path("src/carride_idempotency"),
    tests=Path("tests"),
    proofs={"explorer": ("tests.explorer", "--scenario", "{}"), "simulation": SIMULATION},
)
