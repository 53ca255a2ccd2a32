"""A replay's plan says what the replay then does, and leaves nothing behind."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import pytest

from carride.bus_entry import BusEntry
from carride_idempotency.clock import epoch_ms
from carride_idempotency.keys import LETTER
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record, Status
from carride_idempotency.record_items import item_of, record_of
from local.local_aws import LocalAws
from local.simulated_gateway import Books, GatewayServer
from ops import fleet, replay, tables
from ops.audit import CONSUMERS, reading
from ops.audit.evidence import RECORD_TABLES, AuditedConsumer, Delivered, Published
from ops.audit.queues import opened, peek
from ops.audit.reading import type_of
from ops.policies import POLICIES, records_of
from ops.replay import PLAN_PREFIX, planning
from ops.replay.planning import Fate, ReplayPlan, fate_of, predict, watch
from ops.simulation import simulate
from ops.stack import StackRef
from simulated_rides import life, to_event
from tests.pipeline.pipeline import Pipeline, deploy_variables

pytestmark = pytest.mark.integration

FAULTS: Final = {
    "duplicates": 0.2,
    "malformed": 8,
    "late": 9,
    "crashes": 3,
    "poison": 6,
    "older": 0.2,
}
OLD: Final = timedelta(days=40)
"""Longer than records are remembered."""

type Fated = tuple[str, str, Fate]
"""A consumer, a type and a fate."""


@pytest.fixture(scope="module")
def pipeline(cloud: LocalAws) -> Iterator[Pipeline]:
    """A stack that has processed 500 events with every kind of fault, one of them too old."""
    with GatewayServer(Books()) as gateway:
        town = Pipeline(cloud, cloud.deploy_fast("replay", PaymentGatewayUrl=gateway.url))
        fleet.seed(cloud.client("dynamodb"), town.stack.outputs["CarTableName"], 64)
        list(simulate(town.stack, {"rides": 60, "seed": 5, **FAULTS}))
        old = BusEntry.of(to_event(life(5, "old")[:1], datetime.now(UTC) - OLD))
        cloud.client("events").put_events(
            Entries=[old.to_request(town.stack.outputs["CarRideBusName"])]
        )
        town.settle()
        yield town
    cloud.reset()


@pytest.fixture
def stack(pipeline: Pipeline) -> StackRef:
    return pipeline.stack


def window() -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    return now - OLD - timedelta(days=1), now


def published(stack: StackRef) -> list[Published]:
    return list(reading.published(stack))


def deliveries(stack: StackRef) -> dict[tuple[str, str | None], Delivered]:
    """Return a consumer's last line about each delivery, by consumer and the delivery's id."""
    return {
        (each.name, line.delivery): line
        for each in CONSUMERS
        for line in reading.deliveries(stack, each)
    }


def change_records(stack: StackRef) -> None:
    """Change records of every consumer so that a replay meets every state."""
    dynamodb = stack.client("dynamodb")
    copies = Counter(event.fact for event in published(stack))
    found: defaultdict[tuple[str, Status, bool], list[Record]] = defaultdict(list)
    names = [stack.outputs[f"{table}Name"] for table in RECORD_TABLES]
    items = chain.from_iterable(tables.scan(dynamodb, name) for name in names)
    marks = list[str]()
    for record in sorted(map(record_of, items)):
        if LETTER in record.key:
            marks.append(record.key)
            continue
        name, _, fact = record.key.partition("#")
        found[name, record.status, copies[fact] > 1].append(record)

    def delete(key: str) -> None:
        table = stack.outputs[f"{records_of(key)}Name"]
        dynamodb.delete_item(TableName=table, Key={"idempotencyKey": {"S": key}})

    def put(record: Record, **changes: Any) -> None:
        table = stack.outputs[f"{records_of(record.key)}Name"]
        dynamodb.put_item(TableName=table, Item=item_of(record._replace(**changes)))

    delete(marks[0])
    now_ms = epoch_ms()
    functions = stack.client("lambda")
    claim: dict[str, Any] = {"status": IN_PROGRESS, "owner": "other", "delivery": "0"}
    for consumer in CONSUMERS:
        # Two copies of an event that is new may meet: only a consumer without claims then sees no
        # other's.
        one, many = (iter(found[consumer.name, COMPLETED, repeated]) for repeated in (False, True))
        for record in [
            next(one),
            next(one),
            next(one),
            next(many if POLICIES[consumer.name].atomic else one),
        ]:
            delete(record.key)
        put(next(one), **claim, lease_ms=now_ms - 3_600_000)
        if consumer.name != "payment":  # which would wait for half a minute
            put(next(many), **claim, lease_ms=now_ms + 600_000)
        put(next(one), status=FAILED, attempt=1)
        put(next(one), status=FAILED, attempt=3)
        put(next(one), expiry=now_ms // 1000 - 3600)
        put(next(one), fingerprint="2:other")
        for record in found[consumer.name, QUARANTINED, False][:1]:
            put(record, dead_lettered=False)
        # New processes: running ones remember for minutes what they have completed.
        name = stack.resources[f"{consumer.resources}Function"]
        variables = functions.get_function_configuration(FunctionName=name)["Environment"][
            "Variables"
        ]
        deploy_variables(functions, name, {**variables, "PROCESSES": "new"})


def flat(planned: ReplayPlan) -> Counter[Fated]:
    """Return the numbers of a plan by consumer, type and fate."""
    each = (
        (name, kind, counts)
        for name, types in planned.fates.items()
        for kind, counts in types.items()
    )
    return Counter(
        {(name, kind, fate): count for name, kind, counts in each for fate, count in counts.items()}
    )


def observed(stack: StackRef, before: Collection[tuple[str, str | None]]) -> Counter[Fated]:
    """Return a replay's numbers, from what consumers, bus and dead-letter queues hold."""
    fates = Counter[Fated]()
    for at, line in deliveries(stack).items():
        if line.type is not None and at not in before:
            fates[line.consumer, line.type, fate_of(line.outcome, line.reason)] += 1
    for each in CONSUMERS:
        fates += fates_of_broken(stack, each, before)
    for each in CONSUMERS:
        for kind, count in Counter(
            str(event.type) for event in published(stack) if event.replayed
        ).items():
            reached = sum(
                number
                for (name, type_, _), number in fates.items()
                if (name, type_) == (each.name, kind)
            )
            fates[each.name, kind, Fate.NOT_FOR_IT] = count - reached
    return +fates


def fates_of_broken(
    stack: StackRef, consumer: AuditedConsumer, before: Collection[tuple[str, str | None]]
) -> Counter[Fated]:
    """Return the numbers of the events that a consumer could not read.

    Its letters tell their types: two of an event if the replay sent one again.
    """
    fates = Counter[Fated]()
    known = list[Any]()
    for message in peek(stack.client("sqs"), stack.outputs[f"{consumer.resources}DlqUrl"]):
        reason, event = opened(message)
        if reason == "CONTRACT":
            known.append(event)
    again = [event for event in known if "replay-name" in event]
    sent_again = {event["id"] for event in again}
    there = [event for event in known if event["id"] not in sent_again]
    for fate, events in ((Fate.DEAD_LETTERED, again), (Fate.LETTER_IS_THERE, there)):
        for event in events:
            fates[consumer.name, str(type_of(event)), fate] += 1
    recognised = [
        line
        for at, line in deliveries(stack).items()
        if at not in before and fate_of(line.outcome, line.reason) is Fate.LETTER_IS_THERE
    ]
    assert len(there) == sum(line.consumer == consumer.name for line in recognised)
    return fates


def test_a_plan_predicts_what_the_run_does(pipeline: Pipeline, stack: StackRef) -> None:
    """For each consumer and type, the plan's numbers are those of the deliveries.

    The plan itself delivers nothing.
    """
    change_records(stack)
    since, until = window()
    before = deliveries(stack).keys()
    planned = predict(stack, since, until, looks=1)
    assert planned.events >= 500
    assert any("14 days" in warning for warning in planned.warnings)
    assert {fate for _, _, fate in flat(planned)} == set(Fate)
    pipeline.settle()
    assert deliveries(stack).keys() == before
    assert not any(event.replayed for event in published(stack))

    rules = {arn.rpartition("/")[2] for arn in replay.receivers(stack)}
    left_out = {
        name for name, rule in stack.named("AWS::Events::Rule").items() if rule not in rules
    }
    assert left_out == {"PartnersRule", "PartnersIdempotencyIdRule", "PartnersOlderRule"}
    name = replay.name_for(stack.region, datetime.now(UTC))
    replay.start(stack, name, since, until, replay.receivers(stack))
    *_, progress = watch(stack, name, pause=0.2)
    assert progress.replay.ended
    pipeline.settle()
    assert observed(stack, before).items() ^ flat(planned).items() == set()


@pytest.mark.thorough
@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
def test_a_plan_that_is_interrupted_leaves_nothing_behind(
    stack: StackRef, end: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rule and queue are removed, and its replay is cancelled."""

    def interrupt(*_asked: object) -> None:
        raise end

    assert temporary(stack) == set()
    client = stack.client("events")
    cancelled = list[object]()
    client.meta.events.register(
        "before-call.eventbridge.CancelReplay", lambda **request: cancelled.append(request)
    )
    # The first step after the replay has begun.
    monkeypatch.setattr(planning, "describe", interrupt)
    with pytest.raises(end):
        predict(stack, *window(), looks=1)
    assert temporary(stack) == set()
    replays = client.list_replays(NamePrefix=PLAN_PREFIX)["Replays"]
    assert cancelled
    # It may be quick.
    assert max(replays, key=itemgetter("ReplayStartTime"))["State"] in {"CANCELLED", "COMPLETED"}


def temporary(stack: StackRef) -> set[str]:
    """Return the names of the rules and queues that the template does not have."""
    rules = stack.client("events").list_rules(EventBusName=stack.outputs["CarRideBusName"])["Rules"]
    names = {rule["Name"] for rule in rules} - {*stack.named("AWS::Events::Rule").values()}
    queues = {url.rpartition("/")[2] for url in stack.client("sqs").list_queues()["QueueUrls"]}
    return names | queues - {
        url.rpartition("/")[2] for url in stack.named("AWS::SQS::Queue").values()
    }


@pytest.mark.thorough
def test_the_next_plan_removes_what_a_killed_one_left(stack: StackRef) -> None:
    """Rules of plans are found by their names, and name their queues.

    Those of a day may be another operator's.
    """
    now = datetime.now(UTC)
    bus = stack.outputs["CarRideBusName"]
    made = list[set[str]]()
    for hours in (23, 25):
        name = f"{PLAN_PREFIX}{replay.name_for(stack.region, now - timedelta(hours=hours))}"
        stack.client("events").put_rule(
            Name=name, EventBusName=bus, EventPattern='{"replay-name": ["killed"]}'
        )
        url = stack.client("sqs").create_queue(QueueName=name.replace(".", "-"))["QueueUrl"]
        made.append({name, url.rpartition("/")[2]})
    assert temporary(stack) == made[0] | made[1]
    predict(stack, now - timedelta(minutes=1), now, looks=1)
    assert temporary(stack) == made[0]
    planning.remove_leftovers(stack, now + timedelta(hours=2))
    assert temporary(stack) == set()


def test_a_run_ends_with_the_audit(
    pipeline: Pipeline,
    stack: StackRef,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The dry run says who receives the events.

    What is interrupted goes on, and says how to cancel it.
    """
    monkeypatch.setattr("ops.cli.replay.predict", partial(predict, looks=1))
    monkeypatch.setattr("ops.cli.replay.PAUSE", 0.2)
    now = datetime.now(UTC).replace(tzinfo=None)
    since = now - timedelta(seconds=1)
    window = ("--since", f"{since.isoformat()}Z", "--until", f"{now.isoformat()}Z")

    def run(verb: str, *options: str) -> tuple[str, int]:
        status = pipeline.carride("replay", verb, *options)
        return "".join(capsys.readouterr()), status

    assert f"replay run {' '.join(window)}" in run("plan", *window)[0]
    assert "every rule but those of partners" in run("run", *window)[0]
    assert "for every rule, as" in run("run", *window, "--partners")[0]
    done, _ = run("run", *window, "--yes")
    assert done.index("dead letters") < done.index(
        "AWS does not show deliveries that Lambda will repeat"
    )

    monkeypatch.setattr(
        "ops.cli.replay.watch", lambda *_stack, **_options: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    shown, status = run("run", *window, "--yes")
    assert status == 130
    (name,) = re.findall(r"carride replay cancel (\S+) --yes", shown)
    *_, progress = watch(stack, name, pause=0.2)
    assert progress.replay.ended
    assert f"{name} COMPLETED" in run("status")[0]
    shown, status = run("cancel", name, "--yes")
    assert ("COMPLETED" in shown, status) == (True, 0), "there is nothing left to cancel"
