"""A redrive leaves in the queue what it cannot mend."""

import pytest

from local.demo import stack_ref
from ops import redrive
from ops.stack import OperatorError
from tests.pipeline.pipeline import Pipeline


def test_what_no_redrive_changes_stays(pipeline: Pipeline) -> None:
    """Broken events stay, and so does an event whose key is quarantined, until it is released."""
    pipeline.simulate(rides=2, seed=3, poison=1, malformed=6)
    history = stack_ref(pipeline.cloud, pipeline.stack)
    stayed = {"CONTRACT": 4, "its key is quarantined": 1}
    assert redrive.waiting(history, "RideHistoryDlq") == {"CONTRACT": 4, "QUARANTINED": 1}
    assert redrive.redrive(history, "RideHistoryDlq") == stayed
    assert redrive.redrive(history, "RideHistoryDlq", release=True) == {"CONTRACT": 4, "sent": 1}
    ledger = pipeline.ledger()
    # It is poison still: attempted three more times, and given up again.
    assert ledger.dead_lettered["RideHistoryDlq"] == {"CONTRACT": 4, "QUARANTINED": 1}
    assert ledger.balanced


def test_what_the_bus_refuses_again_stays(pipeline: Pipeline) -> None:
    """It is not dead-lettered a second time, and not counted as sent."""
    pipeline.simulate(rides=1, seed=1, malformed=6)
    assert redrive.redrive(stack_ref(pipeline.cloud, pipeline.stack), "ProducerDlq") == {
        "refused: EntryTooLarge": 1,
        "refused: MalformedDetail": 1,
    }
    assert pipeline.ledger().dead_lettered["ProducerDlq"] == {"EntryTooLarge": 1, "MalformedDetail": 1}


@pytest.mark.parametrize("queue", ["OutboxPipeDlq", "CarRideLogRuleDlq", "NowhereDlq"])
def test_a_queue_that_cannot_be_redriven_says_so(pipeline: Pipeline, queue: str) -> None:
    """Its page in the runbooks does, or there is none."""
    with pytest.raises(OperatorError, match=r"docs/runbooks|has no queue"):
        redrive.redrive(stack_ref(pipeline.cloud, pipeline.stack), queue)
