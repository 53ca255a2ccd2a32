import pytest

from local.engine import in_flight


def test_work_that_moves_while_it_is_counted_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that becomes an event between the two counts is still counted; kinds without work are listed."""
    monkeypatch.setattr(in_flight, "_kinds", {})
    events, records = list[str](), ["ride"]

    def count_records() -> int:
        events.extend(records)
        records.clear()
        return len(records)

    in_flight.register("events", lambda: len(events))
    in_flight.register("records", count_records)
    assert in_flight.report() == {"events": 1, "records": 0}
