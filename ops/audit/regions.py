"""The evidence of a stack in two regions as if it were of one."""

from collections import Counter
from collections.abc import Sequence

from idempotency import observation
from ops.audit.evidence import Evidence, RideItem


def merged(found: Sequence[tuple[str, Evidence]]) -> Evidence:
    """Return the evidence of both regions, whose replicas of the tables agree.

    An event counts where it was ingested, not in the other region's copy. What a region logged as taken effect counts
    as an effect, whatever the tables say: of two writes to one item the last one wins, and hides the other one.

    Args:
        found: region and evidence.
    """
    each = [evidence for _, evidence in found]
    deliveries = [delivery for evidence in each for delivery in evidence.deliveries]
    taken = Counter((one.consumer, one.fact) for one in deliveries if one.outcome in observation.COMMITTED)
    items: dict[tuple[str, str], RideItem] = {}
    for item in (item for evidence in each for item in evidence.items):
        name = (item.consumer, item.order_id)
        known = items.get(name, item)
        effects = tuple({effect.fact: effect for effect in (*known.effects, *item.effects)}.values())
        reported = sum(taken[item.consumer, effect.fact] for effect in effects)
        items[name] = item._replace(effects=effects, total=max(known.total, item.total, reported))
    unread = Counter[str]()
    for evidence in each:
        unread.update(evidence.unread)
    return each[0]._replace(
        published=[
            event for region, evidence in found for event in evidence.published if event.region in (region, None)
        ],
        deliveries=deliveries,
        dead_letters=[letter for evidence in each for letter in evidence.dead_letters],
        items=list(items.values()),
        outbox={fact: time for evidence in each for fact, time in evidence.outbox.items()},
        unread=dict(unread),
        routes={f"{region}: {name}": seen for region, evidence in found for name, seen in evidence.routes.items()},
        # A fenced region hands nothing to partners: the other one does.
        broken_routes=[
            f"{region}: {what}" for region, evidence in found for what in evidence.broken_routes if "Log" in what
        ],
        archived=sum(evidence.archived for evidence in each),
        at=min(evidence.at for evidence in each),
        since=max(evidence.since for evidence in each),
    )
