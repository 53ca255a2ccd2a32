"""The verbs that process past events again."""

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from ops import outbox, plans, replay
from ops.audit import Report, audit
from ops.cli.show import as_fields, show, table
from ops.replay import ReplayState, fates
from ops.replay.planning import PAUSE, Progress, ReplayPlan, predict, standing, watch
from ops.stack import OperatorError, StackRef
from ops.text import counted
from ops.verbs import Moment, Plan, Session, Steps, acts, before, reads

_LOCAL_PAUSE_S: Final = 0.5
"""Between two looks at a local stack, on which nobody pays for them."""


class Replayed(NamedTuple):
    """What became of a replay, by its name."""

    replay: str
    audit: Report


@reads("replay plan", "--since 2h", temporary=True)
def replay_plan(session: Session, *, since: Moment, until: Moment | None = None) -> ReplayPlan:
    """Show what a replay would do with the events of each consumer and type.

    Events are new, recognised or refused. A replay to a temporary rule and queue reads the events
    out of the archive. Nobody else receives them. What the consumers would do is decided by their
    own code, on copies of their records.

    Args:
        since: Time of the oldest event on the bus, as `./carride event` shows it.
        until: Time of the newest event on the bus; now by default.
    """
    stack = session.stack
    end = before(since, until)
    session.say("reading the archive; on AWS a replay takes some minutes to begin")

    def report(count: int) -> None:
        session.say(f"reading the archive: {counted(count, 'event')} so far")

    return predict(stack, since, end, report=report)


@acts(
    "replay run",
    "--since 2h",
    "--since 2h --only payment --yes",
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
) -> Plan[Replayed]:
    """Replay a part of the archive, wait until nothing is in flight, and audit the stack.

    AWS does not show every delivery that is in flight. The replay is named for its region, as the
    rules of two regions require. It is refused while the other region works on the same events.
    Consumers recognise what has taken effect. Partners would receive the events once more, so they
    get them only with --partners.

    Args:
        since: Time of the oldest event on the bus, as `./carride event` shows it.
        until: Time of the newest event on the bus; now by default.
        only: The one consumer that receives the events, or the logical id of a rule.
        partners: Deliver to partners, too.
        accept_duplicates: Do not ask the other region.
    """
    stack = session.stack
    end = before(since, until)
    replay.check(stack, accept_duplicates=accept_duplicates)
    rules = replay.receivers(stack, only=only, partners=partners)
    name = replay.name_for(stack.region, plans.now())
    window = f"from {_spelt(since)} to {_spelt(end)}"
    receivers = _chosen(only, partners=partners)
    steps = (
        f"replay events with a time {window}, for {receivers}, as {name}",
        "wait until nothing is in flight, as far as AWS can tell",
        "audit the stack",
    )
    for warning in replay.warnings(stack, since, end, datetime.now(UTC)):
        session.say(warning)
    session.say(f"./carride replay plan {_window(since, end)} shows what consumers would do")

    def do() -> Replayed:
        replay.start(stack, name, since, end, rules)
        _wait(session, name)
        session.say("auditing the stack")
        return Replayed(name, audit(*stack.regions()))

    exact = {
        "steps": steps,
        "since": since,
        "until": end,
        # By ARN: a rule more, or another archive, is another replay.
        "rules": sorted(rules),
        "archive": stack.outputs["CarRideArchiveArn"],
    }
    return Plan(Steps(steps), do, (stack,), exact=exact)


def _chosen(only: str | None, *, partners: bool) -> str:
    """Return in words which rules receive the events."""
    if only:
        return only
    if partners:
        return "every rule"
    return "every rule but those of partners"


def _wait(session: Session, name: str) -> None:
    """Show a replay's progress until nothing is in flight; a replay that failed is an error."""
    pause = PAUSE if session.stack.local is None else _LOCAL_PAUSE_S
    try:
        for progress in watch(session.stack, name, pause=pause):
            session.say(progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "the replay goes on: ./carride replay status shows it, "
            f"./carride replay cancel {name} --yes ends it"
        ) from None
    progress.replay.check()


class Replays(NamedTuple):
    """The newest replays of a stack."""

    found: tuple[ReplayState, ...]

    def to_json(self) -> list[ReplayState]:
        """Return them as a list."""
        return [*self.found]


@reads("replay status", "")
def replay_status(session: Session) -> Replays:
    """Show the newest replays of the archive, and what waits in the queues of consumers."""
    return Replays(tuple(standing(session.stack)))


@acts("replay cancel", "", "us-east-1.20261122T092605.530950Z --yes")
def replay_cancel(session: Session, name: str | None = None, /) -> Plan[ReplayState]:
    """Cancel a replay. Consumers process what it has handed over already.

    Args:
        name: Name of the replay; by default the only one that has not ended.
    """
    stack = session.stack
    chosen = name or _only_running(stack)
    found = replay.describe(stack, chosen)
    has_ended = found.handed_over
    until = _spelt(found.replayed_until) if found.replayed_until else "no known time"
    step = f"cancel {chosen}, which has replayed events until {until}"
    if has_ended:
        step = f"cancel nothing: {chosen} is {found.state} already"

    def cancel() -> ReplayState:
        if not has_ended:
            _cancel(stack, chosen)
        return replay.describe(stack, chosen)

    # The time up to which a replay has come moves on, and it may end by itself meanwhile.
    exact = {"cancel": chosen}
    return Plan(Steps((step,)), cancel, (stack,), exact=exact, is_empty=has_ended)


def _cancel(stack: StackRef, name: str) -> None:
    """Cancel a replay, unless it has ended since it was looked at."""
    events = stack.client("events")
    try:
        events.cancel_replay(ReplayName=name)
    except events.exceptions.IllegalStatusException:
        if not replay.describe(stack, name).handed_over:
            raise


def _only_running(stack: StackRef) -> str:
    """Return the name of the only replay that has not ended."""
    running = replay.unfinished(stack)
    if not running:
        raise OperatorError(
            f"no replay runs in {stack.region}: there is nothing to cancel; "
            "`./carride replay status` shows the newest replays"
        )
    if len(running) > 1:
        raise OperatorError(
            f"{len(running)} replays run: give the name of one: {', '.join(running)}"
        )
    return running[0]


def _spelt(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"


def _window(since: datetime, until: datetime) -> str:
    return f"--since {_typed(since)} --until {_typed(until)}"


def _typed(time: datetime) -> str:
    """Return a time in UTC as one types it."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


@show.register
def _show_plan(found: ReplayPlan) -> RenderableType:
    command = f"./carride replay run {_window(found.since, found.until)}"
    lines = ["", *found.warnings, f"do it: {command}"]
    said = Text(fates.sentence(found.events, found.fates))
    return Group(said, *_fates(found), Text("\n".join(lines)))


def _fates(found: ReplayPlan) -> Iterator[RenderableType]:
    """Yield a row for each consumer and type with deliveries that one looks for; sum up the rest.

    There is a column for each fate that occurs.
    """
    predicted = fates.rows(found.fates)
    if predicted.looked_for:
        rows = table("consumer", "type", *predicted.heads)
        for row in predicted.looked_for:
            rows.add_row(row.consumer, row.type, *map(_number, row.numbers))
        yield rows
    if predicted.quiet:
        kinds = counted(len(predicted.quiet), "other pair")
        yield Text(f"{kinds} of a consumer and a type: nothing would run anew. --json lists all")


def _number(count: int) -> str:
    """Return a count for a cell of a table, empty for none."""
    return f"{count:,}" if count else ""


@show.register
def _show_states(states: Replays) -> RenderableType:
    if not states.found:
        return "there are no replays"
    return Group(*map(show, states.found))


@show.register
def _show_state(state: ReplayState) -> RenderableType:
    window = f"from {_spelt(state.since)} to {_spelt(state.until)}"
    return Text(f"{state.name} {state.state}: events {window}; {_what_is_left(state)}")


def _what_is_left(state: ReplayState) -> str:
    """Return in words what consumers still have to do."""
    left = list[str]()
    if state.waiting:
        left.append(f"{counted(state.waiting, 'message')} in queues of consumers")
    if state.running:
        left.append(f"{counted(state.running, 'delivery')} in flight")
    if state.running is None and state.logged is not None:
        left.append(f"consumers logged deliveries until {state.logged:%H:%M:%S %Z}")
    if left:
        return ", ".join(left)
    if state.handed_over:
        return "nothing is in flight as far as AWS can tell"
    return "no delivery has been logged lately"


@show.register
def _show_progress(progress: Progress) -> RenderableType:
    state = progress.replay
    until = f" until {_spelt(state.replayed_until)}" if state.replayed_until else ""
    logged = []
    for consumer, counts in progress.fates.items():
        if counts:
            fates = ", ".join(f"{count} {fate}" for fate, count in counts.items())
            logged.append(f"{consumer} {fates}")
    deliveries = "; ".join(logged) or "no deliveries"
    return Text(
        f"{state.state}{until}, {counted(state.waiting, 'message')} in queues; {deliveries}"
    )


@show.register
def _show_replayed(done: Replayed) -> RenderableType:
    quiet = (
        f"{done.replay}: EventBridge has handed over all events, no queue of a consumer holds "
        "messages, and the logs of consumers stand still. AWS does not show deliveries that Lambda "
        "will repeat, for up to six hours"
    )
    return Group(show(done.audit), Text(quiet))


as_fields(outbox.Republished)


@acts("republish", "--since 1d --yes")
def republish(
    session: Session, *, since: Moment, until: Moment | None = None
) -> Plan[outbox.Republished]:
    """Publish again the events in a region's outbox that its pipe may not have published.

    Consumers recognise published events by their ids. Partners receive them again.

    Args:
        since: Time of the oldest event.
        until: Time of the newest event; now by default.
    """
    stack = session.stack
    region = stack.region
    end = before(since, until)
    entries = list(outbox.written(stack, region, since, end))
    events = counted(len(entries), "event")
    window = f"from {_spelt(since)} to {_spelt(end)}"
    step = f"publish {events} that were written to the outbox in {region} {window}"

    def publish() -> outbox.Republished:
        return outbox.publish(stack, entries, session.say)

    hashes = sorted(sha256(entry.detail.encode()).hexdigest() for entry in entries)
    exact = {"step": step, "events": hashes}
    return Plan(Steps((step,)), publish, (stack,), exact=exact, is_empty=not entries)
