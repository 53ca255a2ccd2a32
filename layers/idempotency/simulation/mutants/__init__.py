"""Remove each rule of a catalogue in turn, in a copy of its room, and expect its proof to fail.

A catalogue is a text with an entry for each rule::

    @@ rule: what it keeps | file | what must fail without it
    - the rule's code, which stands once in the file
    + what stands there without it
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

LONGEST_RUN_S: Final = 900
_ENTRY: Final = re.compile(r"@@ (.+) \| (\S+) \| (.+)\n((?:[-+ ] .*\n?)+)")


class Catalogue(NamedTuple):
    """A list of mutants, and what its entries mean."""

    file: Path
    room: Path
    """The folder that is copied, and in which the proofs run; its ``pyproject.toml`` says where
    Python imports from."""
    code: Path
    """The folder of the files that the entries name, in the room."""
    tests: Path
    """The folder of the tests that the entries name, in the room."""
    proofs: Mapping[str, Sequence[str]]
    """The proofs besides tests: by the first word of what an entry names, the module to run and its
    arguments. An argument ``{}`` stands for the entry's next word, the last one for all others."""


class Mutant(NamedTuple):
    rule: str
    file: Path
    by: str
    """What must fail: tests, or one of the catalogue's proofs."""
    code: str
    """Text that occurs once in the file."""
    without: str
    catalogue: Catalogue

    @property
    def name(self) -> str:
        """The rule's name: of the protocol, or of a room of the application."""
        return self.rule.partition(":")[0]


def mutants_of(source: Catalogue) -> Iterator[Mutant]:
    """Yield the mutants of a catalogue."""
    for rule, file, by, changes in _ENTRY.findall(source.file.read_text()):
        lines = changes.splitlines()
        code, without = (
            "\n".join(line[2:] for line in lines if line[0] in signs) for signs in ("- ", "+ ")
        )
        passage = code if without else f"{code}\n"
        yield Mutant(rule, source.code / file, by, passage, without, source)


def main(catalogues: Sequence[Catalogue], given: Sequence[str] | None = None) -> int:
    """Run the chosen mutants; return 0 if each of them was noticed, otherwise 1."""
    parser = argparse.ArgumentParser(
        prog="make mutants ARGS=…",
        description="Removes each rule of the idempotency layer in turn, in a copy, and expects "
        "its proof to fail; then the guards of the application. First it checks that every entry "
        "of the catalogues still applies. The exit status is 0 only if every removal was noticed.",
        epilog="examples: make mutants ARGS='--rule lease'; make mutants ARGS='--by explorer'",
    )
    parser.add_argument(
        "--rule",
        help="only the mutants of this rule of layers/idempotency/PROTOCOL.md, or of this room: "
        "audit, dispatch, …",
    )
    parser.add_argument(
        "--by",
        default="",
        help="only the mutants that this must notice: explorer, simulation, or a test file",
    )
    options = parser.parse_args(given)
    every = [mutant for source in catalogues for mutant in mutants_of(source)]
    chosen = [mutant for mutant in every if options.rule in (None, mutant.name)]
    chosen = [mutant for mutant in chosen if mutant.by.startswith(options.by)]
    if not chosen:
        parser.error("the catalogue has no such mutant")
    survivors = 0
    number = 0
    for source, mutants in groupby(chosen, key=lambda mutant: mutant.catalogue):
        with tempfile.TemporaryDirectory(prefix="carride-mutants-") as folder:
            copy = Path(folder)
            fill(copy, source.room)
            if wrong := [each for mutant in mutants_of(source) for each in mistakes(mutant, copy)]:
                raise SystemExit("\n".join(wrong))
            for mutant in mutants:
                number += 1
                red = is_noticed(mutant, copy)
                survivors += not red
                verdict = "red" if red else "SURVIVED"
                print(
                    f"{number:2}/{len(chosen)}  {verdict:8}  {mutant.rule}  ({mutant.by})",
                    flush=True,
                )
    print(f"{len(chosen) - survivors} of {len(chosen)} removed rules were noticed")
    return 1 if survivors else 0


def fill(copy: Path, room: Path) -> None:
    """Copy every file of a room that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=room, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        source = room / name
        if source.is_file():  # one that was removed is listed until that is staged
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def mistakes(mutant: Mutant, copy: Path) -> Iterator[str]:
    """Yield why an entry of a catalogue cannot be applied to the copy, or would prove nothing."""
    entry = f"{mutant.catalogue.file.name}: {mutant.rule}"
    file = copy / mutant.file
    if not file.is_file():
        yield f"{entry}: there is no {mutant.file}"
        return
    whole = file.read_text()
    if (count := whole.count(mutant.code)) != 1:
        yield f"{entry}: its code stands {count} times in {mutant.file}"
    if mutant.without == mutant.code:
        yield f"{entry}: it changes nothing"
    if mutant.file.suffix == ".py":
        try:
            compile(whole.replace(mutant.code, mutant.without), str(mutant.file), "exec")
        except SyntaxError as error:
            yield f"{entry}: without its code, {mutant.file} is no Python: {error}"


def is_noticed(mutant: Mutant, copy: Path) -> bool:
    """Apply one mutant to the copy, run what must notice it, and restore the rule."""
    file = copy / mutant.file
    whole = file.read_text()
    command = _proof(mutant)
    file.write_text(whole.replace(mutant.code, mutant.without))
    try:
        run = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=copy,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(_folders(copy)), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN_S,
            check=False,
        )
    finally:
        file.write_text(whole)
    said = run.stdout + run.stderr
    red = run.returncode == 1 and ("BROKEN" in said or command[0] == "pytest")
    if run.returncode and not red:
        raise SystemExit(
            f"{mutant.rule}: {command[0]} could not run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
        )
    return red


def _proof(mutant: Mutant) -> list[str]:
    """Return the module, and its arguments, that must fail without the mutant's rule."""
    first, *words = mutant.by.split()
    source = mutant.catalogue
    if first not in source.proofs:
        tests = [str(source.tests / test) for test in (first, *words)]
        return ["pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    command = list(source.proofs[first])
    gaps = [index for index, argument in enumerate(command) if argument == "{}"]
    for index in gaps[:-1]:
        command[index] = words.pop(0)
    command[gaps[-1]] = " ".join(words)
    return command


def _folders(copy: Path) -> Iterator[str]:
    """Yield the folders of the copy that Python imports from, as the tests do."""
    settings = tomllib.loads((copy / "pyproject.toml").read_text())
    for folder in settings["tool"]["pytest"]["ini_options"]["pythonpath"]:
        yield str(copy / folder)
