"""What is under way now: events, messages in queues, and replays."""

from typing import NamedTuple

from ops.desk.feed import Feed
from ops.text import counted


class UnderWay(NamedTuple):
    """What consumers still have to do, as far as the desk knows.

    A replay delivers copies of events. Most of those were finished before, so they are counted as
    messages, not as events.
    """

    deliveries: int
    """Those of events that a consumer has not finished."""
    messages: int
    """In the queues of consumers: waiting or being processed, of any origin."""
    engine: int
    """Invocations, messages and events that a local engine has in work; 0 on AWS."""
    replays: int
    """Replays that deliver events."""
    is_known: bool
    """Whether the queues and the replays were looked at."""

    @property
    def nothing(self) -> bool:
        """Whether nothing is under way."""
        return self.is_known and not any(
            (self.deliveries, self.messages, self.engine, self.replays)
        )

    @property
    def waits(self) -> str:
        """What waits, in words; empty if nothing is known to wait."""
        if self.messages:
            return f"{counted(self.messages, 'message')} in the queues of consumers"
        if self.engine:
            return f"{counted(self.engine, 'delivery')} in the local engine"
        return ""

    @property
    def runs(self) -> str:
        """Which replays run, in words; empty if none does."""
        if not self.replays:
            return ""
        return "a replay runs" if self.replays == 1 else f"{self.replays:,} replays run"


def under_way(feed: Feed) -> UnderWay:
    """Return what is under way; hold the lock of the feed."""
    queues = [f"{each.resources}Queue" for each in feed.consumers]
    return UnderWay(
        deliveries=sum(len(feed.index.unfinished(name)) for name in feed.index.waiting),
        messages=sum(feed.queues.get(name, 0) for name in queues),
        engine=feed.work or 0,
        replays=len(feed.replays or ()),
        is_known=feed.replays is not None,
    )
