"""`make demo`: run the whole pipeline on this machine and print its ledger."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from local.bookings import book
from local.command import WRONG, Progress, count, ending_in_order, leave, positive, share
from local.local_aws import FAULTS, ROOT, EngineError, LocalAws, Stack
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import fleet
from ops.audit import Report, audit, gateway_payments
from ops.simulation import AT_ONCE, simulate
from ops.stack import OperatorError, StackRef

LEDGER: Final = ROOT / ".demo" / "ledger.json"
DECLINED: Final = 0.05
"""Share of the rides that the simulated payment gateway declines."""

_CARS: Final = 64

DESCRIPTION: Final = """\
Run the whole pipeline on this machine: build and deploy template.yaml onto a local
engine, book rides over HTTP, have the deployed simulator publish more, wait until every
event is processed, have the reconciler settle rides that stand still, and print how
the rides ended and a ledger of the tables, queues and log groups.

It ends with status 0 if nothing is lost, doubled, open or left half-done, 1 if something is, and
2 if it could not be run. The ledger is also written to .demo/ledger.json."""

EXAMPLES: Final = """\
examples:
  make demo                                                     what the README shows
  make demo ARGS="--rides 1000 --duplicates 0.5 --seed 7"       a larger run
  make demo ARGS="--crashes 20"                                 consumers that are killed half-way
  make demo ARGS=--keep                                         look around afterwards with aws and sam"""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make demo ARGS=…",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what the simulator publishes")
    what.add_argument("--rides", type=positive, default=200, metavar="N", help="rides, of 3 or 4 events each (200)")
    what.add_argument("--bookings", type=count, default=20, metavar="N", help="rides booked over HTTP (20)")
    what.add_argument("--seed", type=count, default=1, metavar="N", help="the same seed gives the same rides (1)")
    what.add_argument("--duplicates", type=share, default=0.3, metavar="S", help="share of events sent twice (0.3)")
    what.add_argument("--out-of-order", type=share, default=0.1, metavar="S", help="share of rides in disorder (0.1)")
    what.add_argument("--older", type=share, default=0.1, metavar="S", help="share in the older envelope (0.1)")
    what.add_argument("--malformed", type=count, default=12, metavar="N", help="events that break the contract (12)")
    what.add_argument("--late", type=count, default=3, metavar="N", help="events past their expiry time (3)")
    what.add_argument("--crashes", type=count, default=2, metavar="N", help="events that kill the consumer once (2)")
    what.add_argument("--fails", type=count, default=2, metavar="N", help="events that make it raise once (2)")
    what.add_argument("--poison", type=count, default=1, metavar="N", help="events that always make it raise (1)")
    how = parser.add_argument_group("how the demo runs")
    how.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C, to look around")
    how.add_argument("--json", action="store_true", help="print the ledger as JSON; progress goes to standard error")
    return parser.parse_args(arguments)


def main() -> None:
    """Run the demo."""
    options = parse()
    with ending_in_order():
        report = run(options)
    if report.status:
        leave(WRONG, report.verdict)
    if not report.saga.settled:
        leave(WRONG, "rides are open, or hold a car, although they were reconciled: see above")


def run(options: argparse.Namespace) -> Report:
    """Deploy, book, publish, wait, audit and print; return the report."""
    progress = Progress(sys.stderr if options.json else sys.stdout)
    troubles = Troubles(declined=DECLINED)
    with GatewayServer(Books(troubles, seed=options.seed)) as gateway, LocalAws(*FAULTS) as cloud:
        with progress.step("building the functions and layers (sam build)"):
            cloud.build()
        with progress.step("deploying template.yaml (sam deploy)"):
            stack = cloud.deploy(PaymentGatewayUrl=gateway.url)
        fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], _CARS)
        with progress.step(f"booking {options.bookings} rides over HTTP"):
            for booked in book(cloud, stack, options.bookings):
                progress.note(f"{booked:,} of {options.bookings:,} rides")
        with progress.step(f"publishing {options.rides} rides"):
            for done, total in publish(cloud, stack, specification(options)):
                progress.note(f"{done:,} of {total:,} events")
        with progress.step("waiting until every event is processed"):
            cloud.wait_until_quiet(report=progress.note)
        with progress.step("reconciling rides that stand still, as if it were tomorrow"):
            reconcile(cloud, stack, cloud.wait_until_quiet)
        report = audit(stack_ref(cloud, stack), grace=timedelta(), payments=gateway_payments(gateway.ledger()))
        text = write(report.to_json(), LEDGER)
        print(text if options.json else f"\n{report.to_text()}", flush=True)
        if options.keep:
            print(how_to_talk(cloud, stack), flush=True)
            signal.pause()
    return report


def stack_ref(cloud: LocalAws, stack: Stack) -> StackRef:
    """Return a local stack as the operator's commands see it."""
    return StackRef(stack.name, cloud.region, lambda service, region: cloud.client(service, region=region))


def specification(options: argparse.Namespace) -> dict[str, Any]:
    """Return the simulator's request."""
    request = {name: value for name, value in vars(options).items() if name not in {"bookings", "keep", "json"}}
    return request | {"outOfOrder": request.pop("out_of_order")}


def publish(
    cloud: LocalAws, stack: Stack, request: Mapping[str, Any], *, at_once: int = AT_ONCE
) -> Iterator[tuple[int, int]]:
    """Call the deployed simulator until it has published everything; yield the entries published, and all entries.

    Args:
        cloud: Where the stack is.
        stack: A stack of the template.
        request: The simulator's request.
        at_once: Entries that one call publishes.

    Raises:
        EngineError: The simulator refused or failed.
    """
    try:
        yield from simulate(stack_ref(cloud, stack), request, at_once=at_once)
    except OperatorError as error:
        raise EngineError(str(error)) from error


def reconcile(cloud: LocalAws, stack: Stack, settle: Callable[[], object]) -> int:
    """Run the deployed reconciler until nothing is left to do; return the number of rides that are still overdue.

    Args:
        cloud: Where the stack is.
        stack: A stack of the template.
        settle: Waits until nothing is in flight.

    Raises:
        OperatorError: The reconciler failed.
    """
    time = datetime.now(UTC) + timedelta(days=1)
    while True:
        counts = stack_ref(cloud, stack).invoke("ReconcilerFunctionName", {"time": time.isoformat()})
        settle()
        if not counts["reconciled"]:
            return int(counts["overdue"])
        time += timedelta(minutes=5)


def replay(cloud: LocalAws, stack: Stack, name: str) -> None:
    """Start a replay of everything that the archive holds."""
    bus = cloud.client("events").describe_event_bus(Name=stack.outputs["CarRideBusName"])
    now = datetime.now(UTC)
    cloud.client("events").start_replay(
        ReplayName=name,
        EventSourceArn=stack.outputs["CarRideArchiveArn"],
        EventStartTime=now - timedelta(hours=1),
        EventEndTime=now + timedelta(days=2),  # the reconciler runs as if it were tomorrow
        Destination={"Arn": bus["Arn"]},
    )


def write(document: Any, path: Path) -> str:
    """Write a document as JSON, and return its text."""
    text = json.dumps(document, indent=2)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    return text


def how_to_talk(cloud: LocalAws, stack: Stack) -> str:
    """Return commands that call the running stack."""
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in cloud.environment().items())
    outputs = stack.outputs
    return f"""
Everything is still running. In another terminal (aws is the AWS CLI, sam is .venv-sam/bin/sam):

  export {exports}

  aws dynamodb scan --table-name {outputs["RideTableName"]} --max-items 1
  aws dynamodb scan --table-name {outputs["IdempotencyTableName"]} --max-items 1
  aws sqs receive-message --queue-url {outputs["RideHistoryDlqUrl"]} --visibility-timeout 0
  aws logs tail {outputs["CarRideEventsLogGroupName"]}
  sam logs --stack-name {stack.name} --name RideHistoryFunction
  sam remote invoke CarRideSimulatorFunction --stack-name {stack.name} --event '{{"rides": 5, "seed": 2}}'
  curl {cloud.endpoint_url}/_aws/execute-api/{stack.resources["CarRideApi"]}/\\$default/carrides \\
    -H 'Content-Type: application/json' -H 'Idempotency-Key: my-first-ride' \\
    -d '{{"customerID": "customer_a", "pickup": "sector_01", "destination": "sector_03", "price": 550}}'

Ctrl-C ends it."""


if __name__ == "__main__":
    main()
