"""Merges the evidence of a stack's two regions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from carride_idempotency import observation
from ops.audit.evidence import LOG_RULE, DeadLettered, Delivered, Evidence, Published, RideItem


def as_one_stack(found: Sequence[tuple[str, Evidence]]) -> Evidence:
    """Return the evidence of both regions, given with their names, as that of one stack.

    Replicas of tables agree. An event counts in the region that ingested it, not as the other
    region's copy.
    """
    regions = [evidence for _, evidence in found]
    deliveries = list[Delivered]()
    dead_letters = list[DeadLettered]()
    outbox = dict[str, datetime]()
    unread = Counter[str]()
    forgotten = set[str]()
    redriven = dict[str, datetime]()
    for evidence in regions:
        deliveries += evidence.deliveries
        dead_letters += evidence.dead_letters
        outbox |= evidence.outbox
        unread.update(evidence.unread)
        forgotten.update(evidence.forgotten)
        for key, time in evidence.redriven.items():
            redriven[key] = max(time, redriven.get(key, time))
    routes = dict[str, str]()
    for region, evidence in found:
        for name, state in evidence.routes.items():
            routes[f"{region}: {name}"] = state
    return regions[0]._replace(
        published=list(_published(found)),
        deliveries=deliveries,
        dead_letters=dead_letters,
        items=_items(regions, deliveries),
        outbox=outbox,
        unread=unread,
        routes=routes,
        broken_routes=dict(_broken_routes(found)),
        forgotten=forgotten,
        redriven=redriven,
        archived=sum(evidence.archived for evidence in regions),
        at=min(evidence.at for evidence in regions),
        since=max(evidence.since for evidence in regions),
    )


def _published(found: Iterable[tuple[str, Evidence]]) -> Iterable[Published]:
    for region, evidence in found:
        for event in evidence.published:
            if event.region in (region, None):
                yield event


def _broken_routes(found: Iterable[tuple[str, Evidence]]) -> Iterable[tuple[str, str]]:
    """Yield the broken routes of the log. Partners are served by a region that is not fenced."""
    for region, evidence in found:
        for rule, why in evidence.broken_routes.items():
            if rule == LOG_RULE:
                yield f"{region}: {rule}", f"{region}: {why}"


def _items(regions: Iterable[Evidence], deliveries: Iterable[Delivered]) -> list[RideItem]:
    """Return the items of both regions, one for each consumer and ride.

    An effect that a region has logged counts even if the tables do not show it: of two writes to
    one item the later one hides the earlier one.
    """
    commits = Counter(
        (each.consumer, each.fact) for each in deliveries if each.outcome in observation.COMMITTED
    )
    merged = dict[tuple[str, str], RideItem]()
    for evidence in regions:
        for item in evidence.items:
            name = (item.consumer, item.order_id)
            known = merged.get(name, item)
            by_fact = {effect.fact: effect for effect in (*known.effects, *item.effects)}
            logged = sum(commits[item.consumer, fact] for fact in by_fact)
            total = max(known.total, item.total, logged)
            merged[name] = item._replace(effects=tuple(by_fact.values()), total=total)
    return list(merged.values())
