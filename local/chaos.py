"""`make chaos`: run the pipeline under the worst mix of faults, and check that nothing is lost."""

import argparse
import json
import sys
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from carride.simulated_faults import Fault
from carride.simulation_spec import Spec
from carride_idempotency import MemoryStore, marshalling
from carride_idempotency.stores import Store
from carride_idempotency.stores.valkey import ValkeyStore
from local import faults, valkey_server
from local.command import WRONG, Progress, count, ending_in_order, leave, positive
from local.demo import DECLINED, reconcile, write
from local.local_aws import FAULTS, ROOT, EngineError, LocalAws, Stack
from local.partner import Partner, subscribe
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import audit, fleet, replay, tables
from ops.audit import Report, reading
from ops.audit.evidence import Evidence
from ops.audit.queues import waiting
from ops.dead_letters import DeadLetter, received_from
from ops.redrive import Redrive, plan_redrive
from ops.simulation import simulate
from simulated_rides import Simulation

DESCRIPTION: Final = """\
Put the whole pipeline through the worst mix on this machine: half of the events come twice,
a third of the rides in disorder; events kill their consumers, poison fails at every attempt;
the payment gateway hangs, fails after charging, drops answers, forgets keys, refuses rides
and captures above the reservation, takes its time to reserve, and keeps errors under their
keys. For each seed a new stack of the real template is put through it, and the whole archive
is replayed after it, which has to change nothing.

A kept error needs a new key, which payment uses once the gateway cannot finish the first
request any more: here that is seconds, on AWS more than an hour. Rides that stand still are
reconciled then, and the letters of kept errors redriven, before the replay. It ends with
status 0 if nothing was lost, doubled, broken, left open, given up without need or changed by
the replay, 1 if something was, and 2 if it could not be run. The figures are also written to
.demo/chaos.json."""

REPORT: Final = ROOT / ".demo" / "chaos.json"

_STUMBLES: Final = 20
"""The partner's first attempt fails at one of so many events."""
_TROUBLES: Final = 0.05
"""Share of the requests to the gateway that go wrong."""
_FINISHES_WITHIN_S: Final = 5.0
"""In which the gateway finishes a request: a late one takes effect after four seconds."""
_MOST_REDRIVES: Final = 9
"""A further key may keep an error, too."""
_TABLES: Final = {
    **dict.fromkeys(("AssignmentTable", "CarTable", "PaymentTable", "OutboxTable"), ""),
    "RideHistoryTable": "attribute_exists(orderID)",  # the timelines
}
"""Tables that a replay must not change, and the condition of the items that it must not."""
_PAYMENT_DLQ: Final = "PaymentDlq"
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
    kept: int
    """Rides of which the gateway kept an error under a key."""
    done_anew: int
    """Rides of which a step then took effect under a further key."""
    poison: int
    """Dead letters that the poison must lead to: one for each event and consumer."""
    wrong: Sequence[str]
    """Everything that is wrong, one sentence each."""


class Poisoned(NamedTuple):
    """A dead letter, as poison leads to it."""

    consumer: str | None
    fact: str | None
    reason: str


def wrong_in(report: Report, counts: Mapping[str, int]) -> list[str]:
    """Return what is wrong in a report, one sentence each.

    Args:
        report: The audit's result.
        counts: Numbers that have to be 0, by what they count.
    """
    found = []
    if not report.ledger.balanced:
        found.append(f"{report.ledger.verdict}: {', '.join(report.ledger.named())}")
    if not report.saga.settled:
        found.append("rides are open, or cars held, although they were reconciled")
    for what, number in counts.items():
        if number:
            found.append(f"{number} {what}")
    for ride, problems in report.saga.problems.items():
        found.append(f"{ride}: {'; '.join(problems)}")
    for ride, since in report.saga.overdue.items():
        found.append(f"{ride}: overdue {since}")
    return found


def worst_mix(rides: int, seed: int) -> Spec:
    """Return the simulator's request for the worst mix.

    Of the events, 5 % kill their consumers, and 2 % are poison.
    """
    events = len(Simulation(Spec(rides=rides, seed=seed), datetime.now(UTC)))
    crashes = round(0.05 * events)
    poison = round(0.02 * events)
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
    variables = {
        "UNPROTECTED": ",".join(unprotected),
        faults.BOUND: f"{_FINISHES_WITHIN_S:g}",
    }
    return LocalAws(*options, variables=variables)


class Mix(NamedTuple):
    """What a stack is put through."""

    spec: Spec
    """The simulator's request."""
    troubles: float
    """Share of the requests to the gateway that go wrong."""
    kept: float = 0.0
    """Share of the keys under which the gateway keeps an error. It needs `cloud_without`."""
    cars: int = 14
    """Size of the fleet, fewer than the rides need."""
    at_once: int = 100
    """Events that are published before the next ones wait until most of them are processed.

    So some rides are published from end to end at once, and others have a car and a charge before
    they are cancelled.
    """


def rehearse(cloud: LocalAws, mix: Mix, *, store: Store, progress: Progress) -> Result:
    """Put a new stack of a built template through rides and faults, and return the outcome.

    Args:
        cloud: The engine.
        mix: Rides and faults.
        store: Idempotency records of the partner's application.
        progress: Shows how far this has come.
    """
    began = time.monotonic()
    seed = mix.spec.seed
    with ExitStack() as running:
        gateway = running.enter_context(GatewayServer(_books(mix)))
        with progress.step(f"seed {seed}: deploying"):
            stack = cloud.deploy_fast(f"chaos-{seed}", None, PaymentGatewayUrl=gateway.url)
            running.callback(cloud.delete_stack, stack.name)
            fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], mix.cars)
        rehearsal = _Rehearsal(cloud, stack, gateway, Partner(store, _stumble), progress, mix.spec)
        rehearsal.publish(mix.at_once)
        overdue = rehearsal.recover() if mix.kept else rehearsal.reconcile()
        evidence = audit.collect_evidence(
            stack, grace=timedelta(), payments=audit.gateway_payments(gateway.ledger())
        )
        report = audit.judge(evidence)
        expected = set(_poison(mix.spec))
        counts = {"rides are still overdue": overdue}
        counts |= rehearsal.partner_counts(evidence)
        before = rehearsal.snapshot()
        rehearsal.replay()
        counts["events were not replayed"] = report.ledger.published - _replayed(stack)
        wrong = [
            *wrong_in(report, counts),
            *_unexpected(evidence, expected),
            *_changed(before, rehearsal.snapshot()),
        ]
        books = gateway.books
        return Result(
            seed,
            time.monotonic() - began,
            report,
            gateway=dict(books.met),
            kept=len(books.kept),
            done_anew=len(books.done_anew),
            poison=len(expected),
            wrong=wrong,
        )


def _books(mix: Mix) -> Books:
    """Return the gateway's books, which meet the mix's troubles."""
    troubles = Troubles.mixed(mix.troubles, declined=DECLINED)
    worst = troubles._replace(
        refused=mix.troubles / 2, pending=mix.troubles, capped=0.5, kept=mix.kept
    )
    return Books(worst, seed=mix.spec.seed, keys_s=5)


class _Rehearsal:
    """One stack that is put through rides and faults."""

    def __init__(  # noqa: PLR0917 - the parts of one stack
        self,
        cloud: LocalAws,
        stack: Stack,
        gateway: GatewayServer,
        partner: Partner,
        progress: Progress,
        spec: Spec,
    ) -> None:
        self._cloud = cloud
        self._stack = stack
        self._gateway = gateway
        self._partner = partner
        self._progress = progress
        self._spec = spec
        self._sqs = cloud.client("sqs")
        topic = stack.outputs["PartnersTopicArn"]
        name = f"partner-{spec.seed}"
        self._queue = subscribe(cloud.client("sns"), self._sqs, topic, name)

    def publish(self, at_once: int) -> None:
        """Publish all rides, and wait until every event is processed."""
        spec = self._spec
        request = msgspec.to_builtins(spec)
        most_in_flight = at_once // 4
        with self._progress.step(f"seed {spec.seed}: publishing {spec.rides:,} rides"):
            for published in simulate(self._stack, request, at_once=at_once):
                self._progress.note(f"{published.entries:,} of {published.total:,} events")
                _pause(self._cloud, until=most_in_flight)
        self._settle("waiting until every event is processed")

    def reconcile(self) -> int:
        """Settle rides that stand still, let the partner work, and count rides still overdue."""
        step = "reconciling rides that stand still"
        overdue = reconcile(self._stack, lambda: self._settle(step))
        _drain(self._partner, self._sqs, self._queue)
        return overdue

    def recover(self) -> int:
        """Settle all rides although the gateway keeps errors, and count rides still overdue.

        The reconciler has payment ask again, once it may use new keys. Then the letters are
        redriven that the kept errors led to, as an operator does. A new key may keep an error,
        too.
        """
        for _ in range(_MOST_REDRIVES):
            self._wait_for_new_keys()
            overdue = self.reconcile()
            self._wait_for_new_keys()
            if not self._redrive():
                return overdue
            self._settle("redriving what met a kept error")
        return self.reconcile()

    def _wait_for_new_keys(self) -> None:
        """Wait until the gateway cannot finish any request that it has not answered."""
        with self._progress.step(f"seed {self._spec.seed}: waiting until new keys may be used"):
            rows = tables.scan(
                self._stack.client("dynamodb"), self._stack.outputs["PaymentTableName"]
            )
            ends = [end for row in rows for end in asked_until(row)]
            while ends and datetime.now(UTC) < max(ends):
                time.sleep(_POLL_SECONDS)

    def _redrive(self) -> bool:
        """Redrive payment's letters of kept errors; return whether there were any."""
        poison = {each.fact for each in _poison(self._spec)}
        received = received_from(self._stack, _PAYMENT_DLQ)
        kept = letters_of_kept_errors(
            [each.letter for each in received], self._gateway.books.kept, poison
        )
        for key in kept:
            plan = plan_redrive(self._stack, _PAYMENT_DLQ, key=key, release=True)
            Redrive(self._stack, plan, canary=False, report=self._progress.note).carry_out()
        return bool(kept)

    def replay(self) -> None:
        """Replay the whole archive.

        The window reaches into the future, because the reconciler runs as if it were tomorrow.
        """
        now = datetime.now(UTC)
        name = replay.name_for(self._stack.region, now)
        since = now - timedelta(hours=1)
        until = now + timedelta(days=2)
        replay.start(self._stack, name, since, until, [])
        self._settle("replaying the archive")
        _drain(self._partner, self._sqs, self._queue)

    def partner_counts(self, evidence: Evidence) -> dict[str, int]:
        """Return how many events the partner has lost and doubled."""
        published = {event.fact for event in evidence.published if event.fact is not None}
        points = self._partner.points
        return {
            "events were lost by the partner": len(published - set(points)),
            "events were doubled by the partner": points.total() - len(points),
        }

    def snapshot(self) -> dict[str, object]:
        """Return everything that a replay must not change."""
        dead_letters = audit.collect_evidence(self._stack).dead_letters
        return {
            **_tables(self._stack),
            "gateway": self._gateway.ledger(),
            "partner": self._partner.points.copy(),
            "dead-letter queues": sorted(str(letter) for letter in dead_letters),
        }

    def _settle(self, step: str) -> None:
        with self._progress.step(f"seed {self._spec.seed}: {step}"):
            self._cloud.wait_until_quiet(_PATIENCE_SECONDS, self._progress.note)


def asked_until(payment: tables.Wire) -> list[datetime]:
    """Return until when the gateway may finish each step that payment has asked it for."""
    values: dict[str, Any] = marshalling.values(payment)
    return [datetime.fromisoformat(each["until"]) for each in values.get("asked", {}).values()]


def letters_of_kept_errors(
    letters: Iterable[DeadLetter], kept: Collection[str], poison: Collection[str | None]
) -> list[str]:
    """Return the keys of the letters that are there because the gateway kept an error.

    Args:
        letters: payment's dead letters.
        kept: the rides of which the gateway kept an error.
        poison: the facts whose letters stay.
    """
    keys = {
        letter.key
        for letter in letters
        if letter.key is not None and letter.ride in kept and letter.fact not in poison
    }
    return sorted(keys)


def _replayed(stack: Stack) -> int:
    """Count the replayed events on the bus."""
    return sum(event.replayed for event in reading.published(stack))


def _unexpected(evidence: Evidence, expected: set[Poisoned]) -> Iterator[str]:
    """Yield dead letters that are there without poison, and poison without a dead letter."""
    found = set[Poisoned]()
    for letter in evidence.dead_letters:
        found.add(Poisoned(letter.consumer, letter.fact, letter.reason))
    without_poison = sorted(found - expected, key=str)
    without_letter = sorted(expected - found, key=str)
    for consumer, fact, reason in without_poison:
        yield f"{consumer}: dead-lettered {fact} ({reason})"
    for consumer, fact, reason in without_letter:
        yield f"{consumer}: not dead-lettered {fact} ({reason})"


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    """Yield what the replay has changed."""
    for name, state in before.items():
        if after[name] != state:
            yield f"{name}: changed by the replay"


def _pause(cloud: LocalAws, *, until: int) -> None:
    """Wait until at most ``until`` events are in flight, but not for those that fail for ever."""
    deadline = time.monotonic() + _PAUSE_SECONDS
    while sum(cloud.in_flight().values()) > until and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _drain(partner: Partner, sqs: Any, queue: str) -> None:
    """Let the partner process its queue, including the messages that fail at first."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while True:
        left = waiting(sqs, queue, visible=True)
        if not left:
            return
        if time.monotonic() > deadline:
            raise EngineError(
                f"the partner's queue had {left} messages after {_DRAIN_SECONDS:g} s: run it "
                "again with fewer --rides"
            )
        partner.poll(sqs, queue)


def _stumble(event: Mapping[str, Any], attempt: int) -> None:
    """Fail the partner's first attempt at some events."""
    if attempt == 1 and zlib.crc32(event["attributes"]["idempotencyId"].encode()) % _STUMBLES == 0:
        raise ConnectionError("the partner's own service did not answer")


def _poison(spec: Spec) -> Iterator[Poisoned]:
    """Yield the dead letters that the poison must lead to."""
    for entry in Simulation(spec, datetime.now(UTC)).entries():
        if entry.fault is Fault.POISON:
            event_type = json.loads(entry.entry.detail)["type"]
            for consumer in audit.CONSUMERS:
                if consumer.takes(event_type):
                    yield Poisoned(consumer.name, entry.fact, "QUARANTINED")


def _tables(stack: Stack) -> dict[str, list[str]]:
    """Return the items of the tables that a replay must not change."""
    return {table: _items(stack, table, condition) for table, condition in _TABLES.items()}


def _items(stack: Stack, table: str, condition: str) -> list[str]:
    """Return a table's items as texts, which can be compared."""
    found = tables.scan(stack.client("dynamodb"), stack.outputs[f"{table}Name"], condition)
    return sorted(json.dumps(item, sort_keys=True, default=repr) for item in found)


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
        help="take the idempotency decorator off this consumer, which must be noticed; "
        "can be given several times",
    )
    return parser.parse_args(arguments)


def main() -> None:
    """Run the chaos."""
    options = parse()
    with ending_in_order():
        results = rehearse_seeds(options, Progress(sys.stdout))
    write([each._asdict() | {"report": each.report.to_json()} for each in results], REPORT)
    for each in results:
        _tell(each)
    print(f"\nAs JSON: {REPORT.relative_to(ROOT)}", flush=True)
    wrong = []
    for result in results:
        wrong += [f"seed {result.seed}: {problem}" for problem in result.wrong]
    if wrong:
        leave(WRONG, "\n".join(wrong))


def _tell(result: Result) -> None:
    """Print the outcome of one seed."""
    print(f"\nSeed {result.seed}, in {result.seconds:.0f} s:\n\n{result.report.to_text()}\n")
    troubles = sum(result.gateway.values())
    print(f"{troubles:,} requests to the gateway went wrong.")
    print(
        f"{result.poison:,} dead letters are due to poison, one for each event and consumer; a "
        "further delivery of it may have one more."
    )
    print(
        f"{result.kept:,} rides met an error that was kept under its key; "
        f"{result.done_anew:,} of them were charged, captured or refunded under a new one."
    )


def rehearse_seeds(options: argparse.Namespace, progress: Progress) -> list[Result]:
    """Put one stack after the other through the mix."""
    results = []
    with ExitStack() as running:
        port = None
        if installed := valkey_server.program():
            port = running.enter_context(valkey_server.running(installed))
        cloud = running.enter_context(cloud_without(options.unprotected))
        with progress.step("building the functions and layers (sam build)"):
            cloud.build()
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            mix = Mix(worst_mix(options.rides, seed), _TROUBLES, kept=_TROUBLES)
            store = _partner_store(port, seed)
            results.append(rehearse(cloud, mix, store=store, progress=progress))
    return results


def _partner_store(port: int | None, seed: int) -> Store:
    """Return where the partner's records are: in Valkey, if it runs, with a prefix of the seed."""
    if port is None:
        return MemoryStore()
    client = valkey_server.client(port, _SOCKET_SECONDS)
    return ValkeyStore(client, prefix=f"partner-{seed}:")


if __name__ == "__main__":
    main()
