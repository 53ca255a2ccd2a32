"""What the desk's index keeps while events come and go."""

from collections.abc import Iterator
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from carride.facts import Fact
from carride_idempotency import observation
from ops.audit.evidence import CONSUMERS, PAYMENT, AuditedConsumer, DeadLettered
from ops.desk.index import Index
from ops.tests.desk_world import BEGIN_MS, deliver, event_of, publish
from tests.kit.rides import Life

DEEDS: Final = ("publish", "fail", "give up", "succeed", "lettered", "lost", "sound")
"""The last three are what an audit finds: a letter of the event, that it is lost, or neither."""
HAPPENS: Final = ("accepted", "completed", "cancelled", "assigned")
STEPS: Final = st.lists(
    st.tuples(st.sampled_from(DEEDS), st.integers(0, 2), st.sampled_from(HAPPENS)),
    min_size=20,
    max_size=40,
)


def happening(ride: str, what: str) -> Fact:
    """Return what happens to a ride."""
    fact: Fact = getattr(Life(ride), what)
    return fact


def apply(index: Index, step: tuple[str, int, str], at_ms: int) -> None:
    """Do a step with an event of a ride at payment."""
    deed, ride, what = step
    event = event_of(happening(f"order_{ride}", what))
    if deed == "publish":
        publish(index, event, at_ms)
    elif deed == "fail":
        deliver(index, event, PAYMENT, at_ms, observation.FAILED)
    elif deed == "give up":
        deliver(index, event, PAYMENT, at_ms, observation.DEAD_LETTERED)
    elif deed == "succeed":
        deliver(index, event, PAYMENT, at_ms, observation.RETRIED, attempt=2)
    else:
        letter = DeadLettered("q", "r", PAYMENT, None, event.idempotencyid)
        index.add_lost({PAYMENT: [event.idempotencyid]} if deed == "lost" else {})
        index.add_letters([letter] if deed == "lettered" else [])


def unfinished(index: Index, consumer: AuditedConsumer) -> Iterator[str]:
    """Yield the events that a look at each of them finds unfinished, and that are not lost."""
    for fact in index.facts.values():
        if fact.is_unfinished(consumer) and consumer.name not in fact.lost:
            yield fact.id


@given(STEPS, st.integers(4, 12))
@example([(deed, 0, "completed") for deed in ("fail", "lettered", "publish")], 4)
def test_the_kept_sets_of_unfinished_events_are_those_of_all_events(
    steps: list[tuple[str, int, str]], most: int
) -> None:
    """Whatever the index hears, in which order, and whatever it forgets."""
    index = Index(CONSUMERS, most)
    for number, step in enumerate(steps):
        apply(index, step, BEGIN_MS + number)
        for each in CONSUMERS:
            assert index.unfinished(each.name) == {*unfinished(index, each)}
