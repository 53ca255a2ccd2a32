from itertools import pairwise

import pytest
from botocore.exceptions import ReadTimeoutError
from hypothesis import given, settings
from hypothesis import strategies as st

from carride.bus_entry import TOO_LARGE, BusEntry, pack
from carride.publisher import NEEDED_MS, Outcome, PublishError
from tests.kit.fakes import FakeBus, FakeQueue, FakeTime, client_error, publish
from tests.kit.rides import entry

pytestmark = pytest.mark.proof

CODES = st.sampled_from(
    [None, None, None, "InternalFailure", "ThrottlingException", "MalformedDetail"]
)
FAILURES = st.sampled_from(
    [
        None,
        None,
        ReadTimeoutError(endpoint_url="https://events"),
        client_error("ThrottlingException", 400),
        client_error("ValidationException", 400),
        client_error("AccessDeniedException", 400),
    ]
)


@given(st.lists(st.integers(1, 99), max_size=60), st.integers(1, 12), st.integers(100, 250))
def test_batches_are_full_and_within_the_limits(sizes: list[int], most: int, below: int) -> None:
    """Every item is in one batch, in order.

    None is too long or too large, and a batch begins where one is full.
    """
    batches = pack(sizes, int, most=most, below=below)
    assert [size for batch in batches for size in batch] == sizes
    assert all(0 < len(batch) <= most and sum(batch) < below for batch in batches)
    for batch, following in pairwise(batches):
        assert len(batch) == most or sum(batch) + following[0] >= below


@settings(max_examples=60)  # some examples hold many megabytes
@given(
    st.lists(st.sampled_from([None, 300_000, 700_000, TOO_LARGE]), max_size=14),
    st.lists(CODES, max_size=60),
    st.lists(FAILURES, max_size=12),
    st.lists(CODES, max_size=20),
    st.lists(FAILURES, max_size=4),
    st.integers(0, 30_000),
)
def test_whatever_fails_no_event_is_lost_silently(
    sizes: list[int | None],
    answers: list[str | None],
    failures: list[Exception | None],
    queue_answers: list[str | None],
    queue_failures: list[Exception | None],
    remaining_ms: int,
) -> None:
    """Whatever fails, each event is on the bus once, in the queue or in the error, as told."""
    time = FakeTime(remaining_ms)
    answer = iter(answers)
    queue_answer = iter(queue_answers)

    def work(needed_ms: int) -> None:
        assert time.remaining_ms() >= needed_ms, "a call begins only if there is time for it"
        time.work(50)

    bus = FakeBus(
        lambda _: next(answer, None), failures=failures, on_call=lambda _: work(NEEDED_MS)
    )
    queue = FakeQueue(
        lambda _: next(queue_answer, None), failures=queue_failures, on_call=lambda _: work(4_000)
    )
    unsent: list[BusEntry] = []
    asked = [entry(f"order_{number}", size) for number, size in enumerate(sizes)]
    try:
        receipts = publish(asked, bus, queue, time, max_attempts=3)
    except PublishError as error:
        receipts = list(error.receipts)
        unsent = error.entries
    assert [receipt.entry for receipt in receipts] == asked
    assert [receipt.entry for receipt in receipts if receipt.outcome is Outcome.UNSENT] == unsent
    published = {receipt.event_id: receipt.entry.detail for receipt in receipts if receipt.event_id}
    assert published == {str(number): event["Detail"] for number, event in enumerate(bus.events, 1)}
    for receipt in receipts:
        assert (receipt.outcome is Outcome.PUBLISHED) == (receipt.code is None)
        assert receipt.attempts <= 3
    assert sum(receipt.outcome is Outcome.DEAD_LETTERED for receipt in receipts) == len(
        queue.messages
    )
