"""The verbs that look at a whole stack, give it something to do, or serve."""

import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from carride.decoding import FieldError, json_name, shaped
from carride.overdue import LIMIT
from carride.simulation_spec import Spec
from carride_idempotency.operators.plans import SavedPlan
from ops import fleet as garage
from ops import plans, simulation
from ops.audit import DEFAULT_GRACE, Report, audit, gateway_payments
from ops.audit.evidence import GatewayPayment
from ops.cli.show import Layouts, as_fields, show, table
from ops.desk import PORT, open_browser, serving
from ops.finding import is_quiet
from ops.simulation import AT_ONCE, Published
from ops.stack import OperatorError, StackRef
from ops.text import counted
from ops.verbs import (
    COUNT,
    PORT_NUMBER,
    POSITIVE,
    RATE,
    SHARE,
    Plan,
    Session,
    Span,
    Steps,
    acts,
    reads,
)
from simulated_rides import Simulation

as_fields(Published)
PAUSE: Callable[[float], object] = time.sleep
"""Waits between two audits."""
_WATCH_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 10
"""How long one call of the simulator takes with a rate: less than a client waits for its answer."""


class Watched(NamedTuple):
    """The result of an audit in one line."""

    at: datetime
    lost: int
    doubled: int
    in_flight: int
    waiting: int
    verdict: str
    status: int
    """The exit status of an audit with this result."""


@show.register
def _show_watched(found: Watched) -> RenderableType:
    numbers = f"lost {found.lost}  doubled {found.doubled}  in flight {found.in_flight}"
    return Text(f"{found.at:%H:%M:%S}  {numbers}  {found.verdict}")


@reads("audit", "", "--grace 0s --json", "--watch", status=lambda report: report.status)
def audit_stack(
    session: Session,
    *,
    grace: Span | None = None,
    overdue: Span = LIMIT,
    payments: Path | None = None,
    watch: bool = False,
) -> Report | Iterator[Watched]:
    """Show what is lost, doubled, dead-lettered or overdue.

    The audit compares what the bus, tables, queues and log groups of a stack hold, in both regions
    of a stack that has two. The verdict is the first line. What does not add up follows it, each
    thing after the command that shows it, and then the numbers. --json also has what is zero, the
    kinds of deliveries, and the routes whose deliveries the audit cannot count.

    Status 0: balanced; 1: something is wrong; 3: the evidence is incomplete. An event younger than
    --grace counts as in flight. EventBridge and Lambda may retry for 30 hours.

    Args:
        grace: Age from which an event is judged; 15m by default, and 0s for a local stack in which
            nothing moves.
        overdue: How long a ride may need something.
        payments: File with the gateway's ledger as JSON, to compare with.
        watch: Audit again and again, with a line for each result, until Ctrl-C.
    """
    known = None if payments is None else _payments_in(payments)

    def judge() -> Report:
        return audit(
            *session.stack.regions(),
            grace=_grace(session.stack) if grace is None else grace,
            payments=known,
            overdue_after=overdue,
        )

    return _watched(judge) if watch else judge()


def _payments_in(path: Path) -> list[GatewayPayment]:
    """Read the gateway's ledger."""
    try:
        return gateway_payments(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OperatorError(
            f"{path} is not a ledger of the gateway ({error!r}): give the JSON that the gateway "
            "exports, as docs/payment-gateway.md describes"
        ) from error


def _grace(stack: StackRef) -> timedelta:
    """Return the age from which an event is judged: none where nothing moves any more."""
    return timedelta() if is_quiet(stack) else DEFAULT_GRACE


def _watched(judge: Callable[[], Report]) -> Iterator[Watched]:
    while True:
        report = judge()
        ledger = report.ledger
        yield Watched(
            at=datetime.now(UTC),
            lost=ledger.lost,
            doubled=ledger.doubled,
            in_flight=ledger.in_flight,
            waiting=ledger.waiting,
            verdict=report.verdict,
            status=report.status,
        )
        PAUSE(_WATCH_SECONDS)


@as_fields
class Parked(NamedTuple):
    """How many cars were added to the fleet."""

    added: int


@as_fields
class Freed(NamedTuple):
    """A car that was given back, and the ride that held it."""

    freed: str
    held_by: str


@acts("drive fleet", "--cars 64 --yes", "--free car_007 --yes")
def fleet(
    session: Session,
    *,
    cars: Annotated[int, POSITIVE] = 64,
    free: str | None = None,
) -> Plan[Parked] | Plan[Freed]:
    """Park cars all over the city, for dispatch to assign. Existing cars are left as they are.

    With --free, give one car back that a ride holds although it is over, as the runbook "overdue"
    describes: only then, because another ride may get the car at once.

    Args:
        cars: Size of the fleet.
        free: Id of a car that is to be free.
    """
    if free is not None:
        return _freeing(session.stack, free)
    stack = session.stack
    table = stack.outputs["CarTableName"]
    step = f"park cars in {table} until there are {cars}"

    def park() -> Parked:
        return Parked(garage.seed(stack.client("dynamodb"), table, cars))

    return Plan(Steps((step,)), park, (stack,))


def _freeing(stack: StackRef, car_id: str) -> Plan[Freed]:
    """Plan to give back a car that a ride holds although it is over."""
    held = garage.held(stack, car_id)
    step = f"free {car_id}, which {held.ride_id} holds, and put it into the index of free cars"

    def give_back() -> Freed:
        garage.give_back(stack, held)
        return Freed(car_id, held.ride_id)

    return Plan(Steps((step,)), give_back, (stack,))


@acts(
    "drive simulate",
    "--rides 100 --duplicates 0.3 --crashes 2 --yes",
    "--rides 1000 --rate 20 --yes",
)
def simulate(
    session: Session,
    *,
    rides: Annotated[int, POSITIVE] = 20,
    seed: Annotated[int, COUNT] = 0,
    rate: Annotated[float | None, RATE] = None,
    duplicates: Annotated[float, SHARE] = 0.0,
    out_of_order: Annotated[float, SHARE] = 0.0,
    older: Annotated[float, SHARE] = 0.0,
    malformed: Annotated[int, COUNT] = 0,
    late: Annotated[int, COUNT] = 0,
    crashes: Annotated[int, COUNT] = 0,
    fails: Annotated[int, COUNT] = 0,
    poison: Annotated[int, COUNT] = 0,
    slow: Annotated[int, COUNT] = 0,
) -> Plan[Published]:
    """Have the deployed simulator publish rides.

    The same seed gives the same rides with the same ids, so consumers recognise what they have
    seen. Consumers meet the faults of crashes, fails, poison and slow on the local engine only.

    Args:
        rides: Rides, of 3 or 4 events each.
        seed: Chooses the rides and the faults.
        rate: Events a second; by default as fast as the bus takes them.
        duplicates: Share of the events that are published twice, from 0 to 1.
        out_of_order: Share of the rides in which one event overtakes the one before it.
        older: Share of the events in the older envelope.
        malformed: Additional events that break the contract.
        late: Events past their expiry time.
        crashes: Events that kill their consumer, at the first attempt.
        fails: Events that make their consumer raise, at the first attempt.
        poison: Events that make their consumer raise, at every attempt.
        slow: Events that take their consumer long, at the first attempt.
    """
    spec = _spec(locals())
    entries = len(Simulation(spec, datetime.now(UTC)))
    stack = session.stack
    function = stack.outputs["CarRideSimulatorFunctionName"]
    step = f"have {function} publish {counted(entries, 'event')} of {counted(rides, 'ride')}"

    def publish() -> Published:
        request = msgspec.to_builtins(spec)
        for progress in simulation.simulate(stack, request, at_once=_at_once(rate)):
            session.say(f"{progress.entries:,} of {progress.total:,} events")
        return progress

    return Plan(Steps((step,)), publish, (stack,))


def _spec(options: Mapping[str, Any]) -> Spec:
    """Return the simulator's request for `drive simulate`, or say what it would refuse."""
    given = {json_name(name): options[name] for name in Spec.__struct_fields__ if name in options}
    try:
        return shaped({name: each for name, each in given.items() if each is not None}, Spec)
    except FieldError as error:
        raise OperatorError(f"the simulator would refuse {error}") from error


def _at_once(rate: float | None) -> int:
    """Return how many events one call publishes, so that each call takes about ten seconds."""
    if rate is None:
        return AT_ONCE
    return min(AT_ONCE, max(1, round(rate * _CALL_SECONDS)))


class State(StrEnum):
    """Whether a plan can be carried out."""

    WAITS = "waits"
    REFUSED = "refused"
    EMPTY = "empty"
    """There is nothing to do."""


class Shown(NamedTuple):
    """A plan that was shown, in a line."""

    id: str
    made: datetime
    state: State
    refused: datetime | None
    """When it was refused; None if it was not."""
    command: str
    stacks: tuple[str, ...]


class ShownPlans(NamedTuple):
    """The plans that were shown and would change something, the newest first."""

    plans: tuple[Shown, ...]

    def to_json(self) -> list[Shown]:
        """Return them as a list."""
        return [*self.plans]


class Kept(NamedTuple):
    """A plan that was shown, in full."""

    plan: SavedPlan
    state: State
    refused: datetime | None

    def to_json(self) -> Mapping[str, object]:
        """Return the plan and its state; its preview are lines in the widest layout."""
        fields = self.plan._asdict()
        shown = fields.pop("shown")
        preview = [*shown[0]] if shown else []
        return {**fields, "state": self.state, "refused": self.refused, "preview": preview}


@reads("plans", "", "4f2a81c0 --json")
def shown_plans(_session: Session, plan: str | None = None, /) -> ShownPlans | Kept:
    """Show the plans that --yes can still carry out, the newest first, or one as it was shown.

    A preview keeps its plan for an hour. --yes carries out exactly this plan, or nothing if its
    letters, records or numbers have changed since: then the plan is marked as refused. Plans that
    would change nothing are not listed.

    Args:
        plan: Id of a plan.
    """
    if plan is not None:
        found = plans.named(plan)
        return Kept(found, *_state_of(found))
    shown = list[Shown]()
    for each in plans.saved():
        state, refused = _state_of(each)
        shown.append(Shown(each.id, each.made, state, refused, _typed(each), tuple(each.places)))
    return ShownPlans(tuple(shown))


def _state_of(plan: SavedPlan) -> tuple[State, datetime | None]:
    """Return whether a plan can be carried out, and when it was refused."""
    refused = plans.refused_at(plan.id)
    state = State.WAITS
    if plan.is_empty:
        state = State.EMPTY
    elif refused is not None:
        state = State.REFUSED
    return state, refused


def _in_words(state: State, refused: datetime | None) -> str:
    if state is State.REFUSED and refused is not None:
        return f"refused at {refused:%H:%M:%S} UTC"
    return _STATES[state]


_STATES: Final = {
    State.WAITS: "waits for you",
    State.REFUSED: "refused",
    State.EMPTY: "there is nothing to do",
}
"""What the line says of a plan."""


def _typed(plan: SavedPlan) -> str:
    return shlex.join(["./carride", *plan.words])


@show.register
def _show_plans(found: ShownPlans) -> RenderableType:
    if not found.plans:
        return "no plan waits for you"
    rows = table("id", "made", "state", "command", "stacks")
    for each in found.plans:
        state = _in_words(each.state, each.refused)
        rows.add_row(each.id, show(each.made), state, each.command, ", ".join(each.stacks))
    return rows


@show.register
def _show_kept(kept: Kept) -> RenderableType:
    plan = kept.plan
    until = plan.made + plans.LIVES
    times = f"shown {plan.made:%Y-%m-%d %H:%M:%S} UTC, {_in_words(kept.state, kept.refused)}"
    if plans.waits(plan):
        times += f" until {until:%H:%M:%S} UTC"
    head = Text(f"{plan.id}  {_typed(plan)}\n{times}\non {', '.join(plan.places)}\n")
    return Group(head, Layouts(plan.shown), Text(f"\n{_how_to_go_on(kept)}"))


def _how_to_go_on(kept: Kept) -> str:
    """Return the command that carries a plan out, or makes a new one in its place."""
    plan = kept.plan
    if plan.is_empty:
        return "--yes would change nothing"
    if kept.refused is not None:
        return f"what it showed has changed since; plan it again: {_typed(plan)}"
    return f"carry it out: {_typed(plan)} --plan={plan.id} --yes"


class Served(NamedTuple):
    """Where the pages of a stack are served."""

    url: str
    stack: str


@show.register
def _show_served(served: Served) -> RenderableType:
    return Text(f"{served.url} shows {served.stack}; Ctrl-C ends it")


@reads("desk", "")
def desk(
    session: Session, *, port: Annotated[int, PORT_NUMBER] = PORT, no_browser: bool = False
) -> Iterator[Served]:
    """Serve pages that show what flows through a stack and what became of it, until Ctrl-C.

    Only this machine can open them. They change nothing: where a command would help, they show that
    to copy. On AWS the audit runs when you ask for it, because it reads whole tables. On a local
    stack the pages also inject faults.

    Args:
        port: Where to serve them.
        no_browser: Do not open them in a browser.
    """
    with serving(session.stack, port) as url:
        yield Served(url, session.stack.name)
        if not no_browser:
            open_browser(url)
        with suppress(KeyboardInterrupt):
            signal.pause()
