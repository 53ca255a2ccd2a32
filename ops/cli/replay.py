"""The verbs that process past events again."""

from datetime import UTC, datetime

from ops import outbox, replay
from ops.cli.verbs import Moment, Plan, Session, Steps, acts, before
from ops.words import counted


@acts("replay run", "--since 2h", "--since 2h --only PaymentRule --yes")
def replay_run(
    session: Session,
    *,
    since: Moment,
    until: Moment | None = None,
    only: str | None = None,
    accept_duplicates: bool = False,
) -> Plan:
    """Replay a part of the archive.

    The replay is named for its region, as the rules of two regions require. It is refused while the other region works
    on the same events. Consumers recognise what has taken effect.

    Args:
        since: Time of the oldest event.
        until: Time of the newest event; now by default.
        only: Logical id of the one rule that receives the events.
        accept_duplicates: Do not ask the other region.
    """
    end, stack = before(since, until), session.stack
    replay.check(stack, accept_duplicates=accept_duplicates)
    name = replay.name_for(stack.region, datetime.now(UTC))
    step = f"replay events with a time from {since} to {end}, for {only or 'every rule'}, as {name}"
    return Plan(Steps((step,)), lambda: {"replay": replay.run(stack, name, since, end, only=only)}, (stack,))


@acts("republish", "--since 1d --yes")
def republish(session: Session, *, since: Moment, until: Moment | None = None) -> Plan:
    """Publish again the events in the outbox of a region that its pipe may not have published.

    Consumers recognise published events by their ids. Partners receive them again.

    Args:
        since: Time of the oldest event.
        until: Time of the newest event; now by default.
    """
    end, stack = before(since, until), session.stack
    events = counted(sum(1 for _ in outbox.written(stack, stack.region, since, end)), "event")
    step = f"publish {events} that were written to the outbox in {stack.region} from {since} to {end}"
    return Plan(Steps((step,)), lambda: outbox.republish(stack, stack.region, since, end, session.say), (stack,))
