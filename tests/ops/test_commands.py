"""The operator's commands: what they understand, and that they only show what they would do until they are told to."""

import json
from typing import Any

import pytest

from ops.__main__ import main
from tests.ops.sites import AWAY, HOME, World


def run(*arguments: str, make: Any = None) -> None:
    """Run a command on a stack in the two regions of this module."""
    main(arguments, make or World().client)


@pytest.mark.parametrize(
    ("until", "end"), [((), "the end of the drain"), (("--until", "2026-11-21T13:00:00Z"), "2026-11-21 13:00:00")]
)
def test_a_failover_is_shown_first(until: tuple[str, ...], end: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All steps, in their order; regions and window are those that were given."""
    run("failover", "--primary", HOME, "--secondary", AWAY, "--since", "2026-11-21T10:00:00Z", *until)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1].strip(":") for line in shown[:5]] == ["steer", "fence", "drain", "republish", "replay"]
    assert f"2026-11-21 10:00:00 UTC until {end}" in shown[3]
    assert shown[5] == "nothing was done; add --yes to do it"


def test_the_result_is_json_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads standard output, a person standard error."""
    run("failover", "--primary", HOME, "--secondary", AWAY, "--json")
    out, err = capsys.readouterr()
    assert len(json.loads(out)["plan"]) == 5
    assert "add --yes" in err


def test_a_replay_is_checked_before_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """What would be refused is not offered."""
    world = World()
    world.replays[AWAY] = [{"ReplayName": "new", "State": "RUNNING"}]
    with pytest.raises(SystemExit) as ended:
        run("replay", "--since", "2h", "--stack", "carride", "--region", HOME, make=world.client)
    assert ended.value.code == 2
    assert "error: us-east-2 has a replay running (new)" in capsys.readouterr().err


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
        ([], "COMMAND"),
        (["audit", "--payments", __file__, "--region", HOME, "--stack", "carride"], "is no ledger of the gateway"),
    ],
)
def test_a_mistake_is_explained(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with what to write instead, and with status 2."""
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_region_out_of_reach_is_no_stack_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said which one does not answer."""
    world = World()
    world.unreachable.add(HOME)
    with pytest.raises(SystemExit):
        run("replay", "--since", "1h", "--region", HOME, "--stack", "carride", make=world.client)
    assert 'AWS could not be reached: Could not connect to the endpoint URL: "https://' in capsys.readouterr().err


def test_a_redrive_of_no_queue_names_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong name is answered with the right ones, and not with a stack trace."""
    with pytest.raises(SystemExit):
        run("redrive", "Nowhere", "--stack", "carride", "--region", HOME)
    assert "error: the stack has no queue Nowhere: it has RideHistoryDlq" in capsys.readouterr().err
