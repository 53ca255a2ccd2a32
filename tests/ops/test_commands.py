"""The operator's commands: what they show, and how they refuse."""

import json
from typing import Any

import pytest

from ops.__main__ import main
from tests.ops.world import AWAY, HOME, World

AT_HOME = ("--region", HOME, "--stack", "carride")


def run(*arguments: str, **changes: Any) -> None:
    """Run a command on the stacks of a world."""
    world = World()
    vars(world).update(changes)
    main(arguments, world.client)


@pytest.mark.parametrize(
    ("until", "end"), [((), "the end of the drain"), (("--until", "2026-11-21T13:00:00Z"), "2026-11-21 13:00:00")]
)
def test_a_failover_is_shown_first(until: tuple[str, ...], end: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --yes only the steps and their window are shown; with --json, standard output has only JSON."""
    run("failover", "--since", "2026-11-21T10:00:00Z", "--json", *until)
    out, err = capsys.readouterr()
    *shown, last = err.splitlines()
    assert [f"{number}. {step}" for number, step in enumerate(json.loads(out)["plan"], 1)] == shown
    steps = ["steer", "fence", "drain", "republish", "replay", "start"]
    assert [line.split()[1].strip(":") for line in shown] == steps
    assert f"2026-11-21 10:00:00 UTC until {end}" in shown[3]
    assert last == "nothing was done; add --yes to do it"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["replay", "--since", "yesterday"], "'yesterday' is no time: write 6h, or"),
        (["replay", "--since", "2026-11-21T10:00:00"], "has no time zone: write 2026-11-21T10:00:00Z"),
        (["replay", "--since", "1h", "--until", "2h"], "--since has to be before --until"),
        (["replay"], "--since"),
        (["failover", "--runs-end-in", "soon"], "'soon' is no span of time: write 90s, 10m, 6h or 2d"),
        (["release", "dispatch"], "'dispatch' is no key: it begins with"),
        (["release", "nobody#key"], "'nobody#key' is no key: it begins with"),
        (["deploy-regions", "--set", "Stage"], "'Stage' sets no parameter: write NAME=VALUE"),
        (["audit", "--payments", __file__, *AT_HOME], "is no ledger of the gateway"),
        (["redrive", "Nowhere", *AT_HOME], "error: the stack has no queue Nowhere: it has RideHistoryDlq"),
        ([], "COMMAND"),
    ],
)
def test_a_mistake_is_explained(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what to write instead, and the status is 2."""
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"unreachable": {HOME}}, 'AWS could not be reached: Could not connect to the endpoint URL: "https://'),
        (
            {"replays": {HOME: [], AWAY: [{"ReplayName": "new", "State": "RUNNING"}]}},
            "error: us-east-2 has a replay running (new)",
        ),
    ],
    ids=["out of reach", "refused"],
)
def test_a_replay_that_cannot_be_done_is_not_offered(
    changes: Any, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before --yes, without a stack trace."""
    with pytest.raises(SystemExit) as ended:
        run("replay", "--since", "2h", *AT_HOME, **changes)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
