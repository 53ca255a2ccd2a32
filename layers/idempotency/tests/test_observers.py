"""The observers that are ready to use, and several at once."""

import contextlib
import json
import logging
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest
from aws_lambda_powertools import Logger

from carride_idempotency import (
    MemoryStore,
    Observation,
    Operation,
    Policy,
    QuarantinedError,
    emf,
    logged,
    observation,
)
from carride_idempotency.observation import PROTECTED, UNPROTECTED
from carride_idempotency.testing import Crash, DeadLetterBox, ManualClock
from tests.samples import World, consumer_of, event, fail_with

PAGE: Final = Path(__file__).parents[1] / "docs/observing.md"
SEEN: Final = Observation("billing", "Failed", "billing#1", 2, "m1", "KeyError", {"New": "order"})


def test_emf_counts_an_outcome_for_its_consumer(capsys: pytest.CaptureFixture[str]) -> None:
    """The line names its metric and dimension as CloudWatch reads them, and holds their values."""
    emf("Billing", clock=lambda: 1_700_000_000_000)(SEEN)
    printed = capsys.readouterr().out
    assert printed.endswith("}\n")
    line = json.loads(printed)
    metadata = line.pop("_aws")
    assert metadata["Timestamp"] == 1_700_000_000_000
    (directive,) = metadata["CloudWatchMetrics"]
    assert directive == {
        "Namespace": "Billing",
        "Dimensions": [["consumer"]],
        "Metrics": [{"Name": "Failed", "Unit": "Count"}],
    }
    assert line == {
        "Failed": 1,
        "consumer": "billing",
        "outcome": "Failed",
        "key": "billing#1",
        "attempt": 2,
        "delivery": "m1",
        "reason": "KeyError",
        "labels": {"New": "order"},
    }


@pytest.mark.parametrize("outcome", sorted(PROTECTED | {UNPROTECTED}))
def test_every_outcome_is_logged(outcome: str, caplog: pytest.LogCaptureFixture) -> None:
    """What needs attention is a warning, and the record has the observation."""
    with caplog.at_level(logging.INFO):
        logged(logging.getLogger("billing"))(SEEN._replace(outcome=outcome))
    (record,) = caplog.records
    assert record.getMessage() == f"billing: {outcome}"
    expected = {"New", "Retried", "Duplicate", "Busy", "Expired"}
    assert record.levelname == ("INFO" if outcome in expected else "WARNING")
    assert record.__dict__["idempotency"]["key"] == "billing#1"


def test_powertools_logger_logs_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    """Its line has the observation as fields."""
    logged(Logger(service="test-observers"))(SEEN)
    line = json.loads(capsys.readouterr().out)
    assert (line["level"], line["message"]) == ("WARNING", "billing: Failed")
    assert line["idempotency"]["attempt"] == 2


def test_all_observers_hear_of_a_delivery(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """One that raises takes nothing from the next ones."""

    def fail(_: object) -> None:
        raise OSError("no route to the metrics")

    heard: list[Observation] = []
    consumer = world.consumer(observe=[fail, emf("History"), heard.append])
    handler = consumer.event_handler(world.work)
    for _ in range(2):
        handler(event(), world.invocation())
    assert [seen.outcome for seen in heard] == ["New", "Duplicate"]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["outcome"], line[line["outcome"]]) for line in lines] == [
        ("New", 1),
        ("Duplicate", 1),
    ]
    assert "mend the observer" in caplog.text


@pytest.mark.parametrize("dead_letters", [None, DeadLetterBox()], ids=["none", "a queue"])
def test_a_key_that_is_given_up_is_observed_with_or_without_a_queue(
    dead_letters: DeadLetterBox | None,
) -> None:
    """An alarm on ``Quarantined`` sees it; a ``Failed`` would look like one more attempt."""
    world = World()
    settings: dict[str, Any] = {"policy": {"max_attempts": 1}, "dead_letters": dead_letters}
    world.work.step = fail_with(ArithmeticError("no car"))
    handler = world.consumer(**settings).event_handler(world.work)
    with contextlib.suppress(ArithmeticError):
        handler(event(), world.invocation())
    assert [seen.outcome for seen in world.seen] == [
        observation.QUARANTINED if dead_letters is None else observation.DEAD_LETTERED
    ]


def test_the_page_names_every_metric() -> None:
    """The table of the page and its dashboard have the outcomes that there are, and no other."""
    page = PAGE.read_text(encoding="utf-8")
    outcomes = PROTECTED | {UNPROTECTED}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == outcomes
    (body,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    widgets: Any = json.loads(body)["widgets"]
    shown = " ".join(widget["properties"]["metrics"][0][0]["expression"] for widget in widgets)
    names = {name for group in re.findall(r"MetricName=\((.*?)\)", shown) for name in group.split()}
    assert names - {"OR"} <= outcomes


def test_the_alarms_of_the_page_watch_metrics_that_there_are() -> None:
    """An alarm on another name would never ring."""
    page = PAGE.read_text(encoding="utf-8")
    watched = set(re.findall(r"MetricName: (\w+)", page))
    made_by_the_filter = {"UnknownOutcome"}
    assert watched - made_by_the_filter <= PROTECTED
    assert {"Quarantined", "DeadLettered", "UnknownOutcome"} <= watched


@pytest.mark.parametrize("dead_letters", [None, DeadLetterBox()], ids=["none", "a box"])
@pytest.mark.parametrize("crashes", [False, True])
def test_the_filter_of_the_page_finds_unknown_outcomes(
    dead_letters: DeadLetterBox | None, crashes: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a call without an answer, and of a crash that must not be repeated; once for a letter."""
    (pattern,) = re.findall("FilterPattern: '(.*)'", PAGE.read_text(encoding="utf-8"))
    reasons = re.findall(r'\$\.reason = "(.*?)"', pattern)
    clock = ManualClock()
    consumer = consumer_of(
        "mails",
        MemoryStore(clock=clock),
        policy=Policy(on_crash="quarantine" if crashes else "retry", max_attempts=1),
        dead_letters=dead_letters,
        observe=emf("Mails"),
        clock=clock,
    )

    @consumer.function(key="order", name="confirm")
    def confirm(order: str, operation: Operation | None = None) -> None:
        assert operation is not None
        if crashes:
            raise Crash
        operation.external("send", lambda key: 1 / 0)

    with pytest.raises((Crash, ZeroDivisionError)):
        confirm("order-1")
    clock.advance(60)
    with pytest.raises(QuarantinedError):
        confirm("order-1")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [any(fnmatchcase(line["reason"], each) for each in reasons) for line in lines]
    assert any(found)


def test_no_observer_costs_nothing() -> None:
    """Without observers no observation is made, also with an empty list."""
    assert observation.observers_in(observation.ignore) == observation.observers_in([]) == ()
