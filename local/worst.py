"""The worst mix of faults, of `make demo ARGS=--worst`: nothing is lost, doubled or left open."""

import json
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from carride.simulated_faults import Fault
from carride.simulation_spec import Spec
from local import story
from local.command import Progress
from local.local_aws import FAULTS, EngineError, LocalAws, Stack
from local.partner import Partner, subscribe
from local.reconciler import reconcile
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import audit, fleet, replay, tables
from ops.audit import Report, reading
from ops.audit.evidence import Evidence
from ops.audit.queues import waiting
from ops.sentences import says
from ops.simulation import simulate
from simulated_rides import Simulation

TROUBLES: Final = Troubles(
    hanging=0.01,
    late=0.01,
    busy=0.01,
    failed=0.01,
    dropped=0.01,
    declined=0.05,
    forgotten=0.05,
    refused=0.025,
    pending=0.05,
    capped=0.5,
    kept=0.05,
    unknown=0.02,
    asked=0.02,
)
"""What the gateway does wrong."""
_STUMBLES: Final = 20
"""The partner's first attempt fails at one of so many events."""
_KEYS_S: Final = 5.0
"""For how long the gateway knows a key."""
_TABLES: Final = {
    **dict.fromkeys(("AssignmentTable", "CarTable", "PaymentTable", "OutboxTable"), ""),
    "RideHistoryTable": "attribute_exists(orderID)",  # the timelines
}
"""Tables that a replay must not change, and the condition of the items that it must not."""
_DRAIN_SECONDS: Final = 300.0
# A message that fails again and again takes a while until it is given up.
_PATIENCE_SECONDS: Final = 240.0
_PAUSE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


class Mix(NamedTuple):
    """What a stack is put through."""

    spec: Spec
    """The simulator's request."""
    troubles: Troubles = TROUBLES
    """The gateway's."""
    cars: int = 14
    """Size of the fleet, fewer than the rides need."""
    at_once: int = 100
    """Events that are published before the next ones wait until most of them are processed.

    So some rides are published from end to end at once, and others have a car and a charge before
    they are cancelled.
    """


class Result(NamedTuple):
    """The outcome of one seed."""

    report: Report
    injected: Mapping[str, int]
    """What the simulator injected, by fault."""
    gateway: Mapping[str, int]
    """What the gateway did wrong, by trouble."""
    poison: int
    """Dead letters that the poison must lead to: one for each event and consumer."""
    replayed: int
    """Events that the archive delivered again."""
    wrong: Sequence[str]
    """Everything that is wrong, one sentence each."""


class Poisoned(NamedTuple):
    """A dead letter, as poison leads to it."""

    consumer: str | None
    fact: str | None
    reason: str


def run(rides: int, seeds: Iterable[int], progress: Progress) -> list[str]:
    """Put a new stack through the worst mix for each seed; return what is wrong, as sentences."""
    wrong = []
    with engine() as cloud:
        with progress.step("building the functions and layers (sam build)"):
            cloud.build()
        for seed in seeds:
            result = rehearse(cloud, Mix(worst_mix(rides, seed)), progress)
            progress.console.print(_told(seed, result))
            wrong += [f"seed {seed}: {problem}" for problem in result.wrong]
    return wrong


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


def engine(unprotected: Collection[str] = ()) -> LocalAws:
    """Return an engine that injects faults and takes the idempotency off these consumers."""
    # As on AWS, a retry comes after the lease of a killed run of payment has ended: a sooner one
    # would wait for that.
    options = ("--retry-delays=4.5,4.5", "--workers=3", *FAULTS)
    return LocalAws(*options, variables={"UNPROTECTED": ",".join(unprotected)})


def rehearse(cloud: LocalAws, mix: Mix, progress: Progress) -> Result:
    """Put a new stack of a built template through rides and faults, and return the outcome."""
    seed = mix.spec.seed
    books = Books(mix.troubles, seed=seed, keys_s=_KEYS_S)
    with ExitStack() as running:
        gateway = running.enter_context(GatewayServer(books))
        with progress.step(f"seed {seed}: deploying"):
            stack = cloud.deploy_fast(f"worst-{seed}", None, PaymentGatewayUrl=gateway.url)
            running.callback(cloud.delete_stack, stack.name)
            fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], mix.cars)
        rehearsal = _Rehearsal(cloud, stack, gateway, progress, mix.spec)
        injected = rehearsal.publish(mix.at_once)
        overdue = rehearsal.reconcile()
        evidence = audit.collect_evidence(
            stack, grace=timedelta(), payments=audit.gateway_payments(gateway.ledger())
        )
        report = audit.judge(evidence)
        expected = set(_poison(mix.spec))
        counts = {"rides are still overdue": overdue}
        counts |= rehearsal.partner_counts(evidence)
        before = rehearsal.snapshot()
        rehearsal.replay()
        replayed = sum(event.replayed for event in reading.published(stack))
        counts["events were not replayed"] = report.ledger.published - replayed
        wrong = [
            *wrong_in(report, counts),
            *_unexpected(evidence, expected),
            *_changed(before, rehearsal.snapshot()),
        ]
        return Result(
            report,
            injected=injected,
            gateway=dict(books.met),
            poison=len(expected),
            replayed=replayed,
            wrong=wrong,
        )


class _Rehearsal:
    """One stack that is put through rides and faults."""

    def __init__(
        self,
        cloud: LocalAws,
        stack: Stack,
        gateway: GatewayServer,
        progress: Progress,
        spec: Spec,
    ) -> None:
        self._cloud = cloud
        self._stack = stack
        self._gateway = gateway
        self._progress = progress
        self._spec = spec
        self._partner = Partner(_stumble)
        self._sqs = cloud.client("sqs")
        topic = stack.outputs["PartnersTopicArn"]
        name = f"partner-{spec.seed}"
        self._queue = subscribe(cloud.client("sns"), self._sqs, topic, name)

    def publish(self, at_once: int) -> Mapping[str, int]:
        """Publish all rides, and wait until every event is processed; return what was injected."""
        spec = self._spec
        injected: Mapping[str, int] = {}
        request = msgspec.to_builtins(spec)
        most_in_flight = at_once // 4
        with self._progress.step(f"seed {spec.seed}: publishing {spec.rides:,} rides"):
            for published in simulate(self._stack, request, at_once=at_once):
                injected = published.injected
                self._progress.note(f"{published.entries:,} of {published.total:,} events")
                _pause(self._cloud, until=most_in_flight)
        self._settle("waiting until every event is processed")
        return injected

    def reconcile(self) -> int:
        """Settle rides that stand still, let the partner work, and count rides still overdue."""
        step = "reconciling rides that stand still, as if it were tomorrow"
        overdue = reconcile(self._stack, lambda: self._settle(step))
        _drain(self._partner, self._sqs, self._queue)
        return overdue

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
        published = set[str]()
        for event in evidence.published:
            if event.fact is not None:
                published.add(event.fact)
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


def but_for_refusals(report: Report) -> Report:
    """Return a report without the rides that were driven and not paid.

    The gateway refuses rides for good, and the simulator completes them all the same.
    """
    return report._replace(saga=replace(report.saga, unpaid=()))


def wrong_in(report: Report, counts: Mapping[str, int]) -> list[str]:
    """Return what is wrong in a report, one sentence each.

    Args:
        report: The audit's result.
        counts: Numbers that have to be 0, by what they count.
    """
    found = []
    report = but_for_refusals(report)
    if report.status:
        names = [each.says for each in report.ledger.named()]
        for ride, problems in report.saga.problems.items():
            names.append(f"{ride} {'; '.join(map(says, problems))}")
        for ride, overdue in report.saga.overdue.items():
            names.append(f"{ride} is overdue {says(overdue)}")
        sentence = report.verdict
        if names:
            sentence += f": {', '.join(names)}"
        found.append(sentence)
    if not report.saga.settled:
        found.append("rides are open, or cars held, although they were reconciled")
    for what, number in counts.items():
        if number:
            found.append(f"{number} {what}")
    return found


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
    found = dict[str, list[str]]()
    for table, condition in _TABLES.items():
        found[table] = _items(stack, table, condition)
    return found


def _items(stack: Stack, table: str, condition: str) -> list[str]:
    """Return a table's items as texts, which can be compared."""
    found = tables.scan(stack.client("dynamodb"), stack.outputs[f"{table}Name"], condition)
    return sorted(json.dumps(item, sort_keys=True, default=repr) for item in found)


def _told(seed: int, result: Result) -> str:
    """Return the outcome of a seed as text."""
    troubles = ", ".join(f"{number:,} {name}" for name, number in sorted(result.gateway.items()))
    ending = "Something is wrong: the last lines say what."
    if not result.wrong:
        verdict = story.verdict(but_for_refusals(result.report), result.injected)
        ending = f"{verdict} The replay of {result.replayed:,} events changed nothing."
    return f"""
Seed {seed}:

{result.report.to_text()}

Injected: {story.injected(result.injected)}.
The gateway's troubles: {troubles or "none"}.
Poison: {result.poison:,} dead letters, one for each event and consumer; a further delivery may have
one more.
{ending}
"""
