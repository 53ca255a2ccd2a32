"""`make chaos`: run the pipeline under the worst mix of faults, and check that nothing was lost or doubled."""

import argparse
import json
import sys
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from carride.simulated_faults import Fault
from carride.simulation_spec import Spec
from carride_idempotency import MemoryStore
from carride_idempotency.stores import Store
from carride_idempotency.stores.valkey import ValkeyStore
from local import valkey_server
from local.command import WRONG, Progress, count, ending_in_order, leave, positive
from local.demo import DECLINED, reconcile, write
from local.local_aws import FAULTS, ROOT, EngineError, LocalAws, Stack
from local.partner import Partner, subscribe
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import audit, fleet, replay, tables
from ops.audit import Report, reading
from ops.audit.queues import waiting
from ops.simulation import simulate
from simulated_rides import Simulation

DESCRIPTION: Final = """\
Put the whole pipeline through the worst mix on this machine: half of the events come twice,
a third of the rides in disorder; events kill their consumers, poison fails at every attempt;
the payment gateway hangs, fails after charging, drops answers, forgets keys, refuses rides
and captures above the reservation, and takes its time to reserve. For each
seed a new stack of the real template is put through it, and the whole archive is replayed
after it, which has to change nothing.

Rides that stand still are reconciled before the replay. It ends with status 0 if nothing was
lost, doubled, broken, left open, given up without need or changed by the replay, 1 if
something was, and 2 if it could not be run. The figures are also written to .demo/chaos.json."""

REPORT: Final = ROOT / ".demo" / "chaos.json"

_STUMBLES: Final = 20
"""The partner's first attempt fails at one of so many events."""
_TROUBLES: Final = 0.05
"""Share of the requests to the gateway that go wrong."""
_TABLES: Final = {
    **dict.fromkeys(("AssignmentTable", "CarTable", "PaymentTable", "OutboxTable"), ""),
    "IdempotencyTable": "attribute_exists(orderID)",  # the timelines
}
"""Tables that a replay must not change, and the condition of the items that it must not."""
_SOCKET_SECONDS: Final = 30.0
"""Long, because the partner does not know whether a request took effect once it gives up waiting
for the answer."""
_DRAIN_SECONDS: Final = 300.0
# A message that fails again and again takes a while until it is given up.
_PATIENCE_SECONDS: Final = 240.0
_PAUSE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


class Result(NamedTuple):
    """The outcome of one seed."""

    seed: int
    seconds: float
    report: Report
    gateway: Mapping[str, int]
    """Requests to the gateway that went wrong, by trouble."""
    poison: int
    """Dead letters that the poison must lead to: one for each event and consumer."""
    wrong: Sequence[str]
    """Everything that is wrong, one sentence each."""


def wrong_in(report: Report, counts: Mapping[str, int]) -> list[str]:
    """Return what is wrong in a report, and the counts that are not 0 by what they count; one sentence each."""
    saga, ledger = report
    found = [f"{ledger.verdict}: {', '.join(ledger.named())}"] * (not ledger.balanced)
    found += ["rides are open, or cars held, although they were reconciled"] * (not saga.settled)
    found += [f"{count} {what}" for what, count in counts.items() if count]
    found += [f"{ride}: {'; '.join(problems)}" for ride, problems in saga.problems.items()]
    return found + [f"{ride}: overdue {since}" for ride, since in saga.overdue.items()]


def mix(rides: int, seed: int) -> Spec:
    """Return the simulator's request for the worst mix: 5 % of the events kill their consumers, 2 % are poison."""
    events = len(Simulation(Spec(rides=rides, seed=seed), datetime.now(UTC)))
    crashes, poison = round(0.05 * events), round(0.02 * events)
    return Spec(
        rides=rides,
        seed=seed,
        duplicates=0.5,
        out_of_order=0.3,
        older=0.1,
        crashes=crashes,
        poison=poison,
    )


def cloud_without(unprotected: Collection[str] = ()) -> LocalAws:
    """Return an engine that injects faults and takes the idempotency off these consumers."""
    # As on AWS, a retry comes after the lease of a killed run of payment has ended: a sooner one
    # would wait for that.
    options = ("--retry-delays=4.5,4.5", "--workers=3", *FAULTS)
    return LocalAws(*options, variables={"UNPROTECTED": ",".join(unprotected)})


def rehearse(
    cloud: LocalAws,
    spec: Spec,
    *,
    store: Store,
    progress: Progress,
    cars: int = 14,
    at_once: int = 100,
    troubles: float,
) -> Result:
    """Put a new stack of a built template through rides and faults, and return the outcome.

    Args:
        cloud: The engine.
        spec: The simulator's request.
        store: Idempotency records of the partner's application.
        progress: Shows how far this has come.
        cars: Size of the fleet, fewer than the rides need.
        at_once: Events that are published before the next ones wait until most of them are
            processed. So some rides are published from end to end at once, and others have a car
            and a charge before they are cancelled.
        troubles: Share of the requests to the gateway that go wrong.
    """
    seed, began = spec.seed, time.monotonic()

    def settle(step: str) -> None:
        with progress.step(f"seed {seed}: {step}"):
            cloud.wait_until_quiet(_PATIENCE_SECONDS, progress.note)

    with ExitStack() as running:
        mixed = Troubles.mixed(troubles, declined=DECLINED)
        books = Books(
            mixed._replace(refused=troubles / 2, pending=troubles, capped=0.5), seed=seed, keys_s=5
        )
        gateway = running.enter_context(GatewayServer(books))
        with progress.step(f"seed {seed}: deploying"):
            stack = cloud.deploy_fast(f"chaos-{seed}", None, PaymentGatewayUrl=gateway.url)
            running.callback(cloud.delete_stack, stack.name)
            fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], cars)
        sqs, partner, topic = (
            cloud.client("sqs"),
            Partner(store, _stumble),
            stack.outputs["PartnersTopicArn"],
        )
        queue = subscribe(cloud.client("sns"), sqs, topic, f"partner-{seed}")
        with progress.step(f"seed {seed}: publishing {spec.rides:,} rides"):
            for done, total, _ in simulate(stack, msgspec.to_builtins(spec), at_once=at_once):
                progress.note(f"{done:,} of {total:,} events")
                _pause(cloud, until=at_once // 4)
        settle("waiting until every event is processed")
        overdue = reconcile(stack, lambda: settle("reconciling rides that stand still"))
        _drain(partner, sqs, queue)
        found = audit.collect_evidence(
            stack, grace=timedelta(), payments=audit.gateway_payments(gateway.ledger())
        )
        report, poison = audit.judge(found), set(_poison(spec))
        dead_letters = {
            (letter.consumer, letter.fact, letter.reason) for letter in found.dead_letters
        }
        published = {event.fact for event in found.published if event.fact is not None}
        counts = {
            "rides are still overdue": overdue,
            "events were lost by the partner": len(published - set(partner.points)),
            "events were doubled by the partner": partner.points.total() - len(partner.points),
        }

        def snapshot() -> dict[str, object]:
            return _tables(stack) | {
                "gateway": gateway.ledger(),
                "partner": partner.points.copy(),
                "dead-letter queues": sorted(map(str, audit.collect_evidence(stack).dead_letters)),
            }

        before, now = snapshot(), datetime.now(UTC)
        # It reaches into the future, because the reconciler runs as if it were tomorrow.
        window = (now - timedelta(hours=1), now + timedelta(days=2))
        replay.start(stack, replay.name_for(stack.region, now), *window, [])
        settle("replaying the archive")
        _drain(partner, sqs, queue)
        after = snapshot()
        replayed = sum(event.replayed for event in reading.published(stack))
        counts["events were not replayed"] = report.ledger.published - replayed
        unexpected = [
            f"{consumer}: {'' if given_up else 'not '}dead-lettered {fact} ({why})"
            for given_up, some in ((True, dead_letters - poison), (False, poison - dead_letters))
            for consumer, fact, why in sorted(some, key=str)
        ]
        changed = [
            f"{name}: changed by the replay" for name in before if before[name] != after[name]
        ]
        wrong = [*wrong_in(report, counts), *unexpected, *changed]
        return Result(seed, time.monotonic() - began, report, dict(books.met), len(poison), wrong)


def _pause(cloud: LocalAws, *, until: int) -> None:
    """Wait until no more events than that are in flight, but not for events that fail again and again."""
    deadline = time.monotonic() + _PAUSE_SECONDS
    while sum(cloud.in_flight().values()) > until and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _drain(partner: Partner, sqs: Any, queue: str) -> None:
    """Let the partner process its queue, including the messages that fail at first."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while left := waiting(sqs, queue, visible=True):
        if time.monotonic() > deadline:
            raise EngineError(f"the partner's queue had {left} messages after {_DRAIN_SECONDS:g} s")
        partner.poll(sqs, queue)


def _stumble(event: Mapping[str, Any], attempt: int) -> None:
    """Fail the partner's first attempt at some events."""
    if attempt == 1 and zlib.crc32(event["attributes"]["idempotencyId"].encode()) % _STUMBLES == 0:
        raise ConnectionError("the partner's own service did not answer")


def _poison(spec: Spec) -> Iterator[tuple[str | None, str | None, str]]:
    """Yield the dead letters that the poison must lead to: consumer, fact and reason."""
    for entry in Simulation(spec, datetime.now(UTC)).entries():
        if entry.fault is Fault.POISON:
            fact_type = json.loads(entry.entry.detail)["type"]
            for consumer in audit.CONSUMERS:
                if consumer.takes(fact_type):
                    yield consumer.name, entry.fact, "QUARANTINED"


def _tables(stack: Stack) -> dict[str, object]:
    """Return the items of the tables that a replay must not change."""
    dynamodb = stack.client("dynamodb")
    return {
        table: sorted(
            json.dumps(item, sort_keys=True, default=repr)
            for item in tables.scan(dynamodb, stack.outputs[f"{table}Name"], condition)
        )
        for table, condition in _TABLES.items()
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make chaos ARGS=…",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rides", type=positive, default=500, metavar="N", help="rides for each seed (500)")
    add(
        "--seeds",
        type=positive,
        default=1,
        metavar="N",
        help="how many seeds, one after the other (1)",
    )
    add("--first-seed", type=count, default=1, metavar="N", help="the first of them (1)")
    add(
        "--unprotected",
        choices=[consumer.name for consumer in audit.CONSUMERS],
        action="append",
        default=[],
        help="take the idempotency decorator off this consumer, which has to be noticed; can be given several times",
    )
    return parser.parse_args(arguments)


def main() -> None:
    """Run the chaos."""
    options = parse()
    with ending_in_order():
        results = run(options, Progress(sys.stdout))
    write([each._asdict() | {"report": each.report.to_json()} for each in results], REPORT)
    for each in results:
        print(f"\nSeed {each.seed}, in {each.seconds:.0f} s:\n\n{each.report.to_text()}\n")
        print(
            f"{sum(each.gateway.values()):,} requests to the gateway went wrong; {each.poison:,} dead letters expected."
        )
    print(f"\nAs JSON: {REPORT.relative_to(ROOT)}", flush=True)
    if wrong := [
        f"seed {result.seed}: {problem}" for result in results for problem in result.wrong
    ]:
        leave(WRONG, "\n".join(wrong))


def run(options: argparse.Namespace, progress: Progress) -> list[Result]:
    """Put one stack after the other through the mix."""
    installed, results = valkey_server.program(), []
    with ExitStack() as running:
        port = installed and running.enter_context(valkey_server.running(installed))
        cloud = running.enter_context(cloud_without(options.unprotected))
        with progress.step("building the functions and layers (sam build)"):
            cloud.build()
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            # The partner's records are in Valkey where it is installed. Each seed's keys have a
            # prefix of their own.
            client = valkey_server.client(int(port), _SOCKET_SECONDS) if port else None
            store = ValkeyStore(client, prefix=f"partner-{seed}:") if client else MemoryStore()
            spec = mix(options.rides, seed)
            results.append(
                rehearse(cloud, spec, store=store, progress=progress, troubles=_TROUBLES)
            )
    return results


if __name__ == "__main__":
    main()
