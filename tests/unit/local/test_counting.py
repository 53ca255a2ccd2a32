from local.engine.counting import Counts


def test_each_kind_is_counted() -> None:
    """What is left is reported by kind, the kinds with nothing left included."""
    counts = Counts()
    counts.register("events", lambda: 2)
    counts.register("records", lambda: 0)
    assert counts.report() == {"events": 2, "records": 0}


def test_work_that_moves_while_it_is_counted_is_not_missed() -> None:
    """A record becomes an event when the events were counted already, and the records not yet: there is still one."""
    counts, events, records = Counts(), list[str](), ["ride"]

    def count_records() -> int:
        events.extend(records)
        records.clear()
        return len(records)

    counts.register("events", lambda: len(events))
    counts.register("records", count_records)
    assert counts.report() == {"events": 1, "records": 0}
