"""`python -m tests.mutants`: take each rule out of a copy of the layer, run what must notice, and report who did."""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
CATALOGUE: Final = Path(__file__).with_name("catalogue.txt")
LAYER: Final = Path("layers/idempotency/idempotency")
COPIED: Final = (
    *("layers", "tests/conftest.py", "tests/unit/idempotency"),
    *("tests/explorer", "tests/simulation", "pyproject.toml"),
)
SEEDS: Final = "3000"
"""Among so many the simulation must find one that breaks a promise."""
LONGEST_RUN_S: Final = 900
_HEAD: Final = re.compile(r"## (?P<rule>.+)\nin (?P<file>\S+) by (?P<by>.+)\n(?P<lines>(?:[-+] .*\n?)+)")


class Mutant(NamedTuple):
    """One rule taken out of the code."""

    rule: str
    file: str
    """In the layer."""
    code: str
    """Text that stands there once."""
    without: str
    by: str
    """What must notice: pytest's arguments within ``tests/unit/idempotency``; ``explorer`` or ``simulation``, and the
    world in which it must."""


def catalogue() -> Iterator[Mutant]:
    """Yield the mutants of the catalogue, in its order."""
    for entry in _HEAD.finditer(CATALOGUE.read_text()):
        lines = entry["lines"].splitlines()
        code, without = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        yield Mutant(entry["rule"], entry["file"], code if without else f"{code}\n", without, entry["by"])


def main(given: Sequence[str] | None = None) -> int:
    """Run the mutants that were asked for; the exit status says whether each of them was noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Removes each rule of the idempotency layer in turn, in a copy, and expects its proof to go red.",
        epilog="example: python -m tests.mutants --rule 3",
    )
    parser.add_argument("--rule", help="only the mutants of this rule, by its number")
    parser.add_argument("--by", default="", help="only what this must notice: explorer, simulation, a test's file")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON, for machines")
    arguments = parser.parse_args(given)
    chosen = [mutant for mutant in catalogue() if arguments.rule in (None, mutant.rule.split()[0])]
    chosen = [mutant for mutant in chosen if mutant.by.startswith(arguments.by)]
    if not chosen:
        parser.error(f"there is no rule {arguments.rule} for {arguments.by or 'anything'} to notice")

    survivors = []
    with tempfile.TemporaryDirectory(prefix="carride-mutants-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        for number, mutant in enumerate(chosen, 1):
            sign = sign_of(mutant, copy)
            if sign is None:
                survivors.append(mutant.rule)
            if not arguments.json:
                verdict = "SURVIVED" if sign is None else "red"
                print(f"{number:2}/{len(chosen)}  {verdict:8}  {mutant.rule}{sign or ''}", flush=True)
    if arguments.json:
        print(json.dumps({"mutants": len(chosen), "survivors": survivors}))
    else:
        print(f"{len(chosen) - len(survivors)} of {len(chosen)} removed rules were noticed")
    return 1 if survivors else 0


def sign_of(mutant: Mutant, copy: Path) -> str | None:
    """Apply one mutant to the copy, run what must notice it, put the rule back, and return what was noticed."""
    file = copy / LAYER / mutant.file
    whole = file.read_text()
    if whole.count(mutant.code) != 1:
        raise SystemExit(
            f"{mutant.rule}: its code stands {whole.count(mutant.code)} times in {mutant.file}; mend {CATALOGUE.name}"
        )
    file.write_text(whole.replace(mutant.code, mutant.without))
    match mutant.by.split():
        case ["explorer", world]:
            command = ["tests.explorer", "--quick", "--scenario", world]
        case ["simulation", world]:
            command = ["tests.simulation", "--stop", "--seeds", SEEDS, "--world", world]
        case tests:
            command = ["pytest", "-x", "-q", "-p", "no:cacheprovider"]
            command += [f"tests/unit/idempotency/{test}" for test in tests]
    try:
        run = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=copy,
            env={"PYTHONPATH": str(copy / LAYER.parent)},
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN_S,
            check=False,
        )
    finally:
        file.write_text(whole)
    noticed = run.returncode == 1 and ("BROKEN" in run.stdout or command[0] == "pytest")
    if run.returncode != noticed:
        raise SystemExit(f"{mutant.rule}: {command[0]} could not run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    seed = re.search(r"BROKEN  (seed \d+, .*)\n  (.*)", run.stdout)
    return None if not noticed else "" if seed is None else f" ({seed[1]}:{seed[2]})"


if __name__ == "__main__":
    raise SystemExit(main())
