"""The shop keeps the layer's promises, a seed is one run, and what is wrong is noticed."""

import os
import re
import subprocess
import sys
from typing import Final

import pytest

from carride_idempotency import Policy
from shop.plan import SOURCES, Copy, Fault, Message, draw
from shop.run import run
from shop.telling import main

pytestmark = pytest.mark.proof


FIRST: Final = range(20)
OTHERS: Final = range(20, 60)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(FIRST, id="the first seeds"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("source", SOURCES)
def test_promises_hold_under_any_faults(source: str, seeds: range) -> None:
    """Nothing is lost or doubled, nothing healthy is given up, and dead letters tell the truth."""
    if source == "queue":  # the one that has most to decide
        seeds = range(2 * seeds.start, 2 * seeds.stop)
    for seed in seeds:
        report = run(draw(seed, source))
        assert not report.broken, f"python -m shop --seed {seed} --source {source}"


def test_a_seed_is_the_same_run_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    """The timeline of a seed depends on nothing else.

    The runs that were lived before in a process do not matter, nor how it hashes strings.
    """
    arguments = ["--seed", "5", "--source", "queue", "--explain"]
    main(arguments)
    told, *_ = capsys.readouterr().out.partition(" simulated hours")
    again = subprocess.run(
        [sys.executable, "-m", "shop", *arguments],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert again.startswith(told)
    assert len(told.splitlines()) > 50


def test_a_copy_acknowledged_for_a_holder_is_covered_by_the_holders_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shard gives up the delivery of a holder that crashed, and then delivers a copy.

    While the lease holds, the copy is acknowledged. The event waits in the shard's on-failure
    destination, and takes effect after its redrive. Without that destination it would be lost.
    """
    plan = draw(0, "kinesis")._replace(
        work="external",
        timeout_s=60,
        receives=2,
        reports=True,
        policy=Policy(lease=30),
        bisects=False,
        parallel=1,
        forever=False,
        messages=(Message(0, 0.0, copies=(Copy(1.0, "resent"),)),),
        faults=(Fault("killed before", 0, 2),),
    )
    report = run(plan)
    told = "\n".join(report.timeline)
    assert re.search(r"up: retried too often(?s:.*)outcome of shop#order-0: Busy\s*\n", told)
    assert not report.broken
    monkeypatch.setattr("shop.sources.Shard._give_up", lambda *_: None)
    assert (0, "it is lost: neither done nor in a dead-letter queue") in run(plan).broken


def test_a_redriven_record_is_as_new_to_its_shard_as_any_other() -> None:
    """A redrive writes a new record, so the mapping sends it again for as long as its age allows.

    A call has time for two of six messages. The store refused all of them for longer than the
    shard sends a record, so an operator sends them again.
    """
    plan = draw(0, "kinesis")._replace(
        work="effects",
        timeout_s=60,
        batch=10,
        reports=True,
        policy=Policy(concurrency=1),
        parallel=1,
        forever=True,
        credentials_s=0.0,
        messages=tuple(Message(number, 0.0, work_s=27.0) for number in range(6)),
        faults=(Fault("outage", None, 0.0, 7200.0),),
    )
    report = run(plan)
    told = "\n".join(report.timeline)
    assert re.search(r"up: too old(?s:.*)operator +sends(?s:.*)received 2", told)
    assert not report.broken


def test_a_broken_promise_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault in the layer is found, and its seed and timeline are printed."""
    monkeypatch.setattr(
        "carride_idempotency.protocol.run.Runner.uses_up_an_attempt", lambda *_: True
    )
    assert main(["--seeds", "80", "--source", "queue", "--stop"]) == 1
    shown = capsys.readouterr().out
    assert "it is healthy and was given up, QUARANTINED" in shown
    assert "again: python -m shop --seed" in shown


def test_a_run_that_is_started_too_late_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Work that times out untouched by any fault is the layer's mistake."""
    monkeypatch.setattr("carride_idempotency.entry.batch.Batch._has_time", lambda _: True)
    assert main(["--seeds", "300", "--source", "queue", "--stop"]) == 1
    assert "it was started without time enough to end, and timed out" in capsys.readouterr().out
