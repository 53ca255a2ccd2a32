"""The verbs that process past events again."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from ops import outbox, replay
from ops.audit import Report, audit
from ops.cli.show import show, table
from ops.replay import ReplayState
from ops.replay.planning import PAUSE, Fate, Progress, ReplayPlan, predict, watch
from ops.stack import OperatorError
from ops.text import counted
from ops.verbs import Moment, Plan, Session, Steps, acts, before, reads


class Replayed(NamedTuple):
    """What became of a replay, by its name."""

    replay: str
    audit: Report


@reads("replay plan", "--since 2h", temporary=True)
def replay_plan(session: Session, *, since: Moment, until: Moment | None = None) -> ReplayPlan:
    """Show what a replay would do: for each consumer and event type, how many events are new, recognised or refused.

    A replay to a temporary rule and queue reads the events out of the archive. Nobody else receives
    them. What the consumers would do is decided by their own code, on copies of their records.

    Args:
        since: Time of the oldest event.
        until: Time of the newest event; now by default.
    """
    end, stack = before(since, until), session.stack
    session.say("reading the archive; on AWS a replay takes some minutes to begin")
    return predict(stack, since, end)


@acts(
    "replay run",
    "--since 2h",
    "--since 2h --only PaymentRule --yes",
    status=lambda done: done.audit.status,
)
def replay_run(
    session: Session,
    *,
    since: Moment,
    until: Moment | None = None,
    only: str | None = None,
    partners: bool = False,
    accept_duplicates: bool = False,
) -> Plan:
    """Replay a part of the archive, wait until nothing is in flight as far as AWS can tell, and audit the stack.

    The replay is named for its region, as the rules of two regions require. It is refused while the
    other region works on the same events. Consumers recognise what has taken effect. Partners would
    receive the events once more, so they get them only with --partners.

    Args:
        since: Time of the oldest event.
        until: Time of the newest event; now by default.
        only: Logical id of the one rule that receives the events.
        partners: Deliver to partners, too.
        accept_duplicates: Do not ask the other region.
    """
    end, stack = before(since, until), session.stack
    replay.check(stack, accept_duplicates=accept_duplicates)
    rules = replay.receivers(stack, only=only, partners=partners)
    name = replay.name_for(stack.region, datetime.now(UTC))
    to = only or ("every rule" if partners else "every rule but those of partners (add --partners)")
    steps = (
        f"replay events with a time from {_spelt(since)} to {_spelt(end)}, for {to}, as {name}",
        "wait until nothing is in flight, as far as AWS can tell",
        "audit the stack",
    )
    for warning in replay.warnings(stack, since, end, datetime.now(UTC)):
        session.say(warning)
    session.say(f"./carride replay plan {_window(since, end)} shows what consumers would do")

    def do() -> Replayed:
        replay.start(stack, name, since, end, rules)
        try:
            for progress in watch(stack, name, pause=PAUSE if stack.local is None else 0.5):
                session.say(progress)
        except KeyboardInterrupt:
            cancel = f"./carride replay cancel {name} --yes"
            raise KeyboardInterrupt(
                f"the replay goes on: ./carride replay status shows it, {cancel} ends it"
            ) from None
        progress.replay.check()
        return Replayed(name, audit(*filter(None, (stack, stack.peer()))))

    return Plan(Steps(steps), do, (stack,))


@reads("replay status", "")
def replay_status(session: Session) -> Iterator[ReplayState]:
    """Show the newest replays of the archive, and what waits in the queues of consumers."""
    found = replay.status(session.stack)
    if not found:
        session.say("there are no replays")
    yield from found


@acts("replay cancel", "us-east-1.20261122T092605.530950Z --yes")
def replay_cancel(session: Session, name: str) -> Plan:
    """Cancel a replay. Consumers process what it has handed over already.

    Args:
        name: Name of the replay.
    """
    stack = session.stack
    found = replay.describe(stack, name)
    if found.handed_over:
        raise OperatorError(f"{name} is {found.state}: there is nothing left to cancel")
    step = (
        f"cancel {name}, which has replayed events until {found.replayed_until or 'no known time'}"
    )

    def cancel() -> ReplayState:
        stack.client("events").cancel_replay(ReplayName=name)
        return replay.describe(stack, name)

    return Plan(Steps((step,)), cancel, (stack,))


def _spelt(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"


def _window(since: datetime, until: datetime) -> str:
    return f"--since {since.isoformat()} --until {until.isoformat()}"


@show.register
def _(found: ReplayPlan) -> RenderableType:
    present = {
        fate for types in found.fates.values() for counts in types.values() for fate in counts
    }
    fates = [fate for fate in Fate if fate in present]
    title = f"{found.events:,} archived events whose own time is in the window; the audit counts by the time of the log"
    rows = table("consumer", "type", *map(str, fates), title=title)
    for consumer, types in found.fates.items():
        for kind, counts in sorted(types.items()):
            rows.add_row(consumer, kind, *(str(counts.get(fate) or "") for fate in fates))
    run = f"do it: ./carride replay run {_window(found.since, found.until)}"
    return Group(rows, Text("\n".join(["", *found.warnings, run])))


@show.register
def _(state: ReplayState) -> RenderableType:
    waiting = f"{counted(state.waiting, 'message')} in queues of consumers"
    what = "nothing is in flight as far as AWS can tell" if state.ended else waiting
    return Text(
        f"{state.name} {state.state}: events from {_spelt(state.since)} to {_spelt(state.until)}; {what}"
    )


@show.register
def _(progress: Progress) -> RenderableType:
    replayed, until = progress.replay.state, progress.replay.replayed_until
    fates = {
        each: ", ".join(f"{count} {fate}" for fate, count in of.items())
        for each, of in progress.fates.items()
    }
    logged = (
        "; ".join(f"{consumer} {counts}" for consumer, counts in fates.items() if counts)
        or "no deliveries"
    )
    replayed += f" until {_spelt(until)}" if until else ""
    return Text(f"{replayed}, {counted(progress.replay.waiting, 'message')} in queues; {logged}")


@show.register
def _(done: Replayed) -> RenderableType:
    quiet = (
        f"{done.replay}: EventBridge has handed over all events, no queue of a consumer holds messages, and the logs "
        "of consumers stand still. AWS does not show deliveries that Lambda will repeat, for up to six hours"
    )
    return Group(show(done.audit), Text(quiet))


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
    step = (
        f"publish {events} that were written to the outbox in {stack.region} from {since} to {end}"
    )
    return Plan(
        Steps((step,)),
        lambda: outbox.republish(stack, stack.region, since, end, session.say),
        (stack,),
    )
