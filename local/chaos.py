"""`make chaos`: run the pipeline under the worst mix of faults, and check that nothing was lost or doubled."""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from carride.simulation import Fault, Simulation, Spec
from idempotency import MemoryStore
from idempotency.stores import Store
from idempotency.stores.valkey import ValkeyStore
from local import valkey_server
from local.command import WRONG, Progress, count, ending_in_order, leave, positive, share
from local.demo import DECLINED, publish, reconcile, replay, stack_ref, write
from local.local_aws import FAULTS, ROOT, EngineError, LocalAws, Stack
from local.partner import Partner, subscribe
from local.simulated_gateway import Books, GatewayServer, Strict, Troubles
from ops import audit, fleet
from ops.audit import reading, saga
from ops.audit.ledger import Ledger

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

_STUMBLES: Final = 0.05
"""Share of the events at which the partner's first attempt fails."""
_TABLES: Final = ("RideTable", "AssignmentTable", "CarTable", "PaymentTable", "OutboxTable")
"""Tables that a replay must not change."""
_SOCKET_SECONDS: Final = 30.0
"""Long, because the partner does not know whether a request took effect once it gives up waiting for the answer."""
_DRAIN_SECONDS: Final = 120.0
_PATIENCE_SECONDS: Final = 240.0  # a message that fails again and again takes a while until it is given up
_PAUSE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The events and the faults of one run. All but the first three are shares."""

    rides: int = 500
    cars: int = 14
    """Fewer than the rides need."""
    at_once: int = 100
    """Events that are published before the next ones wait until most of them are processed. So some rides are published
    from end to end at once, and others have a car and a charge before they are cancelled."""
    duplicates: float = 0.5
    """Events that are published twice."""
    out_of_order: float = 0.3
    """Rides in which an event overtakes another."""
    older: float = 0.1
    """Events in the older envelope."""
    crashes: float = 0.05
    """Events that kill each of their consumers once."""
    poison: float = 0.02
    """Events that fail their consumers at every attempt."""
    gateway: float = 0.05
    """Requests to the gateway that go wrong."""

    def spec(self, seed: int) -> Spec:
        """Return the simulator's request."""
        plain = Simulation(Spec(rides=self.rides, seed=seed), datetime.now(UTC))
        return Spec(
            rides=self.rides,
            seed=seed,
            duplicates=self.duplicates,
            out_of_order=self.out_of_order,
            older=self.older,
            crashes=round(self.crashes * len(plain)),
            poison=round(self.poison * len(plain)),
        )

    def troubles(self) -> Troubles:
        """Return the troubles of the gateway."""
        mixed = Troubles.mixed(self.gateway, declined=DECLINED)
        return mixed._replace(refused=self.gateway / 2, pending=self.gateway, capped=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one seed."""

    seed: int
    seconds: float
    ledger: Ledger
    saga: saga.Saga
    overdue: int
    """Rides that still need something after the reconciler ran."""
    partner_lost: int
    partner_doubled: int
    gateway: Mapping[str, int]
    """Requests to the gateway that went wrong, by trouble."""
    poison: int
    """Dead letters that the poison must lead to: one for each event and consumer."""
    unexpected: Sequence[str]
    """Dead letters without poison, and poison without dead letters."""
    not_replayed: int
    """Published events that the replay of the archive left out."""
    changed_by_replay: Sequence[str]

    @property
    def lost(self) -> int:
        """Events that left no trace."""
        return self.ledger.lost + self.partner_lost

    @property
    def doubled(self) -> int:
        """Effects beyond one for each event and consumer."""
        return self.ledger.doubled + self.partner_doubled

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong()

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        nested = {"ledger": self.ledger.to_json(), "saga": self.saga.to_json()}
        return asdict(self) | nested | {"lost": self.lost, "doubled": self.doubled, "sound": self.sound}

    def figures(self) -> dict[str, int | float]:
        """Return the rows of the table."""
        accounts = self.ledger.consumers.values()
        return {
            "seconds": round(self.seconds),
            "published": self.ledger.published,
            "distinct facts": self.ledger.distinct,
            "deliveries": sum(account.deliveries for account in accounts),
            "duplicates absorbed": sum(account.duplicates_absorbed for account in accounts),
            "taken over after a crash": sum(account.takeovers for account in accounts),
            "retried after a failure": sum(account.retried for account in accounts),
            "effects": sum(account.effects for account in accounts),
            "gateway troubles": sum(self.gateway.values()),
            "rides": sum(self.saga.endings.values()),
            **{f"  {ending}": self.saga.endings.get(ending, 0) for ending in saga.Ending},
            "rides charged": self.saga.charged,
            "rides captured": self.saga.captured,
            "rides refunded": self.saga.refunded,
            "rides reconciled": self.saga.reconciled,
            "rides still overdue": self.overdue,
            "cars held": self.saga.cars_held,
            "dead letters expected": self.poison,
            "dead letters unexpected": len(self.unexpected),
            "not replayed": self.not_replayed,
            "changed by the replay": len(self.changed_by_replay),
            "lost": self.lost,
            "doubled": self.doubled,
        }

    def wrong(self) -> list[str]:
        """Return everything that is wrong, one sentence each."""
        partner = f"the partner: lost {self.partner_lost}, doubled {self.partner_doubled}"
        found = {
            f"{self.ledger.verdict}: {', '.join(self.ledger.named())}": not self.ledger.balanced,
            "rides are open, or cars held, although they were reconciled": not self.saga.settled,
            f"{self.overdue} rides are still overdue": self.overdue,
            f"{self.not_replayed} events were not replayed": self.not_replayed,
            partner: self.partner_lost + self.partner_doubled,
        }
        return [
            *(problem for problem, is_wrong in found.items() if is_wrong),
            *(f"{ride}: {'; '.join(problems)}" for ride, problems in self.saga.problems.items()),
            *(f"{ride}: overdue {since}" for ride, since in self.saga.overdue.items()),
            *self.unexpected,
            *(f"{name}: changed by the replay" for name in self.changed_by_replay),
        ]


def cloud_without(unprotected: Collection[str] = ()) -> LocalAws:
    """Return an engine that injects faults and takes the idempotency off these consumers."""
    # As on AWS, a retry comes after the lease of a killed run of payment has ended: a sooner one would wait for that.
    options = ("--retry-delays=4.5,4.5", "--workers=3", *FAULTS)
    return LocalAws(*options, variables={"UNPROTECTED": ",".join(unprotected)})


# ── One seed ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def rehearse(cloud: LocalAws, mix: Mix, *, seed: int, store: Store, progress: Progress) -> Result:
    """Put a new stack through the mix, and return the outcome.

    Args:
        cloud: With the template built.
        mix: The events and the faults.
        seed: Of all random choices.
        store: Idempotency records of the partner's application.
        progress: Shows how far this has come.
    """
    began = time.monotonic()

    def settle(step: str) -> None:
        with progress.step(f"seed {seed}: {step}"):
            cloud.wait_until_quiet(_PATIENCE_SECONDS, progress.note)

    with ExitStack() as running:
        books = Books(mix.troubles(), seed=seed, strict=Strict())
        gateway = running.enter_context(GatewayServer(books))
        with progress.step(f"seed {seed}: deploying"):
            stack = cloud.deploy_fast(f"chaos-{seed}", None, PaymentGatewayUrl=gateway.url)
            running.callback(cloud.delete_stack, stack.name)
            fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], mix.cars)
        sqs, partner, spec = cloud.client("sqs"), Partner(store, before=_stumble), mix.spec(seed)
        queue = subscribe(
            cloud.client("sns"), sqs, stack.outputs["PartnersTopicArn"], f"partner-{seed}", visibility_s=2
        )
        with partner.polling(sqs, queue):
            with progress.step(f"seed {seed}: publishing {mix.rides:,} rides"):
                for done, total, _ in publish(cloud, stack, msgspec.to_builtins(spec), at_once=mix.at_once):
                    progress.note(f"{done:,} of {total:,} events")
                    _pause(cloud, until=mix.at_once // 4)
            settle("waiting until every event is processed")
            overdue = reconcile(cloud, stack, lambda: settle("reconciling rides that stand still"))
        _drain(partner, sqs, queue)
        ref = stack_ref(cloud, stack)
        found = audit.read(ref, grace=timedelta(), payments=audit.gateway_payments(gateway.ledger()))
        report = audit.judge(found)
        dead_letters = {(letter.consumer, letter.fact, letter.reason) for letter in found.dead_letters}
        poison = set(_poison(spec))
        published = {event.fact for event in found.published if event.fact is not None}
        lost, doubled = len(published - set(partner.points)), partner.points.total() - len(partner.points)

        def snapshot() -> dict[str, object]:
            return _tables(cloud, stack) | {
                "gateway": gateway.ledger(),
                "partner": partner.points.copy(),
                "dead-letter queues": sorted(map(str, audit.read(ref).dead_letters)),
            }

        before = snapshot()
        with partner.polling(sqs, queue):
            replay(cloud, stack, f"{stack.name}-{time.time_ns()}")  # a replay's name cannot be used again
            settle("replaying the archive")
        _drain(partner, sqs, queue)
        after = snapshot()
        events = reading.published(cloud.client("logs"), stack.outputs["CarRideEventsLogGroupName"])
        return Result(
            seed=seed,
            seconds=time.monotonic() - began,
            ledger=report.ledger,
            saga=report.saga,
            overdue=overdue,
            partner_lost=lost,
            partner_doubled=doubled,
            gateway=dict(books.met),
            poison=len(poison),
            unexpected=[
                f"{consumer}: {'' if given_up else 'not '}dead-lettered {fact} ({why})"
                for given_up, some in ((True, dead_letters - poison), (False, poison - dead_letters))
                for consumer, fact, why in sorted(some, key=str)
            ],
            not_replayed=report.ledger.published - sum(event.replayed for event in events),
            changed_by_replay=[name for name in before if before[name] != after[name]],
        )


def _pause(cloud: LocalAws, *, until: int) -> None:
    """Wait until no more events than that are in flight, but not for events that fail again and again."""
    deadline = time.monotonic() + _PAUSE_SECONDS
    while sum(cloud.in_flight().values()) > until and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _drain(partner: Partner, sqs: Any, queue: str) -> None:
    """Let the partner process all that is left in its queue, including failed messages."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    deadline = time.monotonic() + _DRAIN_SECONDS
    while time.monotonic() < deadline:
        attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        if not any(int(attributes[name]) for name in names):
            return
        partner.poll(sqs, queue)
    raise EngineError(f"the partner's queue was not empty after {_DRAIN_SECONDS:g} s: {attributes}")


def _stumble(event: Mapping[str, Any], attempt: int) -> None:
    """Fail the partner's first attempt at some events."""
    chance = int.from_bytes(hashlib.blake2b(event["attributes"]["idempotencyId"].encode(), digest_size=4).digest())
    if attempt == 1 and chance < _STUMBLES * 2**32:
        raise ConnectionError("the partner's own service did not answer")


def _poison(spec: Spec) -> Iterator[tuple[str | None, str | None, str]]:
    """Yield the dead letters that the poison must lead to: consumer, fact and reason."""
    for entry in Simulation(spec, datetime.now(UTC)).entries():
        if entry.fault is Fault.POISON:
            fact_type = json.loads(entry.entry.detail)["type"]
            for consumer in audit.CONSUMERS:
                if consumer.takes(fact_type):
                    yield consumer.name, entry.fact, "QUARANTINED"


def _tables(cloud: LocalAws, stack: Stack) -> dict[str, object]:
    """Return the items of the tables that a replay must not change."""
    scan = cloud.client("dynamodb").get_paginator("scan").paginate
    return {
        table: sorted(
            json.dumps(item, sort_keys=True, default=repr)
            for page in scan(TableName=stack.outputs[f"{table}Name"])
            for item in page["Items"]
        )
        for table in _TABLES
    }


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make chaos ARGS=…", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rides", type=positive, default=500, metavar="N", help="rides for each seed (500)")
    add("--cars", type=positive, default=14, metavar="N", help="cars of the fleet (14)")
    add("--seeds", type=positive, default=1, metavar="N", help="how many seeds, one after the other (1)")
    add("--first-seed", type=count, default=1, metavar="N", help="the first of them (1)")
    add("--gateway", type=share, default=0.05, metavar="S", help="share of the gateway's troubles (0.05)")
    add("--json", action="store_true", help="print the figures as JSON only; progress goes to stderr")
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
        results = run(options, Progress(sys.stderr if options.json else sys.stdout))
    text = write([result.to_json() for result in results], REPORT)
    print(text if options.json else f"\n{table(results)}\n\nAs JSON: {REPORT.relative_to(ROOT)}", flush=True)
    if wrong := [f"seed {result.seed}: {problem}" for result in results for problem in result.wrong()]:
        leave(WRONG, "\n".join(wrong))


def run(options: argparse.Namespace, progress: Progress) -> list[Result]:
    """Put one stack after the other through the mix."""
    mix = Mix(rides=options.rides, cars=options.cars, gateway=options.gateway)
    installed = valkey_server.program()
    results = []
    with ExitStack() as running:
        port = installed and running.enter_context(valkey_server.running(installed))
        cloud = running.enter_context(cloud_without(options.unprotected))
        with progress.step("building the functions and layers (sam build)"):
            cloud.build()
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            # The partner's records are in Valkey where it is installed. Each seed's keys have a prefix of their own.
            client = valkey_server.client(int(port), _SOCKET_SECONDS) if port else None
            store = ValkeyStore(client, prefix=f"partner-{seed}:") if client else MemoryStore()
            results.append(rehearse(cloud, mix, seed=seed, store=store, progress=progress))
    return results


def table(results: Sequence[Result]) -> str:
    """Return the figures as a table: a column for each seed."""
    columns = [result.figures() for result in results]
    lines = [f"{'seed':<26}" + "".join(f"{result.seed:>12}" for result in results)]
    lines += [f"{name:<26}" + "".join(f"{column[name]:>12,}" for column in columns) for name in columns[0]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
