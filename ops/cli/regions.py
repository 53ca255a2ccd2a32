"""The verbs of a stack in two regions."""

from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from ops import fence, plans
from ops import regions as two_regions
from ops.audit import Report, audit
from ops.cli.show import as_fields
from ops.failover import (
    LOST_WINDOW,
    PATIENCE,
    Failover,
    Outcome,
    Patience,
    RegionState,
    Started,
    states,
)
from ops.verbs import Moment, Plan, Session, Span, Steps, acts, reads

as_fields(Outcome)
as_fields(Started)
type Waits = Annotated[Patience, Parameter(name="*")]
_LOST: Any = Parameter(show_default=lambda _: "24h: EventBridge's retries")


@acts("failover run", "--since 6h", "--since 6h --yes")
def failover_run(
    session: Session,
    *,
    since: Annotated[Moment | None, _LOST] = None,
    until: Moment | None = None,
    accept_duplicates: bool = False,
    patience: Waits = PATIENCE,
) -> Plan[Outcome]:
    """Let the secondary region take over.

    Steer producers away, fence the primary, wait until its running work has ended and its tables
    have caught up, then process again in the secondary what may be lost.

    If the primary cannot be fenced and drained, the command refuses, and nothing is republished or
    replayed: a primary that is late, not dead, would work on the same events. Waiting for it loses
    nothing and doubles nothing. --accept-duplicates continues at once; what both regions then work
    on can take effect twice. See ops/docs/runbooks/failover.md.

    Args:
        since: Begin of the lost window.
        until: Its end; by default the time when the primary has been drained.
        accept_duplicates: Continue if the primary cannot be fenced.
    """
    failover = Failover(*session.pair, session.say)
    since = since or plans.now() - LOST_WINDOW
    return Plan(
        Steps(tuple(failover.plan(since, until))),
        lambda: failover.run(since, until, patience, accept_duplicates=accept_duplicates),
        session.pair,
    )


@as_fields
class Drilled(NamedTuple):
    """What a drill has done, and whether it all adds up."""

    failover: Outcome
    back: Started
    audit: Report


@acts("failover drill", "--since 1h", "--since 1h --yes", status=lambda done: done.audit.status)
def failover_drill(session: Session, *, since: Moment, patience: Waits = PATIENCE) -> Plan[Drilled]:
    """Fail over, go back at once, and audit both regions.

    It changes what a failover and its end change, and is meant for a stack without traffic that
    matters. If it is interrupted, `failover status` shows where it stands, and `failover run` or
    `failover back` continues.

    Args:
        since: Begin of the window to process again in the secondary.
    """
    failover = Failover(*session.pair, session.say)
    steps = (*failover.plan(since), _back(session), "audit both regions")
    return Plan(
        Steps(steps),
        lambda: Drilled(
            failover=failover.run(since, None, patience),
            back=failover.undo(patience.catches_up_in),
            audit=audit(*session.pair),
        ),
        session.pair,
    )


@as_fields
class Regions(NamedTuple):
    """Both regions of a stack, the primary first."""

    regions: tuple[RegionState, ...]

    @property
    def status(self) -> int:
        """The exit status: 1 if a region is fenced, or may be because it cannot be asked."""
        return int(any(each.fenced_since or each.problem for each in self.regions))


@reads("failover status", status=lambda found: found.status)
def failover_status(session: Session) -> Regions:
    """Show which region works: fences, and replays that have not ended.

    It ends with 1 while a region is fenced or cannot be asked, and otherwise with 0.
    """
    return Regions(states(*session.pair))


@acts("failover back")
def failover_back(
    session: Session, *, catches_up_in: Span = PATIENCE.catches_up_in
) -> Plan[Started]:
    """Go back to the primary region.

    Undo the fence of a failover: the primary starts as it was before when its tables have caught
    up, and gets the producers back. Redrive the secondary's letters first: the primary has kept
    their events. Choose a quiet time: a ride in progress changes regions between its events.

    Args:
        catches_up_in: How long comparing both regions' tables may take.
    """
    failover = Failover(*session.pair, session.say)
    failover.check_undo()
    return Plan(Steps((_back(session),)), lambda: failover.undo(catches_up_in), session.pair)


def _back(session: Session) -> str:
    primary, secondary = session.pair
    return (
        f"start {primary.region} as it was, when it has what {secondary.region} wrote, "
        "and steer producers back"
    )


@as_fields
class Deployed(NamedTuple):
    """How many steps a deployment took."""

    steps: int


@acts("failover deploy", "", "--set Stage=prod --yes", chooses=False)
def failover_deploy(
    session: Session, *, set_: Annotated[tuple[str, ...], Parameter(name="--set")] = ()
) -> Plan[Deployed]:
    """Deploy the stack to the two regions of samconfig.toml.

    Both deploy what was built last: run `sam build` first. The first deployment takes four steps,
    later ones two. An interrupted deployment continues when it is run again. While a region is
    fenced, it is refused.

    Args:
        set_: NAME=VALUE: a parameter of the template, for both regions; it takes precedence over
            samconfig.toml.
    """
    pair = two_regions.configured(
        session.clients, overrides=dict(map(two_regions.assignment, set_))
    )
    for each in pair:
        fence.refuse_deployment(each.stack)
    steps = two_regions.deployment(*pair)
    deployer = two_regions.Deployer()
    primary, secondary = pair

    def carry_out() -> Deployed:
        return Deployed(two_regions.carry_out(steps, pair, deployer, session.say))

    sentences = [str(step) for step in steps]
    preview = Steps(tuple(sentences))
    stacks = (primary.stack, secondary.stack)
    return Plan(preview, carry_out, stacks)
