"""Which published events a consumer has not accounted for. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from carride_idempotency import Policy, observation
from ops.audit.evidence import (
    NEVER,
    AuditedConsumer,
    Effect,
    Evidence,
    Named,
    Published,
    grouped,
)

_CLOCK_SKEW: Final = timedelta(seconds=Policy().clock_skew)
_QUEUES: Final = ("Queue", "RuleDlq", "Dlq")
"""What the names of a consumer's queues end with."""


class Missing(NamedTuple):
    """Published events that a consumer has not accounted for.

    An event is named by its idempotency id, or by EventBridge's id if it breaks the contract.
    """

    lost: tuple[str, ...]
    undecided: tuple[str, ...]
    """They may be among messages that could not be read: `lost` is empty then."""
    in_flight: tuple[str, ...]
    """They, or their latest attempts, are too young to be lost."""
    dropped_early: tuple[str, ...]
    """Those that the consumer dropped before their expiry time."""
    expired: int
    """How many events the consumer dropped after their expiry time. They are not missing."""
    lettered: int
    """How many events without an effect have a dead letter, or had a record that an operator
    deleted. Those that break the contract are left out."""


class _Traces(NamedTuple):
    """What shows that a consumer has dealt with events."""

    applied: frozenset[str]
    """The facts that took effect."""
    fingerprints: Mapping[str, str]
    """Of the payloads that took effect, by fact."""
    forgotten: frozenset[str]
    """Facts whose record an operator deleted. Whether they took effect is not recorded."""
    dead_facts: frozenset[str | None]
    dead_events: frozenset[str | None]
    """The events in dead-letter queues, by EventBridge's id."""
    drops: Mapping[str | None, Sequence[datetime]]
    """When the consumer dropped a fact as expired, by CloudWatch's clock."""
    first_expiry: Mapping[str | None, datetime]
    """The earliest expiry time of a fact's copies."""
    tried: Mapping[str, datetime]
    """When an event was last tried and failed, or its dead letter was last redriven."""

    def account_for(self, event: Published) -> bool:
        """Return whether they show what became of an event."""
        if event.event_id in self.dead_events:
            return True
        if event.fact is None:
            return False
        if self.dropped_after_expiry(event):
            return True
        if self.took_another_payload(event):
            return False
        # A union of these sets for each event would take minutes at 100,000 events.
        is_dead = event.fact in self.dead_facts or event.fact in self.forgotten
        return is_dead or event.fact in self.applied

    def dropped_after_expiry(self, event: Published) -> bool:
        """Return whether each drop of its fact was right, the last one after this copy's expiry."""
        drops = self.drops.get(event.fact)
        if not drops:
            return False
        first_was_right = _has_passed(self.first_expiry[event.fact], min(drops))
        return first_was_right and _has_passed(event.expires or NEVER, max(drops))

    def took_another_payload(self, event: Published) -> bool:
        """Return whether another payload took effect under the event's id.

        There is a dead letter of this event then.
        """
        kept = self.fingerprints.get(event.fact or "")
        if kept is None or event.fingerprint is None:
            return False
        version, _, _ = kept.partition(":")
        is_comparable = event.fingerprint.startswith(f"{version}:")
        return is_comparable and kept != event.fingerprint


def missing_at(evidence: Evidence, consumer: AuditedConsumer) -> Missing:
    """Return the events that a consumer has not accounted for."""
    wanted = [event for event in evidence.published if consumer.takes(event.type)]
    traces = _traces(evidence, consumer, wanted)
    young = set[str]()
    old = set[str]()
    expired = set[str | None]()
    for event in wanted:
        if traces.dropped_after_expiry(event):
            expired.add(event.fact)
        if traces.account_for(event):
            continue
        name = event.fact or event.event_id
        if evidence.is_young(max(event.time, traces.tried.get(name, event.time))):
            young.add(name)
        else:
            old.add(name)
    named = {event.fact for event in wanted if event.fact is not None}
    missing = tuple(sorted(old))
    # Each message holds one event.
    may_be_hidden = len(missing) <= hidden_messages(evidence, consumer)
    return Missing(
        lost=() if may_be_hidden else missing,
        undecided=missing if may_be_hidden else (),
        in_flight=tuple(sorted(young - old)),
        dropped_early=tuple(sorted(name for name in young | old if name in traces.drops)),
        expired=len(expired - traces.applied),
        lettered=len(named - young - old - expired - traces.applied),
    )


def _traces(evidence: Evidence, consumer: AuditedConsumer, wanted: Sequence[Published]) -> _Traces:
    name = consumer.name
    dead_letters = [each for each in evidence.dead_letters if each.consumer == name]
    drops = [
        each
        for each in evidence.deliveries
        if each.consumer == name and each.outcome == observation.EXPIRED
    ]
    expiries = grouped((event.fact, event.expires or NEVER) for event in wanted)
    fingerprints = {}
    for key, fingerprint in evidence.fingerprints.items():
        fact = _fact_of(key, name)
        if fact is not None:
            fingerprints[fact] = fingerprint
    forgotten = {_fact_of(key, name) for key in evidence.forgotten}
    return _Traces(
        applied=applied_facts(evidence, name),
        fingerprints=fingerprints,
        forgotten=frozenset(fact for fact in forgotten if fact is not None),
        dead_facts=frozenset(each.fact for each in dead_letters),
        dead_events=frozenset(each.event_id for each in dead_letters),
        drops=grouped((each.fact, each.time) for each in drops),
        first_expiry={fact: min(times) for fact, times in expiries.items()},
        tried=_tried(evidence, name),
    )


def _tried(evidence: Evidence, consumer: str) -> dict[str, datetime]:
    """Return when events were last tried and failed, or their dead letters were last redriven.

    Another attempt follows, or another dead letter.
    """
    return {name: max(times) for name, times in grouped(_tries(evidence, consumer)).items()}


def _tries(evidence: Evidence, consumer: str) -> Iterator[tuple[str, datetime]]:
    """Yield the events whose attempts failed or whose letters were redriven, each with the time."""
    for delivery in evidence.deliveries:
        name = delivery.fact or delivery.event_id
        has_failed = delivery.consumer == consumer and delivery.outcome == observation.FAILED
        if has_failed and name is not None:
            yield name, delivery.time
    for key, time in evidence.redriven.items():
        fact = _fact_of(key, consumer)
        if fact is not None:
            yield fact, time


def _fact_of(key: str, consumer: str) -> str | None:
    """Return the fact that a record's key names, or None if the record is another consumer's."""
    name, _, fact = key.partition("#")
    return fact if name == consumer else None


def applied_facts(evidence: Evidence, consumer: str) -> frozenset[str]:
    """Return the facts that took effect at a consumer, by its name.

    An effect in another ride's item, or under another type or version, is not its event's.
    """
    stated = grouped((event.fact, event.named) for event in evidence.published)
    facts = set[str]()
    for item in evidence.items:
        if item.consumer == consumer:
            facts.update(effect.fact for effect in item.effects if _is_its(effect, stated))
    return frozenset(facts)


def _is_its(effect: Effect, stated: Mapping[str | None, Sequence[Named | None]]) -> bool:
    """Return whether an effect names what the events under its id state, as far as is known."""
    events = stated.get(effect.fact)
    return effect.named is None or events is None or effect.named in events


def hidden_messages(evidence: Evidence, consumer: AuditedConsumer) -> int:
    """Return how many messages of a consumer's queues could not be read."""
    return sum(evidence.unread.get(f"{consumer.resources}{queue}", 0) for queue in _QUEUES)


def _has_passed(expiry: datetime, time: datetime) -> bool:
    """Return whether an expiry time had passed at a time. Clocks differ a little."""
    return expiry - _CLOCK_SKEW <= time
