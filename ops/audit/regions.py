"""Merges the evidence of a stack's two regions."""

from collections import Counter
from collections.abc import Sequence

from carride_idempotency import observation
from ops.audit.evidence import Evidence, RideItem


def as_one_stack(found: Sequence[tuple[str, Evidence]]) -> Evidence:
    """Return the evidence of both regions, given with their names, as that of one stack. Replicas of tables agree.

    An event counts in the region that ingested it, not as the other region's copy. An effect that a
    region has logged counts even if the tables do not show it: of two writes to one item the later
    one hides the earlier one.
    """
    each = [evidence for _, evidence in found]
    deliveries = [delivery for evidence in each for delivery in evidence.deliveries]
    committed = Counter(
        (one.consumer, one.fact) for one in deliveries if one.outcome in observation.COMMITTED
    )
    items: dict[tuple[str, str], RideItem] = {}
    for item in (item for evidence in each for item in evidence.items):
        name = (item.consumer, item.order_id)
        known = items.get(name, item)
        effects = tuple(
            {effect.fact: effect for effect in (*known.effects, *item.effects)}.values()
        )
        logged = sum(committed[item.consumer, effect.fact] for effect in effects)
        items[name] = item._replace(effects=effects, total=max(known.total, item.total, logged))
    return each[0]._replace(
        published=[
            event
            for region, evidence in found
            for event in evidence.published
            if event.region in (region, None)
        ],
        deliveries=deliveries,
        dead_letters=[message for evidence in each for message in evidence.dead_letters],
        items=list(items.values()),
        outbox={fact: time for evidence in each for fact, time in evidence.outbox.items()},
        unread=sum((Counter(evidence.unread) for evidence in each), Counter[str]()),
        routes={
            f"{region}: {name}": state
            for region, evidence in found
            for name, state in evidence.routes.items()
        },
        # A fenced region delivers nothing to partners; the other region does.
        broken_routes=[
            f"{region}: {why}"
            for region, evidence in found
            for why in evidence.broken_routes
            if "Log" in why
        ],
        archived=sum(evidence.archived for evidence in each),
        at=min(evidence.at for evidence in each),
        since=max(evidence.since for evidence in each),
    )
