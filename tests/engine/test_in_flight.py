import pytest

from local.engine import in_flight


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count this test's kinds only."""
    monkeypatch.setattr(in_flight, "_kinds", {})


def test_each_kind_is_counted() -> None:
    """What is left is reported by kind, the kinds with nothing left included."""
    in_flight.register("events", lambda: 2)
    in_flight.register("records", lambda: 0)
    assert in_flight.report() == {"events": 2, "records": 0}


def test_work_that_moves_while_it_is_counted_is_not_missed() -> None:
    """A record that becomes an event between the two counts is still counted."""
    events, records = list[str](), ["ride"]

    def count_records() -> int:
        events.extend(records)
        records.clear()
        return len(records)

    in_flight.register("events", lambda: len(events))
    in_flight.register("records", count_records)
    assert in_flight.report() == {"events": 1, "records": 0}
