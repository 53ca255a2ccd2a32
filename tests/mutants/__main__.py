"""`python -m tests.mutants`: take each rule out of a copy of the layer, run its tests there, and report who noticed."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("layers", "tests/__init__.py", "tests/conftest.py", "tests/unit/idempotency", "pyproject.toml")
LONGEST_RUN_S: Final = 120


def main() -> int:
    """Run the mutants that were asked for; the exit status says whether a test noticed each of them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Removes each rule of the idempotency layer in turn, in a copy, and expects its tests to go red.",
        epilog="example: python -m tests.mutants --rule 3",
    )
    parser.add_argument("--rule", help="only the mutants of this rule, by its number")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON, for machines")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.rule in (None, mutant.rule.split()[0])]
    if not chosen:
        parser.error(f"there is no rule {arguments.rule}")

    survivors = []
    with tempfile.TemporaryDirectory(prefix="carride-mutants-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy / name)
        for number, mutant in enumerate(chosen, 1):
            noticed = is_noticed(mutant, copy)
            if not noticed:
                survivors.append(mutant.rule)
            if not arguments.json:
                verdict = "red" if noticed else "SURVIVED"
                print(f"{number:2}/{len(chosen)}  {verdict:8}  {mutant.rule}", flush=True)
    if arguments.json:
        print(json.dumps({"mutants": len(chosen), "survivors": survivors}))
    else:
        print(f"{len(chosen) - len(survivors)} of {len(chosen)} removed rules turned their tests red")
    return 1 if survivors else 0


def is_noticed(mutant: Mutant, copy: Path) -> bool:
    """Apply one mutant to the copy, run its tests, and put the rule back."""
    file = copy / "layers/idempotency/idempotency" / mutant.file
    whole = file.read_text()
    if whole.count(mutant.code) != 1:
        raise SystemExit(
            f"{mutant.rule}: its code stands {whole.count(mutant.code)} times in {mutant.file}; mend MUTANTS"
        )
    file.write_text(whole.replace(mutant.code, mutant.without))
    try:
        tests = [f"tests/unit/idempotency/{test}" for test in mutant.tests.split()]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=copy,
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN_S,
            check=False,
        )
    finally:
        file.write_text(whole)
    if run.returncode not in (0, 1):  # 1: a test failed; anything else: the tests could not be run
        raise SystemExit(f"{mutant.rule}: pytest could not run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.returncode == 1


if __name__ == "__main__":
    raise SystemExit(main())
