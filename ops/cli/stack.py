"""The verbs that look at a whole stack, those that give it something to do, and those that serve."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from cyclopts import Parameter
from rich.console import RenderableType
from rich.text import Text

from carride.decoding import FieldError, json_name, shaped
from carride.overdue import LIMIT
from carride.simulation import Simulation, Spec
from ops import fleet as cars
from ops import simulation, verify
from ops.audit import DEFAULT_GRACE, Report, audit, gateway_payments
from ops.cli.line import command_line
from ops.cli.show import show
from ops.desk import PORT, open_browser, serving
from ops.finding import is_quiet
from ops.regions import ROOT
from ops.simulation import AT_ONCE, Published
from ops.stack import OperatorError, StackRef
from ops.text import counted
from ops.verbs import Plan, Session, Span, Steps, acts, reads
from ops.verify.checks import CHECKS

PAUSE: Callable[[float], object] = time.sleep
"""Waits between two audits."""
_WATCH_SECONDS: Final = 5.0
_VERIFIED: Final = ROOT / ".aws-sam"
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


@show.register
def _(found: Watched) -> RenderableType:
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
    """Show what is lost, doubled, waiting for redrive or overdue.

    The audit compares what the bus, tables, queues and log groups of a stack hold, in both regions
    of a stack that has two. It also shows what the evidence does not cover.

    Status 0: balanced; 1: something is wrong; 3: the evidence is incomplete. An event younger than
    --grace counts as in flight. EventBridge and Lambda may retry for 30 hours.

    Args:
        grace: Age from which an event is judged; 15m by default, and 0s for a local stack in which
            nothing moves.
        overdue: How long a ride may need something.
        payments: File with the gateway's ledger as JSON, to compare with.
        watch: Audit again and again, with a line for each result, until Ctrl-C.
    """
    try:
        known = None if payments is None else gateway_payments(payments.read_text())
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OperatorError(f"{payments} is no ledger of the gateway: {error!r}") from error
    stacks = [each for each in (session.stack, session.stack.peer()) if each is not None]

    def read() -> Report:
        young = (
            grace
            if grace is not None
            else timedelta()
            if is_quiet(session.stack)
            else DEFAULT_GRACE
        )
        return audit(*stacks, grace=young, payments=known, overdue_after=overdue)

    return _watched(read) if watch else read()


def _watched(read: Callable[[], Report]) -> Iterator[Watched]:
    while True:
        report = read()
        ledger = report.ledger
        numbers = (ledger.lost, ledger.doubled, ledger.in_flight, ledger.waiting)
        yield Watched(datetime.now(UTC), *numbers, report.verdict)
        PAUSE(_WATCH_SECONDS)


@acts("verify", "--yes", "--drills --yes", status=lambda found: bool(found["failed"]))
def verify_stack(session: Session, *, rides: int = 20, drills: bool = False) -> Plan:
    """Check every statement about a deployed stack that code can check.

    Publish simulated rides, book rides over the API, audit the stack, and look at what is deployed.
    With --drills, break and mend a few things as well. In stage prod, publish and break nothing.
    docs/on-an-account.md has the rest. The results are in .aws-sam/verify.json and
    .aws-sam/verify.md.

    Status 0: no check failed; 1: at least one failed.

    Args:
        rides: Number of simulated rides.
        drills: Also break and mend a few things.
    """
    checks = [each for each in CHECKS if drills or not each.drill]

    def run() -> dict[str, Any]:
        results: list[verify.Result] = []
        for result in verify.verify(verify.Deployment(session.stack, rides=rides), checks):
            results.append(result)
            session.say(
                f"{result.verdict}  {result.statement}\n      {result.detail} ({result.seconds:.1f} s)"
            )
        found = verify.to_json(results)
        _VERIFIED.mkdir(exist_ok=True)
        (_VERIFIED / "verify.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
        (_VERIFIED / "verify.md").write_text(verify.to_markdown(results), encoding="utf-8")
        return found

    return Plan(Steps(tuple(f"check: {each.statement}" for each in checks)), run, (session.stack,))


@acts("fleet", "--cars 64 --yes")
def fleet(session: Session, *, cars_: Annotated[int, Parameter(name="--cars")] = 64) -> Plan:
    """Park cars all over the city, for dispatch to assign. Existing cars are left as they are.

    Args:
        cars_: Size of the fleet.
    """
    stack, table = session.stack, session.stack.outputs["CarTableName"]
    step = f"park cars in {table} until there are {cars_}"
    return Plan(
        Steps((step,)),
        lambda: {"added": cars.seed(stack.client("dynamodb"), table, cars_)},
        (stack,),
    )


@acts("simulate", "--rides 100 --duplicates 0.3 --crashes 2 --yes", "--rides 1000 --rate 20 --yes")
def simulate(
    session: Session,
    *,
    rides: int = 20,
    seed: int = 0,
    rate: float | None = None,
    duplicates: float = 0.0,
    out_of_order: float = 0.0,
    older: float = 0.0,
    malformed: int = 0,
    late: int = 0,
    crashes: int = 0,
    fails: int = 0,
    poison: int = 0,
    slow: int = 0,
) -> Plan:
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
    given = {
        name: value for name, value in locals().items() if name != "session" and value is not None
    }
    try:
        spec = shaped({json_name(name): value for name, value in given.items()}, Spec)
        entries = len(Simulation(spec, datetime.now(UTC)))
    except FieldError as error:
        raise OperatorError(f"the simulator would refuse {error}") from error
    stack = session.stack
    function = stack.outputs["CarRideSimulatorFunctionName"]
    step = f"have {function} publish {counted(entries, 'event')} of {counted(rides, 'ride')}"

    def publish() -> Published:
        request, at_once = (
            msgspec.to_builtins(spec),
            AT_ONCE if rate is None else max(1, round(rate * _CALL_SECONDS)),
        )
        for progress in simulation.simulate(stack, request, at_once=min(at_once, AT_ONCE)):
            session.say(f"{progress.entries:,} of {progress.total:,} events")
        return progress

    return Plan(Steps((step,)), publish, (stack,))


@reads("environments", "--json")
def environments(stack: StackRef) -> dict[str, dict[str, str]]:
    """Show the environment variables of each function; `sam local invoke --env-vars` reads the JSON.

    `make local-env` writes it to .aws-sam/env.json.
    """
    return stack.environments()


@reads("desk", "", tool=False)
def desk(session: Session, *, port: int = PORT, no_browser: bool = False) -> Iterator[str]:
    """Serve a page that shows every event of a stack and what became of it, until Ctrl-C.

    Only this machine can open it. It changes nothing until you confirm a button. On AWS the audit
    runs when you ask for it, because it reads whole tables. On a local stack the page also injects
    faults.

    Args:
        port: Where to serve it.
        no_browser: Do not open it in a browser.
    """
    with serving(session.stack, port) as url:
        yield f"{url} shows {session.stack.name}; Ctrl-C ends it"
        if not no_browser:
            open_browser(url)
        with suppress(KeyboardInterrupt):
            signal.pause()


@reads("mcp", "", "--allow-changes --stack carride --region us-west-2", tool=False)
def mcp(session: Session, *, allow_changes: bool = False) -> None:
    """Serve the commands as tools of the Model Context Protocol, over standard input and output.

    A client starts it, for example with `"command": "/path/to/carride", "args": ["mcp"]`. Every
    command that changes nothing is a tool. --stack and --region fix the stack; without them each
    call chooses it.

    Args:
        allow_changes: Offer the commands that change something too; each does it only when it is
            called with yes.
    """
    from ops.mcp_server import serve  # noqa: PLC0415 - it takes long to import

    serve(command_line(), allow_changes=allow_changes, options=session.options)
