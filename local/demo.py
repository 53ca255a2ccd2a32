"""`make demo`: the whole pipeline on this machine, and the ledger of what happened in it."""

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

from local.bookings import book
from local.interrupts import end_in_order
from local.local_aws import FAULTS, ROOT, LocalAws, EngineError, Stack
from local.options import count, positive, share
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import fleet
from ops.audit import Report, audit, gateway_payments
from ops.site import Site

LEDGER: Final = ROOT / ".demo" / "ledger.json"

_AT_ONCE: Final = 500
"""Entries that one call of the simulator publishes, so that there is progress to show."""
_CARS: Final = 64
_DECLINED: Final = 0.05
"""Share of the rides that the simulated payment gateway declines."""
_REPORT_SECONDS: Final = 5.0
_STUCK_SECONDS: Final = 60.0
_UNBALANCED: Final = 1
_FAILED: Final = 2
_INTERRUPTED: Final = 130

DESCRIPTION: Final = """\
Run the whole pipeline on this machine: build and deploy template.yaml onto a local
engine, book rides over HTTP, have the deployed simulator publish more, wait until every
event is processed, have the reconciler settle rides that stand still, and print how
the rides ended and a ledger of what the tables, queues and log groups hold afterwards.

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
    end_in_order()
    try:
        report = run(options)
    except EngineError as error:
        _leave(_FAILED, f"error: {error}")
    except KeyboardInterrupt:
        _leave(_INTERRUPTED, "\nstopped; nothing is left running")
    if report.status:
        _leave(_UNBALANCED, report.verdict)
    if not report.saga.settled:
        _leave(_UNBALANCED, "rides are open, or hold a car, although they were reconciled: see above")


def run(options: argparse.Namespace) -> Report:
    """Deploy, book, publish, wait, audit and print; return what it has come to."""
    progress = Progress(sys.stderr if options.json else sys.stdout)
    troubles = Troubles(declined=_DECLINED)
    with GatewayServer(Books(troubles, seed=options.seed)) as gateway, LocalAws(FAULTS) as cloud:
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
            for left in settle(cloud):
                progress.note(f"{left:,} in flight")
        with progress.step("reconciling rides that stand still, as if it were tomorrow"):
            reconcile(cloud, stack, lambda: list(settle(cloud)))
        report = audit(site_of(cloud, stack), grace=timedelta(), payments=gateway_payments(gateway.ledger()))
        write(report)
        print(json.dumps(report.to_json(), indent=2) if options.json else f"\n{report.to_text()}", flush=True)
        if options.keep:
            print(how_to_talk(cloud, stack), flush=True)
            signal.pause()
    return report


def site_of(cloud: LocalAws, stack: Stack) -> Site:
    """Return a stack on the cloud as the operator's commands see it."""
    return Site(stack.name, cloud.region, lambda service, region: cloud.client(service, region=region))


def specification(options: argparse.Namespace) -> dict[str, Any]:
    """Return the simulator's request."""
    return {
        "rides": options.rides,
        "seed": options.seed,
        "duplicates": options.duplicates,
        "outOfOrder": options.out_of_order,
        "older": options.older,
        "malformed": options.malformed,
        "late": options.late,
        "crashes": options.crashes,
        "fails": options.fails,
        "poison": options.poison,
    }


def publish(
    cloud: LocalAws, stack: Stack, request: Mapping[str, Any], *, at_once: int = _AT_ONCE
) -> Iterator[tuple[int, int]]:
    """Have the deployed simulator publish, call by call; yield how many entries are published, and of how many.

    Args:
        cloud: where the stack is.
        stack: of the template.
        request: what the simulator is to publish.
        at_once: how many entries of it one call publishes.

    Raises:
        EngineError: the simulator cannot do that, or failed.
    """
    function = stack.outputs["CarRideSimulatorFunctionName"]
    request = {**request, "limit": at_once}
    while True:
        answer = cloud.client("lambda").invoke(FunctionName=function, Payload=json.dumps(request))
        summary = json.load(answer["Payload"])
        if "FunctionError" in answer:
            raise EngineError(f"the simulator failed: {summary.get('errorMessage', summary)}")
        if "error" in summary:
            raise EngineError(f"the simulator cannot do that: {summary['error']}")
        yield summary["resume"] or summary["total"], summary["total"]
        if summary["resume"] is None:
            return
        request |= {"offset": summary["resume"], "time": summary["time"]}


def settle(cloud: LocalAws) -> Iterator[int]:
    """Wait until nothing is in flight; yield how much still is, now and then.

    Raises:
        EngineError: it has not become less for a minute.
    """
    fewest, since = None, time.monotonic()
    while left := sum(cloud.in_flight().values()):
        yield left
        if fewest is None or left < fewest:
            fewest, since = left, time.monotonic()
        try:
            cloud.wait_until_quiet(timeout=_REPORT_SECONDS)
        except EngineError:
            if time.monotonic() - since > _STUCK_SECONDS:
                raise


def reconcile(cloud: LocalAws, stack: Stack, settle: Callable[[], object]) -> int:
    """Run the deployed reconciler until it finds nothing to do; return how many rides it could not have settled.

    Args:
        cloud: where the stack is.
        stack: of the template.
        settle: waits until nothing is in flight.

    Raises:
        EngineError: the reconciler failed.
    """
    time = datetime.now(UTC) + timedelta(days=1)
    while True:
        payload = json.dumps({"time": time.isoformat()})
        answer = cloud.client("lambda").invoke(FunctionName=stack.outputs["ReconcilerFunctionName"], Payload=payload)
        counts = json.load(answer["Payload"])
        if "FunctionError" in answer:
            raise EngineError(f"the reconciler failed: {counts.get('errorMessage', counts)}")
        settle()
        if not counts["reconciled"]:
            return int(counts["overdue"])
        time += timedelta(minutes=5)


def write(report: Report, path: Path = LEDGER) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")


def how_to_talk(cloud: LocalAws, stack: Stack) -> str:
    """Return commands that talk to the running stack."""
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


class Progress:
    """Says on a stream what is going on and how long it took: a line a step, and one a note where it takes longer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._noted = 0.0
        self._gap = " "

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Announce a step, and say when it is done."""
        began = self._noted = time.monotonic()
        self._gap = " "
        self._say(f"{what} …")
        yield
        self._say(f"{self._gap}{time.monotonic() - began:.1f} s\n")

    def note(self, text: str) -> None:
        """Say how far the step has come, unless that was said a moment ago."""
        now = time.monotonic()
        if now - self._noted >= _REPORT_SECONDS:
            self._noted = now
            self._gap = "\n  done in "
            self._say(f"\n  {text}")

    def _say(self, text: str) -> None:
        print(text, end="", file=self._stream, flush=True)


def _leave(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
