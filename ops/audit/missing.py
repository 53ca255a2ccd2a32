"""Which published events a consumer has not accounted for. No I/O."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from carride_idempotency import Policy, observation
from ops.audit.evidence import NEVER, AuditedConsumer, Evidence, Published, grouped

_CLOCK_SKEW: Final = timedelta(seconds=Policy().clock_skew)
_QUEUES: Final = ("Queue", "RuleDlq", "Dlq")
"""What the names of a consumer's queues end with."""


class Missing(NamedTuple):
    """Published events that a consumer has not accounted for.

    Each is named by its idempotency id, or by EventBridge's id if it breaks the contract.
    """

    lost: tuple[str, ...]
    undecided: tuple[str, ...]
    """They may be among messages that could not be read: `lost` is empty then."""
    in_flight: tuple[str, ...]
    """They are too young to be lost."""
    dropped_early: tuple[str, ...]
    """Those that the consumer dropped before their expiry time."""
    expired: int
    """How many events the consumer dropped after their expiry time. They are not missing."""


class _Traces(NamedTuple):
    """What shows that a consumer has dealt with events."""

    applied: frozenset[str]
    """The facts that took effect."""
    fingerprints: Mapping[str, str]
    """Of the payloads that took effect, by fact."""
    forgotten: frozenset[str]
    """Facts whose record an operator deleted, or whose letter an erasure did.

    Whether they took effect is not recorded. An event that breaks the contract is named by
    EventBridge's id.
    """
    dead_facts: frozenset[str | None]
    dead_events: frozenset[str | None]
    """The events in dead-letter queues, by EventBridge's id."""
    drops: Mapping[str | None, Sequence[datetime]]
    """When the consumer dropped a fact as expired, by CloudWatch's clock."""
    first_expiry: Mapping[str | None, datetime]
    """The earliest expiry time of a fact's copies."""

    def account_for(self, event: Published) -> bool:
        """Return whether they show what became of an event."""
        if event.event_id in self.dead_events | self.forgotten:
            return True
        if event.fact is None:
            return False
        if self.dropped_after_expiry(event):
            return True
        if self.took_another_payload(event):
            return False
        accounted = self.applied | self.dead_facts | self.forgotten
        return event.fact in accounted

    def dropped_after_expiry(self, event: Published) -> bool:
        """Return whether each drop of its fact was right, the last one after this copy's expiry."""
        drops = self.drops.get(event.fact)
        if not drops:
            return False
        first_was_right = _has_passed(self.first_expiry[event.fact], min(drops))
        return first_was_right and _has_passed(event.expires or NEVER, max(drops))

    def took_another_payload(self, event: Published) -> bool:
        """Return whether another payload took effect under the event's id.

        A dead letter tells of it.
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
    times = grouped(
        (event.fact or event.event_id, event.time)
        for event in wanted
        if not traces.account_for(event)
    )
    old = tuple(sorted(name for name, logged in times.items() if not _are_young(evidence, logged)))
    # Each message holds one event.
    may_be_hidden = len(old) <= _hidden_messages(evidence, consumer)
    expired = {event.fact for event in wanted if traces.dropped_after_expiry(event)}
    return Missing(
        lost=() if may_be_hidden else old,
        undecided=old if may_be_hidden else (),
        in_flight=tuple(sorted(times.keys() - set(old))),
        dropped_early=tuple(sorted(name for name in times if name in traces.drops)),
        expired=len(expired - traces.applied),
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
    prefix = f"{name}#"
    return _Traces(
        applied=applied_facts(evidence, name),
        fingerprints={
            key.removeprefix(prefix): fingerprint
            for key, fingerprint in evidence.fingerprints.items()
            if key.startswith(prefix)
        },
        forgotten=frozenset(
            key.removeprefix(prefix) for key in evidence.forgotten if key.startswith(prefix)
        ),
        dead_facts=frozenset(each.fact for each in dead_letters),
        dead_events=frozenset(each.event_id for each in dead_letters),
        drops=grouped((each.fact, each.time) for each in drops),
        first_expiry={fact: min(times) for fact, times in expiries.items()},
    )


def applied_facts(evidence: Evidence, consumer: str) -> frozenset[str]:
    """Return the facts that took effect at a consumer, by its name."""
    items = [item for item in evidence.items if item.consumer == consumer]
    return frozenset[str]().union(*(item.facts for item in items))


def _hidden_messages(evidence: Evidence, consumer: AuditedConsumer) -> int:
    """Return how many messages of a consumer's queues could not be read."""
    return sum(evidence.unread.get(f"{consumer.resources}{queue}", 0) for queue in _QUEUES)


def _are_young(evidence: Evidence, times: Sequence[datetime]) -> bool:
    return all(map(evidence.is_young, times))


def _has_passed(expiry: datetime, time: datetime) -> bool:
    """Return whether an expiry time had passed at a time. Clocks differ a little."""
    return expiry - _CLOCK_SKEW <= time
