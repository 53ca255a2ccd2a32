"""What the explorer finds in the protocol as it is, and whether the explorer itself can be trusted."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

from idempotency import DynamoDBStore, observation
from idempotency.record import Record
from idempotency.stores import Store
from idempotency.stores.dynamodb import item_of
from idempotency.stores.memory import MemoryStore
from idempotency.stores.transport import botocore_transport
from idempotency.testing import ManualClock
from tests.explorer.conftest import EXPLORED
from tests.explorer.process import INSERT, SWAP, Message, Processes, future_of
from tests.explorer.scenarios import SCENARIOS, machine
from tests.explorer.search import explore
from tests.explorer.world import Scenario, World

type RecordProperty = Callable[[str, object], None]

ENOUGH_STATES: Final = 900_000
LONGEST_PAST: Final = 6
"""How many things a process was told before it is compared no further. Heartbeats could go on for ever; and a runner
counts its rounds, which the explorer does not, since none of its worlds can refuse eight writes of one process."""

SMALL: Final = (
    Scenario(name="claims", about="", kinds=(machine(),), tries=1, times_ms=(0, 7_500)),
    Scenario(name="heartbeats", about="", kinds=(machine(),), tries=1, beats=1, times_ms=(0, 4_000, 8_000)),
    Scenario(name="atomic", about="", kinds=(machine(atomic=True, conflict_reruns=1),), conflicts=True, times_ms=(0,)),
    Scenario(
        name="poison", about="", kinds=(machine(max_attempts=1, timeout_ms=5_000),), tries=1, releases=1, times_ms=(0,)
    ),
    Scenario(name="copies", about="", kinds=(machine(),), tries=2, at_once=3, copies=True, times_ms=(0,)),
    Scenario(name="waiting", about="", kinds=(machine(busy="wait"),), tries=1, times_ms=(0, 7_500)),
    Scenario(
        name="payloads",
        about="",
        kinds=(machine(window=100),),
        messages=(Message("D1"), Message("D2", fingerprint="1:b")),
        tries=1,
        times_ms=(0, 101_500),
        leap=1,
    ),
)

by_name = pytest.mark.parametrize("scenario", SMALL, ids=[scenario.name for scenario in SMALL])


def test_every_promise_holds_in_every_state(subtests: pytest.Subtests, record_property: RecordProperty) -> None:
    """Whatever happens in any world, to the end of a million states and more, no promise of the protocol is broken."""
    results = []
    for scenario in SCENARIOS:
        with subtests.test(scenario.name):
            result = explore(scenario)
            results.append(result)
            assert result.story is None, f"\n{result.story}"
            assert result.complete
            assert bool(result.overlaps) == (not scenario.skew_is_bounded), "live claims fall to wrong clocks alone"
    record_property(EXPLORED, sum(result.states for result in results))
    assert sum(result.states for result in results) > ENOUGH_STATES
    assert set().union(*(result.outcomes for result in results)) == observation.PROTECTED, (
        "no promise holds for want of an occasion"
    )


class TestTheExplorerItself:
    """What is left out of a search must make no difference."""

    @by_name
    def test_leaving_out_orders_leaves_out_no_end(self, scenario: Scenario) -> None:
        """A search that tries every order of every step ends in the same states as the reduced one."""
        assert ends(World(scenario, reduced=False)) == ends(World(scenario))

    @by_name
    def test_processes_that_are_taken_for_one_behave_as_one(self, scenario: Scenario) -> None:
        """A process for which another stands makes the same requests, whatever both are told from then on."""
        world = World(scenario)
        ends(world)
        told: dict[object, list[tuple[int, object, Any]]] = {}
        for process, now_ms, said, after in world.tellings():
            told.setdefault(identity(process), []).append((now_ms, said, after))
        processes = Processes()
        pairs = list(world.merged)
        assert pairs
        compared = set()
        while pairs:
            standing, merged = pairs.pop()
            if (identity(standing), identity(merged)) in compared or len(merged.told) > LONGEST_PAST:
                continue
            compared.add((identity(standing), identity(merged)))
            for now_ms, said, after in told.get(identity(standing), ()):
                other = processes.tell(merged, now_ms, said)
                assert future_of(other) == future_of(after)
                pairs.append((after, other))

    def test_a_search_that_is_capped_says_so(self) -> None:
        """A search that stops at max_states is not called complete."""
        result = explore(SCENARIOS[0], max_states=1_000)
        assert not result.complete
        assert result.story is None
        assert result.states >= 1_000

    def test_a_scenario_is_honest_about_its_clocks(self) -> None:
        """Clocks that differ by more than a policy allows must be declared, and may not be declared otherwise."""
        with pytest.raises(ValueError, match="clocks contradict"):
            replace(SMALL[0], kinds=(machine(clock_ms=1_001),))
        with pytest.raises(ValueError, match="clocks contradict"):
            replace(SMALL[0], skew_is_bounded=False)


class TestStoresAgree:
    """The explorer's store is three conditions; the real ones give the answers that it gives."""

    def test_memory(self) -> None:
        """MemoryStore writes and refuses what the explorer's store writes and refuses, for every pair that it met."""
        met = conditions()
        assert len(met) > 500
        for found, kind, seen, record, after in met:
            store = MemoryStore(clock=ManualClock(0))
            if found is not None:
                store.put_if_absent(found)
            assert write(store, kind, seen, record) == after

    def test_dynamodb(self, dynamodb: Any) -> None:
        """So does DynamoDBStore, in DynamoDB's own conditions."""
        met = conditions()
        store = DynamoDBStore("Idempotency", transport=botocore_transport())
        for found, kind, seen, record, after in met[:: len(met) // 100]:
            if found is None:
                dynamodb.delete_item(TableName="Idempotency", Key={"idempotencyKey": {"S": record.key}})
            else:
                dynamodb.put_item(TableName="Idempotency", Item=item_of(found))
            assert write(store, kind, seen, record) == after


def ends(world: World) -> set[object]:
    """Return the states of ``world`` in which no process runs."""
    reached = {world.initial()}
    frontier = [world.initial()]
    while frontier:
        frontier = list({after for state in frontier for _, after in world.steps(state)} - reached)
        reached.update(frontier)
    return {renamed(rest) for rest in map(world.at_rest, reached) if rest is not None}


def renamed(rest: object) -> str:
    """Return the text of a state at rest; which process was called #1 makes no difference to it."""
    names: dict[str, str] = {}
    return re.sub(r"#\d+", lambda match: names.setdefault(match[0], f"owner {len(names)}"), repr(rest))


def identity(process: Any) -> object:
    """Return what makes a process this one and no other."""
    return process.kind.name, process.message, process.owner, process.told


@cache
def conditions() -> list[tuple[Record | None, str, Record | None, Record, Record | None]]:
    """Return every pair of a record and a write that some of the small worlds meet."""
    worlds = [World(scenario) for scenario in SMALL if scenario.name in {"claims", "atomic", "poison"}]
    for world in worlds:
        ends(world)
    return list(itertools.chain.from_iterable(world.conditions() for world in worlds))


def write(store: Store, kind: str, seen: Record | None, record: Record) -> Record | None:
    """Have a real store perform a write of the explorer's."""
    if kind == INSERT:
        return store.put_if_absent(record)
    if kind == SWAP:
        assert seen is not None
        return store.compare_and_swap(seen, record)
    return store.update_if_owner(record)


@pytest.fixture
def dynamodb() -> Iterator[Any]:
    """An empty table of records, in this process."""
    with mock_aws():
        client = boto3.client("dynamodb")
        client.create_table(
            TableName="Idempotency",
            KeySchema=[{"AttributeName": "idempotencyKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "idempotencyKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield client
