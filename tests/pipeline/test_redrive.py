"""A redrive sends what was mended to the one consumer that lacks it, and leaves in the queue what it cannot mend."""

from typing import Any

from local.demo import stack_ref
from ops import letters, redrive
from ops.audit.ledger import Ledger
from tests.pipeline.pipeline import HISTORY, Pipeline

DLQ = "RideHistoryDlq"


def test_what_no_redrive_changes_stays(pipeline: Pipeline) -> None:
    """So do broken events, what the bus refuses, and an event whose key is quarantined, until it is released."""
    pipeline.simulate(rides=2, seed=3, poison=1, malformed=6)
    stack = stack_ref(pipeline.cloud, pipeline.stack)
    for queue, expected in ((DLQ, 5), ("ProducerDlq", 2)):
        plan = redrive.plan(stack, queue)
        assert [verdict.goes for verdict, count in plan.totals.items() for _ in range(count)] == [False] * expected
        assert redrive.redrive(stack, plan).sent == 0
    done = redrive.redrive(stack, redrive.plan(stack, DLQ, release=True))
    assert (done.sent, [first.succeeded for first in done.first]) == (1, [False])
    ledger = pipeline.ledger()
    # It is poison still: attempted three more times, and given up again.
    assert ledger.dead_lettered[DLQ] == {"CONTRACT": 4, "QUARANTINED": 1}
    assert ledger.dead_lettered["ProducerDlq"] == {"EntryTooLarge": 1, "MalformedDetail": 1}
    assert ledger.balanced
    assert max(failure.redriven for failure in letters.letters(stack, DLQ).failures) == 1


def test_mended_letters_take_effect_once(pipeline: Pipeline) -> None:
    """Of 200 letters of three kinds, none but the first of each kind is sent before the fault is mended; then all are.

    No other consumer receives them, and a second redrive changes nothing.
    """
    stack, cloud = stack_ref(pipeline.cloud, pipeline.stack), pipeline.cloud
    functions, function = cloud.client("lambda"), pipeline.stack.resources["RideHistoryFunction"]
    variables = functions.get_function_configuration(FunctionName=function)["Environment"]["Variables"]

    def configure(**changes: str) -> None:
        environment: Any = {"Variables": variables | changes}
        functions.update_function_configuration(FunctionName=function, Environment=environment)

    def published(count: int, seed: int) -> Ledger:
        return pipeline.simulate(rides=count, seed=seed)

    pipeline.break_history()
    published(1, 1)  # the function cannot start
    configure(RIDE_TABLE="nowhere")
    published(25, 2)  # every attempt fails
    functions.remove_permission(FunctionName=function, StatementId=pipeline.stack.resources["RideHistoryRulePermission"])
    before = published(26, 3)
    print(before.dead_lettered, before.published, before.distinct)
    for queue in (DLQ, "RideHistoryRuleDlq"):
        done = redrive.redrive(stack, redrive.plan(stack, queue, release=True))
        print(done)
    pipeline.settle()
    print(letters.letters(stack))
    configure()
    for queue in (DLQ, "RideHistoryRuleDlq"):
        done = redrive.redrive(stack, redrive.plan(stack, queue, release=True))
        print(done)
    after = pipeline.ledger()
    print(after.dead_lettered, after.consumers[HISTORY])
    print(before.consumers)
    print(after.consumers)
    assert 0
