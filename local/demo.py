"""`make demo`: run the whole pipeline on this machine and print its ledger."""

import argparse
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from carride.simulation_spec import Spec
from engine.process import environment
from local import story, worst
from local.bookings import book
from local.command import WRONG, Progress, count, ending_in_order, leave, port, positive, share
from local.containers import forwarded
from local.local_aws import FAULTS, HOST, ROOT, EngineError, LocalAws, Stack
from local.reconciler import reconcile
from local.simulated_gateway import Books, GatewayServer
from ops import fleet
from ops.audit import Report, audit, gateway_payments
from ops.desk import PORT, open_browser, serving
from ops.finding import KEPT, keep, kept, local_clients
from ops.simulation import simulate
from ops.stack import Kept, StackRef

LEDGER: Final = ROOT / ".demo" / "ledger.json"

_CARS: Final = 64
_DEFAULTS: Final = {
    "rides": 200,
    "bookings": 20,
    "seed": 1,
    "duplicates": 0.3,
    "out_of_order": 0.1,
    "older": 0.1,
    "malformed": 12,
    "late": 3,
    "crashes": 2,
    "fails": 2,
    "poison": 1,
    "keep": False,
    "port": PORT,
    "no_browser": False,
    "worst": False,
    "seeds": 1,
    "first_seed": 1,
}
"""What the options are that the command line leaves out."""
_OF_WORST: Final = frozenset({"seeds", "first_seed"})
"""Options that need `--worst`."""
_WITH_WORST: Final = _OF_WORST | {"worst", "rides"}
"""Options that `--worst` allows."""

DESCRIPTION: Final = """\
Run the whole pipeline on this machine: build and deploy template.yaml onto a local
engine, book rides over HTTP, have the deployed simulator publish more, wait until every
event is processed, have the reconciler settle rides that stand still, and print how
the rides ended and a ledger of the tables, queues and log groups. The ledger is also
written to .demo/ledger.json.

With --worst, put the pipeline through the worst mix of faults instead, once for each seed,
on a new stack of the template: half of the events come twice, a third of the rides in
disorder, events kill their consumers, poison fails at every attempt, and the payment gateway
hangs, takes effect late or without an answer, forgets keys, refuses rides and raises, and
keeps errors under keys. Rides that stand still are reconciled, and then the whole
archive is replayed, which has to change nothing.

It ends with status 0 if nothing is lost, doubled, open or left half-done, 1 if something is, and
2 if it could not be run. With --worst, status 1 also says that poison did not lead to exactly
its dead letters, that a partner's application lost or doubled an event, or that the replay
changed something."""

EXAMPLES: Final = """\
examples:
  make demo                                                what the README shows
  make demo ARGS="--rides 1000 --duplicates 0.5 --seed 7"  a larger run
  make demo ARGS="--crashes 20"                            consumers that are killed half-way
  make demo ARGS=--keep                                    watch the page, then look around
  make demo ARGS="--worst --seeds 2 --first-seed 7"        the worst mix of faults, twice"""


_NEXT: Final = """
Next:
  make demo ARGS=--keep    keeps it running, with pages that show what happens
  make compare             Powertools' idempotency and this layer under the same faults"""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        EngineError: Options that exclude each other stand on it.
    """
    parser = argparse.ArgumentParser(
        prog="make demo ARGS=…",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument_group("what the simulator publishes").add_argument
    add("--rides", type=positive, metavar="N", help="rides, of 3 or 4 events each (200)")
    add("--bookings", type=count, metavar="N", help="rides booked over HTTP (20)")
    add("--seed", type=count, metavar="N", help="the same seed gives the same rides (1)")
    add("--duplicates", type=share, metavar="S", help="share of events sent twice (0.3)")
    add("--out-of-order", type=share, metavar="S", help="share of rides in disorder (0.1)")
    add("--older", type=share, metavar="S", help="share in the older envelope (0.1)")
    add("--malformed", type=count, metavar="N", help="events that break the contract (12)")
    add("--late", type=count, metavar="N", help="events past their expiry time (3)")
    add("--crashes", type=count, metavar="N", help="events that kill the consumer once (2)")
    add("--fails", type=count, metavar="N", help="events that make it raise once (2)")
    add("--poison", type=count, metavar="N", help="events that always make it raise (1)")
    add = parser.add_argument_group("how the demo runs").add_argument
    add("--keep", action="store_true", help="leave everything running until Ctrl-C, to look around")
    add("--port", type=port, metavar="N", help=f"of the kept page ({PORT})")
    add("--no-browser", action="store_true", help="do not open the page in a browser")
    add = parser.add_argument_group("the worst mix, with --rides and no other option").add_argument
    add("--worst", action="store_true", help="put new stacks through the worst mix of faults")
    add("--seeds", type=positive, metavar="N", help="how many seeds, one after the other (1)")
    add("--first-seed", type=count, metavar="N", help="the first of them (1)")
    given = vars(parser.parse_args(arguments))
    _check_together(given)
    return argparse.Namespace(**_DEFAULTS | given)


def _check_together(given: Collection[str]) -> None:
    """Refuse options on the command line that exclude each other."""
    if "worst" in given:
        wrong = [name for name in given if name not in _WITH_WORST]
        why = "cannot be used with --worst, which takes --rides, --seeds and --first-seed"
    else:
        wrong = [name for name in given if name in _OF_WORST]
        why = "needs --worst"
    if wrong:
        option = wrong[0].replace("_", "-")
        raise EngineError(f"--{option} {why}")


def main() -> None:
    """Run the demo, or the worst mix."""
    with ending_in_order():
        options = parse()
        if options.worst:
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            wrong = worst.run(options.rides, seeds, Progress(sys.stdout))
        else:
            wrong = _wrong_in(run_demo(options))
    if options.keep:
        print("\nstopped; nothing is left running", file=sys.stderr)
    if wrong:
        leave(WRONG, "\n".join(wrong))


def _wrong_in(report: Report) -> list[str]:
    """Return what is wrong in the demo's report, one sentence each."""
    if report.status:
        return [report.verdict]
    if not report.saga.settled:
        return ["rides are open, or hold a car, although they were reconciled: see above"]
    return []


def run_demo(options: argparse.Namespace) -> Report:
    """Deploy, book, publish, wait, audit and print; return the report."""
    if options.keep:
        check_kept(options.port)
    progress = Progress(sys.stdout)
    with ExitStack() as running:
        with progress.step("starting the local engine"):
            # It declines nobody: the simulator completes every ride, and one that was driven and
            # not paid is what the audit names.
            gateway = running.enter_context(GatewayServer(Books(seed=options.seed)))
            cloud = running.enter_context(LocalAws(*FAULTS))
        stack = _deploy(cloud, gateway, progress)
        local = None
        if options.keep:
            local = running.enter_context(keeping(cloud, stack, gateway.url, options.port))
            _open(local, progress, browser=not options.no_browser)
        injected = _ride(cloud, stack, options, progress)
        report = _audit(stack, gateway, progress)
        write(report.to_json() | {"injected": injected}, LEDGER)
        if local is None:
            with progress.step("ending the local engine"):
                running.close()
        tell(progress.console, report, injected)
        if local is not None:
            progress.console.print(next_steps(local, stack, f"order_{options.seed}_00000"))
            with suppress(KeyboardInterrupt):  # the way to end it
                signal.pause()
        elif not report.status:
            progress.console.print(_NEXT)
    return report


def check_kept(port: int) -> None:
    """Refuse to keep a stack beside another one, or a page on a port that is taken.

    Raises:
        EngineError: It says what to do; nothing has been built yet.
    """
    other = kept()
    if other is not None:
        raise EngineError(
            f"process {other.pid} keeps a local stack already: use it, or end it first with Ctrl-C"
        )
    with socket.socket() as probe:
        # As the page's server does, or a page that has just ended would still count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise EngineError(
                f"port {port} is not free for the page ({error.strerror}): choose another with "
                "--port N, or any free one with --port 0"
            ) from error


def _deploy(cloud: LocalAws, gateway: GatewayServer, progress: Progress) -> Stack:
    """Build and deploy the template, and park cars."""
    with progress.step("building the functions and layers (sam build)"):
        cloud.build()
    with progress.step("deploying template.yaml (sam deploy)"):
        stack = cloud.deploy(PaymentGatewayUrl=gateway.url)
        fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], _CARS)
    return stack


def _open(local: Kept, progress: Progress, *, browser: bool) -> None:
    """Say where the page is, and open it in a browser if that is wanted."""
    progress.console.print(f"\nSee what happens at {local.desk}\n", style="bold")
    if browser:
        open_browser(local.desk)


def _ride(
    cloud: LocalAws, stack: Stack, options: argparse.Namespace, progress: Progress
) -> Mapping[str, int]:
    """Book and publish rides, and settle all; return what was injected, by fault."""
    with progress.step(f"booking {options.bookings} rides over HTTP"):
        for booked in book(cloud, stack, options.bookings):
            progress.note(f"{booked:,} of {options.bookings:,} rides")
    injected: Mapping[str, int] = {}
    request = msgspec.to_builtins(_spec(options))
    with progress.step(f"publishing {options.rides} rides"):
        for published in simulate(stack, request):
            injected = published.injected
            faults = story.injected(injected) or "nothing"
            done = f"{published.entries:,} of {published.total:,} events"
            progress.note(f"{done}; injected: {faults}")
    with progress.step("waiting until every event is processed"):
        cloud.wait_until_quiet(report=progress.note)
    with progress.step("reconciling rides that stand still, as if it were tomorrow"):
        reconcile(stack, lambda: cloud.wait_until_quiet(report=progress.note))
    return injected


def _spec(options: argparse.Namespace) -> Spec:
    """Return the simulator's request: its fields among the options."""
    given = vars(options)
    return Spec(**{name: given[name] for name in Spec.__struct_fields__ if name in given})


def _audit(stack: Stack, gateway: GatewayServer, progress: Progress) -> Report:
    with progress.step("reading the tables, queues and logs"):
        return audit(stack, grace=timedelta(), payments=gateway_payments(gateway.ledger()))


def tell(console: Console, report: Report, injected: Mapping[str, int]) -> None:
    """Print a report: tables, injected faults, unusual numbers, the verdict, where to look."""
    console.print(Text(f"\n{report.to_text()}\n"))
    console.print(f"Injected: {story.injected(injected) or 'nothing'}.")
    for number, what, why in story.unusual(report):
        console.print(Text.assemble((f"{number:>7,} {what:<20} ", "cyan"), why))
    looking = story.commands(report)
    style = "bold red" if looking else "bold green"
    console.print(f"\n{story.verdict(report, injected)}", style=style)
    if looking and "--keep" not in sys.argv:
        again = shlex.quote(shlex.join([*sys.argv[1:], "--keep"]))
        console.print(
            "\nTo look into it, run the same rides again and keep them: "
            f"make demo ARGS={again}. Then:"
        )
    for command in looking:
        console.print(f"  {command}")


@contextmanager
def keeping(cloud: LocalAws, stack: Stack, gateway_url: str, desk_port: int) -> Iterator[Kept]:
    """Let other commands find a stack, and serve its page, for the time of the ``with`` block."""
    local = Kept(stack.name, cloud.region, cloud.endpoint_url, gateway_url, "", os.getpid())
    with ExitStack() as running:
        with suppress(EngineError):  # a machine without containers
            endpoint, gateway = running.enter_context(forwarded(local.endpoint, local.gateway))
            local = local._replace(container_endpoint=endpoint, container_gateway=gateway)
        site = StackRef(local.name, local.region, local_clients(local), local)
        local = local._replace(desk=running.enter_context(serving(site, desk_port)))
        keep(local)
        try:
            yield local
        finally:
            KEPT.unlink(missing_ok=True)


def write(document: Any, path: Path) -> None:
    """Write a document as JSON."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def next_steps(local: Kept, stack: Stack, ride: str) -> str:
    """Return what to try on the running stack."""
    api = f"{local.endpoint}/_aws/execute-api/{stack.resources['CarRideApi']}/$default/carrides"
    return f"""
Everything keeps running. In another terminal:

  {local.desk:<35} pages that show what happens, with buttons that inject faults
  ./carride ride {ride:<20} where a ride is, event by event; ./carride --help lists more
  make compare                        Powertools' idempotency and this layer under the same faults

Send this twice. The Idempotency-Key is the same, so there is one ride, and one answer:

  curl -i '{api}' \\
    -H 'Content-Type: application/json' -H 'Idempotency-Key: my-first-ride' \\
    -d '{{"customerID": "customer_a", "pickup": "sector_01", "destination": "sector_03",
         "price": 550}}'

The SAM CLI reaches the stack with these variables:

  export {" ".join(f"{name}={value}" for name, value in environment(local.endpoint).items())}
  .venv-sam/bin/sam remote invoke CarRideSimulatorFunction --stack-name {stack.name} \\
    --event '{{"rides": 5, "seed": 2}}'

So does a container (Docker or podman), for one function with one event:

  make local-env && .venv-sam/bin/sam local invoke RideHistoryFunction \\
    -e events/ride_history_live.json

Ctrl-C ends it."""


if __name__ == "__main__":
    main()
