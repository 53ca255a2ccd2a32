"""The verbs that process past events again."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from ops import outbox, replay
from ops.audit import Report, audit
from ops.cli.show import plain, show, table
from ops.cli.verbs import Moment, Plan, Session, Steps, acts, before, reads
from ops.regions import ROOT
from ops.replay import ReplayState
from ops.replay.planning import Fate, ReplayPlan, plan
from ops.replay.progress import PAUSE, Progress, watch
from ops.words import counted

KEPT_PLAN: Final = ROOT / ".carride" / "replay-plan.json"
"""The last plan that was made on this machine."""
_STARTED: Final = "EventBridge hands over the events, and consumers process them later: see ./carride replay status"
_QUIET: Final = (
    "EventBridge has handed over all events, no queue of a consumer holds messages, and the logs of consumers stand "
    "still. AWS does not show deliveries that Lambda will repeat, which it does for up to six hours"
)


class Replayed(NamedTuple):
    """What became of a replay."""

    replay: str
    """Its name."""
    result: str
    audit: Report | None
    """None if nobody waited for the consumers."""


@reads("replay plan", "--since 2h")
def replay_plan(session: Session, *, since: Moment, until: Moment | None = None) -> ReplayPlan:
    """Show what a replay would do: for each consumer and event type, how many events are new, recognised or refused.

    A replay to a temporary rule and queue reads the events out of the archive. Nobody else receives them. What the
    consumers would do is decided by their own code, on copies of their records.

    Args:
        since: Time of the oldest event.
        until: Time of the newest event; now by default.
    """
    end, stack = before(since, until), session.stack
    session.say("reading the archive; on AWS a replay takes some minutes to begin")
    found = plan(stack, since, end)
    KEPT_PLAN.parent.mkdir(exist_ok=True)
    KEPT_PLAN.write_text(json.dumps(plain(found) | {"stack": [stack.name, stack.region]}), encoding="utf-8")
    return found


@acts(
    "replay run",
    "--since 2h",
    "--since 2h --only PaymentRule --yes",
    status=lambda done: done.audit.status if done.audit else 0,
)
def replay_run(
    session: Session,
    *,
    since: Moment,
    until: Moment | None = None,
    only: str | None = None,
    partners: bool = False,
    background: bool = False,
    accept_duplicates: bool = False,
) -> Plan:
    """Replay a part of the archive, wait until nothing is in flight as far as AWS can tell, and audit the stack.

    The replay is named for its region, as the rules of two regions require. It is refused while the other region works
    on the same events. Consumers recognise what has taken effect. Partners would receive the events once more, so they
    get them only with --partners.

    Args:
        since: Time of the oldest event.
        until: Time of the newest event; now by default.
        only: Logical id of the one rule that receives the events.
        partners: Deliver to partners, too.
        background: Start the replay, and do not wait.
        accept_duplicates: Do not ask the other region.
    """
    end, stack = before(since, until), session.stack
    replay.check(stack, accept_duplicates=accept_duplicates)
    rules = replay.receivers(stack, only=only, partners=partners)
    name = replay.name_for(stack.region, datetime.now(UTC))
    to = only or ("every rule" if partners else "every rule but those of partners (add --partners)")
    steps = [f"replay events with a time from {_spelt(since)} to {_spelt(end)}, for {to}, as {name}"]
    steps += [] if background else ["wait until nothing is in flight, as far as AWS can tell", "audit the stack"]
    for warning in [*replay.warnings(stack, since, end, datetime.now(UTC)), *_planned(session, since, end)]:
        session.say(warning)

    def do() -> Replayed:
        replay.start(stack, name, since, end, rules)
        if background:
            return Replayed(name, _STARTED, None)
        said = None
        try:
            for progress in watch(stack, name, pause=PAUSE if stack.local is None else 0.5):
                if progress[:2] != said:
                    session.say(progress)
                said = progress[:2]
        except KeyboardInterrupt:
            cancel = f"./carride replay cancel {name} --yes"
            raise KeyboardInterrupt(f"the replay goes on: ./carride replay status shows it, {cancel} ends it") from None
        progress.replay.check()
        stacks = [each for each in (stack, stack.peer()) if each is not None]
        return Replayed(name, _QUIET, audit(*stacks))

    return Plan(Steps(tuple(steps)), do, (stack,))


def _planned(session: Session, since: datetime, until: datetime) -> Iterator[str]:
    """Yield what the kept plan of this window says."""
    try:
        kept: dict[str, Any] = json.loads(KEPT_PLAN.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    window = {"stack": [session.stack.name, session.stack.region], **plain({"since": since, "until": until})}
    if window.items() <= kept.items():
        yield f"The plan that was made at {kept['made']} predicts for {kept['events']} events:"
        for consumer, types in kept["fates"].items():
            yield f"  {consumer}: {_counted(sum(map(Counter[str], types.values()), Counter[str]()))}"
    else:
        yield "There is no plan of this window: ./carride replay plan shows what consumers would do"


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
    found = replay.cancellable(stack, name)
    step = f"cancel {name}, which has replayed events until {found.replayed_until or 'no known time'}"
    return Plan(Steps((step,)), lambda: replay.cancel(stack, name), (stack,))


def _spelt(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"


def _counted(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{count} {fate}" for fate, count in counts.items() if count) or "nothing"


@show.register
def _(found: ReplayPlan) -> RenderableType:
    present = {fate for types in found.fates.values() for counts in types.values() for fate in counts}
    fates = [fate for fate in Fate if fate in present]
    rows = table(
        "consumer", "type", *map(str, fates), title=f"{found.events:,} archived events, as a replay finds them"
    )
    for consumer, types in found.fates.items():
        for kind, counts in sorted(types.items()):
            rows.add_row(consumer, kind, *(str(counts.get(fate) or "") for fate in fates))
    run = f"./carride replay run --since {found.since.isoformat()} --until {found.until.isoformat()}"
    return Group(rows, Text("\n".join(["", *found.warnings, f"do it: {run}"])))


@show.register
def _(state: ReplayState) -> RenderableType:
    waiting = _counted({f"in {queue}": count for queue, count in state.waiting.items()})
    what = "nothing is in flight as far as AWS can tell" if state.ended else f"waiting: {waiting}"
    return Text(f"{state.name} {state.state}: events from {_spelt(state.since)} to {_spelt(state.until)}; {what}")


@show.register
def _(progress: Progress) -> RenderableType:
    replayed, state = progress.replay.replayed_until, progress.replay.state
    logged = "; ".join(f"{consumer} {_counted(counts)}" for consumer, counts in progress.fates.items() if counts)
    until = f" until {_spelt(replayed)}" if replayed else ""
    waiting = counted(sum(progress.replay.waiting.values()), "message")
    return Text(f"{state}{until}, {waiting} in queues; {logged or 'no deliveries'}")


@show.register
def _(done: Replayed) -> RenderableType:
    return Group(*([show(done.audit)] if done.audit else []), Text(f"{done.replay}: {done.result}"))


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
