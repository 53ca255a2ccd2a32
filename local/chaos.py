"""`make chaos`: the worst mix of everything that can go wrong, and whether anything was lost or doubled in it."""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import msgspec

from carride.simulation import Fault, Simulation, Spec
from idempotency import MemoryStore
from idempotency.stores import Store
from idempotency.stores.valkey import ValkeyStore
from local import valkey_server
from local.demo import Progress, publish, reconcile, site_of
from local.interrupts import end_in_order
from local.local_aws import FAULTS, ROOT, LocalAws, EngineError, Stack
from local.options import count, positive, share
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
UNPROTECTED: Final = ROOT / "local" / "unprotected.py"

_DECLINED: Final = 0.05
_STUMBLES: Final = 0.05
_REPLAYED: Final = ("RideTable", "AssignmentTable", "CarTable", "PaymentTable", "OutboxTable")
"""What a replay may not change."""
_HOUR: Final = timedelta(hours=1)
_RETRY_DELAYS: Final = (4.5, 4.5)
"""In seconds. As on AWS, a retry comes when the lease of a killed run of payment is over: a sooner one would wait for
that, and keep a process from its work."""
_SOCKET_SECONDS: Final = 30.0
"""Whoever gives up waiting for an answer, on a machine with much else to do, does not know what has become of it."""
_DRAIN_SECONDS: Final = 120.0
_PATIENCE_SECONDS: Final = 240.0
_PAUSE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1
_UNSOUND: Final = 1
_FAILED: Final = 2
_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What is published, and what goes wrong with it."""

    rides: int = 500
    cars: int = 14
    """So few that there is not one for every ride."""
    at_once: int = 100
    """Events that are published before the next ones wait until most of them have run their course. Some rides are
    heard of from end to end in one moment, and others get as far as a car and a charge before they are called off."""
    duplicates: float = 0.5
    """Share of the facts that come twice."""
    out_of_order: float = 0.3
    """Share of the rides in which an event overtakes another."""
    older: float = 0.1
    """Share of the events in the older envelope."""
    crashes: float = 0.05
    """Share of the facts that kill each of their consumers, once."""
    poison: float = 0.02
    """Share of the facts that fail their consumers at every attempt."""
    gateway: float = 0.05
    """Share of the gateway's requests that go wrong."""

    def spec(self, seed: int) -> Spec:
        """Return what is to be simulated."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one seed has come to."""

    seed: int
    seconds: float
    ledger: Ledger
    saga: saga.Saga
    overdue: int
    """Rides that were reconciled, and need something still."""
    partner_lost: int
    partner_doubled: int
    gateway: Mapping[str, int]
    """What went wrong at the gateway, and how often."""
    poison: int
    """How many dead letters there have to be: one for each fact and consumer."""
    unexpected: Sequence[str]
    """Dead letters that are no poison, and poison that has none."""
    not_replayed: int
    """How many of the published events the replay of the archive has left out."""
    changed_by_replay: Sequence[str]
    """What the replay has changed."""

    @property
    def lost(self) -> int:
        """How many events left no trace."""
        return self.ledger.lost + self.partner_lost

    @property
    def doubled(self) -> int:
        """How many effects there are beyond one for each fact and consumer."""
        return self.ledger.doubled + self.partner_doubled

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, doubled, broken, left open, given up without need or changed by the replay."""
        wrong = (not self.ledger.balanced, not self.saga.sound, self.overdue, self.unexpected, self.not_replayed)
        return self.saga.settled and not any((self.lost, self.doubled, *wrong, self.changed_by_replay))

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        nested = {"ledger": self.ledger.to_json(), "saga": self.saga.to_json()}
        return asdict(self) | nested | {"lost": self.lost, "doubled": self.doubled, "sound": self.sound}

    def figures(self) -> dict[str, int | float]:
        """Return what the table shows, row by row."""
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
            "rides overdue still": self.overdue,
            "cars held": self.saga.cars_held,
            "dead letters expected": self.poison,
            "dead letters unexpected": len(self.unexpected),
            "not replayed": self.not_replayed,
            "changed by the replay": len(self.changed_by_replay),
            "lost": self.lost,
            "doubled": self.doubled,
        }

    def wrong(self) -> list[str]:
        """Return what is wrong, in words."""
        return [
            *([] if self.ledger.balanced else [f"{self.ledger.verdict}: {', '.join(self.ledger.named())}"]),
            *(f"{ride}: {'; '.join(problems)}" for ride, problems in self.saga.problems.items()),
            *(f"{ride}: overdue {since}" for ride, since in self.saga.overdue.items()),
            *self.unexpected,
            *([] if self.saga.settled else ["rides are open, or cars held, although they were reconciled"]),
            *([f"{self.overdue} rides are overdue still"] if self.overdue else []),
            *([f"{self.not_replayed} events were not replayed"] if self.not_replayed else []),
            *(f"{name}: changed by the replay" for name in self.changed_by_replay),
            *(
                [f"the partner: lost {self.partner_lost}, doubled {self.partner_doubled}"]
                if self._partner_is_wrong
                else []
            ),
        ]

    @property
    def _partner_is_wrong(self) -> bool:
        return self.partner_lost + self.partner_doubled > 0


def cloud_without(unprotected: Collection[str] = ()) -> LocalAws:
    """Return an engine that injects faults and takes the idempotency off these consumers."""
    preload = [UNPROTECTED, FAULTS] if unprotected else [FAULTS]
    variables = {"UNPROTECTED": ",".join(unprotected)}
    return LocalAws(retry_delays=_RETRY_DELAYS, workers=3, preload=preload, variables=variables)


# ── One seed ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def rehearse(
    cloud: LocalAws,
    mix: Mix,
    *,
    seed: int,
    store: Store,
    progress: Progress,
) -> Result:
    """Put a new stack through the mix, and return what it has come to.

    Args:
        cloud: with the template built.
        mix: what goes wrong.
        seed: of all that is left to chance.
        store: where the partner's application remembers what it has done.
        progress: shows how far this has come.
    """
    began = time.monotonic()
    troubles = Troubles.mixed(mix.gateway, declined=_DECLINED)
    troubles = troubles._replace(refused=mix.gateway / 2, pending=mix.gateway, capped=0.5)
    books = Books(troubles, seed=seed, strict=Strict())
    with ExitStack() as running:
        gateway = running.enter_context(GatewayServer(books))
        with progress.step(f"seed {seed}: deploying"):
            stack = cloud.deploy_fast(f"chaos-{seed}", None, PaymentGatewayUrl=gateway.url)
            running.callback(cloud.delete_stack, stack.name)
            fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], mix.cars)
        sqs, partner = cloud.client("sqs"), Partner(store, before=_stumble)
        topic = stack.outputs["PartnersTopicArn"]
        queue = subscribe(cloud.client("sns"), sqs, topic, f"partner-{seed}", visibility_s=2)
        spec = mix.spec(seed)
        with partner.polling(sqs, queue):
            with progress.step(f"seed {seed}: publishing {mix.rides:,} rides"):
                for done, total in publish(cloud, stack, msgspec.to_builtins(spec), at_once=mix.at_once):
                    progress.note(f"{done:,} of {total:,} events")
                    _pause(cloud, until=mix.at_once // 4)
            _settle(cloud, progress, f"seed {seed}: waiting until every event is processed")
            settling = f"seed {seed}: reconciling rides that stand still"
            overdue = reconcile(cloud, stack, lambda: _settle(cloud, progress, settling))
        _drain(partner, sqs, queue)
        site = site_of(cloud, stack)
        found = audit.read(site, grace=timedelta(), payments=audit.gateway_payments(gateway.ledger()))
        report = audit.judge(found)
        letters = {(letter.consumer, letter.fact, letter.reason) for letter in found.dead_letters}
        poison = set(_poison(spec))
        published = {event.fact for event in found.published if event.fact is not None}
        lost, doubled = len(published - set(partner.points)), partner.points.total() - len(partner.points)

        def snapshot() -> dict[str, str]:
            return _tables(cloud, stack) | {
                "gateway": _digest(gateway.ledger()),
                "partner": _digest(partner.points),
                "dead-letter queues": _digest(sorted(map(str, audit.read(site).dead_letters))),
            }

        before = snapshot()
        with partner.polling(sqs, queue):
            _replay(cloud, stack)
            _settle(cloud, progress, f"seed {seed}: replaying the archive")
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
                *(
                    f"{consumer}: dead-lettered {fact} ({why})"
                    for consumer, fact, why in sorted(letters - poison, key=str)
                ),
                *(f"{consumer}: not dead-lettered {fact} ({why})" for consumer, fact, why in sorted(poison - letters)),
            ],
            not_replayed=report.ledger.published - sum(event.replayed for event in events),
            changed_by_replay=[name for name in before if before[name] != after[name]],
        )


def _settle(cloud: LocalAws, progress: Progress, what: str) -> None:
    """Wait until nothing is in flight; a message that fails again and again takes a while until it is given up."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    fewest: int | None = None
    with progress.step(what):
        while left := sum(cloud.in_flight().values()):
            progress.note(f"{left:,} in flight")
            if fewest is None or left < fewest:
                fewest, deadline = left, time.monotonic() + _PATIENCE_SECONDS
            if time.monotonic() > deadline:
                raise EngineError(f"{left} events were in flight for {_PATIENCE_SECONDS:g} s and became no fewer")
            time.sleep(_POLL_SECONDS)


def _pause(cloud: LocalAws, *, until: int) -> None:
    """Wait until no more events than that are in flight, but not for those which fail again and again."""
    deadline = time.monotonic() + _PAUSE_SECONDS
    while sum(cloud.in_flight().values()) > until and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _drain(partner: Partner, sqs: Any, queue: str) -> None:
    """Have the partner take what is left in its queue, including what failed and comes again."""
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
    """Yield the dead letters that there have to be: consumer, fact and reason."""
    for entry in Simulation(spec, datetime.now(UTC)).entries():
        if entry.fault is Fault.POISON:
            fact_type = json.loads(entry.entry.detail)["type"]
            for consumer in audit.CONSUMERS:
                if consumer.takes(fact_type):
                    yield consumer.name, entry.fact, "QUARANTINED"


def _replay(cloud: LocalAws, stack: Stack) -> None:
    """Replay everything that the archive holds."""
    bus = cloud.client("events").describe_event_bus(Name=stack.outputs["CarRideBusName"])
    now = datetime.now(UTC)
    cloud.client("events").start_replay(
        ReplayName=f"{stack.name}-{time.time_ns()}",  # a replay's name cannot be used again
        EventSourceArn=stack.outputs["CarRideArchiveArn"],
        EventStartTime=now - _HOUR,
        EventEndTime=now + 48 * _HOUR,  # the reconciler runs as if it were tomorrow
        Destination={"Arn": bus["Arn"]},
    )


def _tables(cloud: LocalAws, stack: Stack) -> dict[str, str]:
    """Return what the tables hold, as something that can be compared."""
    scan = cloud.client("dynamodb").get_paginator("scan").paginate
    return {
        table: _digest(
            sorted(
                json.dumps(item, sort_keys=True, default=repr)
                for page in scan(TableName=stack.outputs[f"{table}Name"])
                for item in page["Items"]
            )
        )
        for table in _REPLAYED
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make chaos ARGS=…", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rides", type=positive, default=500, metavar="N", help="rides for each seed (500)")
    parser.add_argument("--cars", type=positive, default=14, metavar="N", help="cars of the fleet (14)")
    parser.add_argument(
        "--seeds", type=positive, default=1, metavar="N", help="how many seeds, one after the other (1)"
    )
    parser.add_argument("--first-seed", type=count, default=1, metavar="N", help="the first of them (1)")
    parser.add_argument(
        "--gateway", type=share, default=0.05, metavar="S", help="share of the gateway's troubles (0.05)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only; progress goes to stderr")
    parser.add_argument(
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
    end_in_order()
    progress = Progress(sys.stderr if options.json else sys.stdout)
    try:
        results = run(options, progress)
    except EngineError as error:
        _leave(_FAILED, f"error: {error}")
    except KeyboardInterrupt:
        _leave(_INTERRUPTED, "\nstopped; nothing is left running")
    document = json.dumps([result.to_json() for result in results], indent=2)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(document + "\n", encoding="utf-8")
    print(document if options.json else f"\n{table(results)}\n\nAs JSON: {REPORT.relative_to(ROOT)}", flush=True)
    wrong = [f"seed {result.seed}: {problem}" for result in results for problem in result.wrong()]
    if wrong:
        _leave(_UNSOUND, "\n".join(wrong))


def run(options: argparse.Namespace, progress: Progress) -> list[Result]:
    """Put one stack after the other through the mix."""
    mix = Mix(rides=options.rides, cars=options.cars, gateway=options.gateway)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    installed = valkey_server.program()
    results = []
    with ExitStack() as running:
        port = None if installed is None else running.enter_context(valkey_server.running(installed))
        cloud = running.enter_context(cloud_without(options.unprotected))
        with progress.step("building the functions and layers (sam build)"):
            cloud.build()
        for seed in seeds:
            store = _partners_store(port, f"partner-{seed}:")
            results.append(rehearse(cloud, mix, seed=seed, store=store, progress=progress))
    return results


def _partners_store(port: int | None, prefix: str) -> Store:
    """Return what the partner remembers with: a server where there is one, else its memory.

    The prefix keeps runs apart, since the same seed has the same events.
    """
    if port is None:
        return MemoryStore()
    return ValkeyStore(valkey_server.client(port, _SOCKET_SECONDS), prefix=prefix)


def table(results: Sequence[Result]) -> str:
    """Return the figures as a table: a column for each seed."""
    columns = [result.figures() for result in results]
    lines = [f"{'seed':<26}" + "".join(f"{result.seed:>12}" for result in results)]
    lines += [f"{name:<26}" + "".join(f"{column[name]:>12,}" for column in columns) for name in columns[0]]
    return "\n".join(lines)


def _leave(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
