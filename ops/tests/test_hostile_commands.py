"""Whatever text a stack holds or an argument has: commands show it, and obey none of it."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from moto import mock_aws

from ops import plans
from ops.cli.app import main
from ops.stack import StackRef
from ops.tests.hostile_world import (
    LONG,
    REGION,
    TEXTS,
    hostile_stack,
    obeyed,
    payloads,
    thinned,
)
from ops.verbs import VERBS, Verb

pytestmark = pytest.mark.proof

PAYLOADS: Final = payloads()
MOST_SHOWN: Final = 1_500_000
"""Characters on a terminal, of a stack with some 250 hostile events."""
MOST_OF_A_LINE: Final = 6_000
"""Characters of a line: a few texts that were cut."""
ANSWERED: Final = {0, 1, 3}
RIDE: Final = PAYLOADS[0].event.subject
FACT: Final = PAYLOADS[0].event.idempotencyid
SERVES: Final = "desk"
"""The verb that serves until it is ended; what it serves is tested by itself."""
TELLS: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "letters": [(), ("PaymentDlq",)],
    "keys": [
        (),
        ("--corrupt",),
        ("--status=QUARANTINED",),
        ("--status=COMPLETED", "--limit=3"),
        (f"--ride={RIDE}",),
    ],
    "tail": [("--since=1d", "--no-follow"), ("--since=1d", "--no-follow", "--outcome=Failed")],
    "audit": [("--grace=0s",)],
    "redrive": [("PaymentDlq",), ("PaymentDlq", "--release")],
    "replay status": [()],
    "replay run": [("--since=1h",)],
    "replay cancel": [()],
    "republish": [("--since=1d",)],
    "plans": [()],
    "doctor": [()],
    "failover status": [()],
}
"""Commands that tell of what the whole stack holds."""
ELSEWHERE: Final = {SERVES, "ride", "event", "replay plan"}
"""Verbs that read, but tell of one event, or need an archive."""


class Printed(NamedTuple):
    """What a command has printed, and its exit status."""

    status: int
    out: str
    err: str


class Shell:
    """Runs commands on a stack."""

    def __init__(self, ref: StackRef, capsys: pytest.CaptureFixture[str]) -> None:
        self._ref = ref
        self._capsys = capsys

    def run(self, *command: str) -> Printed:
        """Run a command and check that nothing of what it prints steers a terminal."""
        status = 0
        self._capsys.readouterr()
        try:
            main(command, lambda service, _: self._ref.client(service))
        except SystemExit as ended:
            status = int(ended.code or 0)
        printed = Printed(status, *self._capsys.readouterr())
        for each in (printed.out, printed.err):
            found = obeyed(each)
            assert found is None, (command, each[max(0, found.start() - 80) : found.end()])
        assert "Traceback" not in printed.err
        return printed


@pytest.fixture(scope="module")
def ref() -> Iterator[StackRef]:
    """A stack with every payload."""
    with mock_aws():
        yield hostile_stack(PAYLOADS)


@pytest.fixture
def shell(
    ref: StackRef,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """An operator's shell, whose plans are kept."""
    monkeypatch.setattr(plans, "PLANS", tmp_path)
    return Shell(ref, capsys)


def where(verb: Verb) -> tuple[str, ...]:
    """Return the options that choose the stack, for a verb that has them."""
    return ("--stack=carride", f"--region={REGION}") if verb.chooses else ()


COMMANDS: Final = [(name, given) for name, all_given in TELLS.items() for given in all_given]
IDS: Final = [" ".join((name, *given)) for name, given in COMMANDS]


@pytest.mark.parametrize(("name", "given"), COMMANDS, ids=IDS)
def test_a_terminal_obeys_nothing_that_a_stack_holds(
    shell: Shell, name: str, given: Sequence[str]
) -> None:
    """What is printed has escapes in the place of control characters, and an end."""
    command = (*name.split(), *given, *where(VERBS[name]))
    printed = shell.run(*command)
    assert printed.status in {0, 1, 2, 3}
    assert printed.out or printed.err
    assert len(printed.out) <= MOST_SHOWN
    assert max(map(len, printed.out.splitlines()), default=0) <= MOST_OF_A_LINE


@pytest.mark.parametrize(("name", "given"), COMMANDS, ids=IDS)
def test_json_is_ascii(shell: Shell, name: str, given: Sequence[str]) -> None:
    """With --json nothing but JSON is on standard output."""
    printed = shell.run(*name.split(), *given, "--json", *where(VERBS[name]))
    assert printed.out.isascii()
    if printed.status in ANSWERED:
        comes_in_lines = name == "tail"
        for text in printed.out.splitlines() if comes_in_lines else [printed.out]:
            json.loads(text)


@pytest.mark.parametrize(
    "payload",
    thinned(PAYLOADS[::23], one_in=8, rest=pytest.mark.thorough),
    ids=lambda each: f"{each.place} {each.number}",
)
def test_what_is_told_of_one_event_is_bounded(shell: Shell, payload: Any) -> None:
    """Its ride, the event by both of its ids, and its record."""
    fact = payload.event.idempotencyid
    for command in (
        ("ride", payload.event.subject),
        ("event", fact),
        ("event", payload.event_id),
        ("keys", f"payment#{fact}"),
    ):
        verb = VERBS[command[0]]
        printed = shell.run(*command, *where(verb))
        assert printed.status in {0, 2}
        assert len(printed.out) <= MOST_SHOWN
        assert max(map(len, printed.out.splitlines()), default=0) <= MOST_OF_A_LINE


def test_every_verb_that_reads_the_stack_is_run_on_it() -> None:
    """A new verb needs a command in TELLS."""
    reading = {name for name, verb in VERBS.items() if not verb.acts}
    assert reading - TELLS.keys() == ELSEWHERE


def texts_of(verb: Verb) -> list[str]:
    """Return the names of a verb's arguments that take any text; positional ones without dashes."""
    found = []
    _, *own = inspect.signature(verb.function).parameters.values()
    for each in own:
        if "str" in str(each.annotation):
            is_named = each.kind is inspect.Parameter.KEYWORD_ONLY
            found.append(f"--{each.name.replace('_', '-')}=" if is_named else "")
    return found


TAKING: Final = [each for each in VERBS.values() if each.name != SERVES and texts_of(each)]


@pytest.mark.parametrize("verb", TAKING, ids=lambda each: each.name)
def test_no_argument_is_obeyed(shell: Shell, verb: Verb) -> None:
    """Each text in each argument."""
    for number, text in enumerate([*TEXTS, LONG[1]]):
        given = [f"{name}{text}" for name in texts_of(verb)]
        positional = [each for each in given if not each.startswith("--")]
        options = [each for each in given if each.startswith("--")]
        needed = [] if verb.name not in NEEDS else [NEEDS[verb.name]]
        printed = shell.run(*verb.name.split(), *needed, *options, *where(verb), "--", *positional)
        assert printed.status in {0, 1, 2, 3}, number
        assert len(printed.out) + len(printed.err) <= 50_000


NEEDS: Final = {
    "replay plan": "--since=1h",
    "replay run": "--since=1h",
    "republish": "--since=1h",
    "failover run": "--since=1h",
    "failover drill": "--since=1h",
}
