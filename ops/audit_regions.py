"""The one ledger of a stack in two regions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from idempotency import observation
from ops.audit import Clients, evidence, published
from ops.ledger import Evidence, Ledger, State, balance


class Region(NamedTuple):
    """One of the two regions."""

    name: str
    clients: Clients
    outputs: Mapping[str, str]


def audit(regions: Sequence[Region]) -> Ledger:
    """Compute the ledger, when the replicas of the tables agree.

    An event counts where it was ingested, and the other region's copy does not. What a region reported to have taken
    effect counts as an effect, whatever the tables say: of two writes to one item the last one wins, and hides the
    other one.
    """
    found = [evidence(each.clients, each.outputs) for each in regions]
    deliveries = [delivery for each in found for delivery in each.deliveries]
    taken = Counter((each.consumer, each.fact) for each in deliveries if each.outcome in observation.COMMITTED)
    items: dict[tuple[str, str], State] = {}
    for state in (state for each in found for state in each.states):
        name = (state.consumer, state.order_id)
        known = items.get(name, state)
        facts = known.facts | state.facts
        reported = sum(taken[state.consumer, fact] for fact in facts)
        items[name] = state._replace(facts=facts, effects=max(known.effects, state.effects, reported))
    return balance(
        Evidence(
            subscriptions=found[0].subscriptions,
            published=[
                event
                for each in regions
                for event in published(each.clients.logs, each.outputs["CarRideEventsLogGroupName"], each.name)
            ],
            deliveries=deliveries,
            dead_letters=[letter for each in found for letter in each.dead_letters],
            states=list(items.values()),
            outbox=frozenset().union(*(each.outbox for each in found)),
        )
    )
