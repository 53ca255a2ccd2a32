"""What an operator finds about a stack with duplicates, crashes, poison and broken events."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local.local_aws import ROOT, LocalAws
from ops.audit import Evidence, collect_evidence, judge
from ops.cli.line import INTERRUPTED
from tests.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.integration

type Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def lived(cloud: LocalAws) -> Iterator[tuple[Pipeline, Evidence]]:
    """A stack with a past, and the evidence that the audit reads of it."""
    pipeline = Pipeline(cloud, cloud.deploy_fast("looked-up"))
    faults = {"crashes": 6, "poison": 1, "malformed": 6, "late": 1}
    pipeline.simulate(rides=5, seed=3, duplicates=0.5, older=0.2, **faults)
    yield pipeline, collect_evidence(pipeline.stack)
    cloud.reset()


@pytest.fixture
def ask(lived: tuple[Pipeline, Evidence], capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command, and return what it prints with --json."""

    def ask(*arguments: str) -> Any:
        assert lived[0].carride(*arguments, "--json") == 0
        printed = capsys.readouterr().out
        return (
            [json.loads(each) for each in printed.splitlines()]
            if arguments[0] == "tail"
            else json.loads(printed)
        )

    return ask


def test_each_ride_is_found_as_the_audit_finds_it(
    lived: tuple[Pipeline, Evidence], ask: Ask
) -> None:
    """Its state, the copies of its events, effects, deliveries and dead letters are the same."""
    _, evidence = lived
    named = {
        event.fact: event.named.order_id
        for event in evidence.published
        if event.named and event.fact
    }
    rides = {order_id: ask("ride", order_id) for order_id in set(named.values())}
    assert len(rides) == 5
    assert Counter(ride["state"] for ride in rides.values()) == judge(evidence).saga.endings
    for fact, order_id in named.items():
        (event,) = [each for each in rides[order_id]["events"] if each["id"] == fact]
        copies = [each.event_id for each in evidence.published if each.fact == fact]
        assert sorted(each["event_id"] for each in event["copies"]) == sorted(copies)
        for here in event["consumers"]:
            logged = [
                each
                for each in evidence.deliveries
                if (each.consumer, each.fact) == (here["consumer"], fact)
            ]
            assert Counter(each["outcome"] for each in here["deliveries"]) == Counter(
                each.outcome for each in logged
            )
            left = [
                each
                for each in evidence.dead_letters
                if (each.consumer, each.fact) == (here["consumer"], fact)
            ]
            assert len(here["dead_letters"]) == len(left)
            effects = {
                fact
                for item in evidence.items
                if item.consumer == here["consumer"]
                for fact in item.facts
            }
            assert (here["outcome"] == "took effect") is (fact in effects)


def test_an_event_is_found_by_each_of_its_ids(lived: tuple[Pipeline, Evidence], ask: Ask) -> None:
    """A takeover shows its attempt.

    A broken event shows how it breaks the contract and where it lies.
    """
    _, evidence = lived
    taken_over = next(each for each in evidence.deliveries if each.outcome == "Takeover")
    event = ask("event", str(taken_over.fact))
    by_its_copy = ask("event", event["copies"][0]["event_id"])
    # The log is kept for days that end when it is read.
    assert by_its_copy | {"logged_since": event["logged_since"]} == event
    (here,) = [each for each in event["consumers"] if each["consumer"] == taken_over.consumer]
    assert {each["attempt"] for each in here["deliveries"] if each["outcome"] == "Takeover"} == {2}
    assert here["record"]["attempt"] == 2
    broken = [ask("event", each.event_id) for each in evidence.published if each.fact is None]
    assert broken
    for event in broken:
        assert event["breach"]
        assert [letter["reason"] for at in event["consumers"] for letter in at["dead_letters"]] == [
            "CONTRACT"
        ]


def test_a_quarantined_key_is_found_released_and_forgotten(
    lived: tuple[Pipeline, Evidence], ask: Ask
) -> None:
    """A preview changes nothing, and each key leads to its event, dead letter and record."""
    _, evidence = lived
    keys = [each["key"] for each in ask("keys")["keys"]]
    poison = {
        f"{each.consumer}#{each.fact}"
        for each in evidence.dead_letters
        if each.reason == "QUARANTINED"
    }
    assert {*keys} == poison != set()
    for key in keys:
        event = ask("event", key.partition("#")[2])
        assert key in [
            at["record"]["key"] for at in event["consumers"] if at["outcome"] == "dead-lettered"
        ]
        assert key in [each["key"] for each in ask("keys", "--ride", event["ride"])["keys"]]
        ask("release", key)
        assert ask("keys", key)["keys"][0]["status"] == "QUARANTINED"
        ask("release", key, "--yes")
        assert ask("keys", key)["keys"][0]["attempt"] == 0
        ask("forget", key)
        assert ask("keys", key)["keys"]
        ask("forget", key, "--yes")
        assert ask("keys", key)["keys"] == []
    assert ask("keys")["keys"] == []


def test_the_past_of_the_bus_is_read_once(lived: tuple[Pipeline, Evidence], ask: Ask) -> None:
    """Every event and every delivery, or those of a ride and an outcome."""
    _, evidence = lived
    told, *lines = ask("tail", "--since", "1h", "--no-follow")
    assert len(lines) == len(evidence.published) + len(evidence.deliveries)
    assert told["published"] == len(evidence.published)
    taken_over = Counter(
        each.ride for each in evidence.deliveries if each.ride and each.outcome == "Takeover"
    )
    for ride, times in taken_over.items():
        asked = (
            "tail",
            "--since",
            "1h",
            "--no-follow",
            "--ride",
            str(ride),
            "--outcome",
            "Takeover",
        )
        _, *lines = ask(*asked)
        assert len(lines) == times
    assert taken_over


def test_following_the_bus_ends_normally_with_ctrl_c(lived: tuple[Pipeline, Evidence]) -> None:
    """Nothing is left behind, because nothing was created."""
    command = [sys.executable, "-m", "ops", "tail", "--since", "1h", *lived[0].where]
    environment = {**lived[0].cloud.environment(), "PYTHONPATH": ":".join([str(ROOT), *sys.path])}
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        assert tail.wait(300) == INTERRUPTED
