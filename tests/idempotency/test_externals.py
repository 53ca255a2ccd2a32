"""External calls: whatever crashes or gets lost, none is made twice, and none is forgotten.

Every store call, external call and probe of a delivery is a request that can meet a fault. The other system here does
not recognise keys: a second call takes effect again.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import fakeredis
import pytest

from idempotency import DynamoDBStore, MemoryStore, Operation, ValkeyStore, testing
from idempotency.consumer import Consumer, release, settle
from idempotency.dead_letters import UNKNOWN, DeadLetter
from idempotency.errors import ConfigurationError, LostLeaseError, NotDoneError, PermanentError
from idempotency.externals import CANNOT_TELL, NOT_DONE, Done
from idempotency.operation import downstream_key
from idempotency.record import COMPLETED, IN_PROGRESS, QUARANTINED, Record, unknown_calls
from idempotency.stores import Store
from idempotency.testing import FakeDynamoDB, ManualClock
from idempotency.testing.worlds import ANSWER_LOST, CRASH_AFTER, CRASH_BEFORE, REQUEST_LOST, Fault, Run
from tests.idempotency.samples import TABLE, World, event

KEY: Final = "shop#k1"
CALLS: Final = ("charge", "ship")
FAULTS: Final = (CRASH_BEFORE, CRASH_AFTER, REQUEST_LOST, ANSWER_LOST)
STORES: Final[Mapping[str, Callable[[ManualClock], Store]]] = {
    "memory": lambda clock: MemoryStore(clock=clock),
    "DynamoDB": lambda clock: DynamoDBStore(TABLE, transport=FakeDynamoDB({}), clock=clock),
    "Valkey": lambda clock: ValkeyStore(fakeredis.FakeValkey(socket_timeout=1), clock=clock),
}
PROBES: Final = ("a probe", "no probe", "a probe that cannot tell")


def end(name: str, probe: str, *faults: tuple[str, int]) -> tuple[list[DeadLetter], int]:
    """Deliver an event until nothing more happens, settle what is unknown, and check that each call was made once.

    A fault meets the request of its number, unless the same delivery has met one before. Returns the dead letters, and
    how many requests the first delivery sent.
    """
    clock, made, runs = ManualClock(), Counter[str](), list[Run]()
    store = STORES[name](clock)
    world = testing.World(store=store, clock=clock)

    def make(key: str) -> tuple[str, Decimal]:
        made[key] += 1
        return key, Decimal("12.50")

    def known(key: str) -> Any:
        return Done((key, Decimal("12.50"))) if made[key] else NOT_DONE

    def work(_: object, operation: Operation) -> None:
        for call in CALLS:
            ask = world.external("probe", known if probe == "a probe" else lambda _: CANNOT_TELL, key=lambda _: None)
            result = operation.external(call, world.external(call, make), None if probe == "no probe" else ask)
            assert result == (downstream_key(KEY, call), Decimal("12.50"))

    def deliver() -> Record:
        sent = sum(run.calls for run in runs)
        kind, at = next((fault for fault in faults if fault[1] > sent), ("", 0))
        with world.installed():
            consumer: Consumer = Consumer(
                "shop", world.store, key="detail.idempotencyid", dead_letters=world.dead_letters
            )
            handler = consumer.event_handler(work)
            runs.append(world.invoke(handler, event(), fault=Fault(kind, lambda number, _: sent + number == at)))
        found = store.read(KEY)
        if found and found.status == IN_PROGRESS:  # the lease of a crashed attempt ends
            store.compare_and_swap(found, found._replace(lease_ms=clock() - 600_000))
        return found or deliver()

    while (record := deliver()).status != COMPLETED and len(runs) < 20:
        if record.status == QUARANTINED:
            deliver()  # once more: it is never run again by itself
            assert world.dead_letters.letters, "what is quarantined is in the dead-letter queue"
            for call in unknown_calls(record):  # which an operator finds out about
                key = downstream_key(KEY, call)
                assert settle(store, KEY, call, known(key), clock=clock)
            release(store, KEY, clock=clock)
    assert (record.status, set(made.values()), len(made)) == (COMPLETED, {1}, 2), faults
    return world.dead_letters.letters, runs[0].calls


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("store", STORES)
def test_a_fault_at_any_line_neither_repeats_nor_loses_a_call(store: str, probe: str) -> None:
    """Whichever request a fault meets, each call is made once. Nobody but a working probe and an operator decides."""
    _, requests = end(store, probe)
    assert requests == (6 if probe == "no probe" else 4), "only a call without a probe costs a write"
    unknown = 0
    for number, fault in itertools.product(range(1, requests + 1), FAULTS):
        letters, _ = end(store, probe, (fault, number))
        assert {letter.reason for letter in letters} <= {UNKNOWN}
        assert all("(downstream key " in letter.message for letter in letters)
        unknown += bool(letters)
    assert bool(unknown) == (probe != "a probe")


@pytest.mark.parametrize("probe", PROBES)
def test_two_faults_neither_repeat_nor_lose_a_call(probe: str) -> None:
    """The second fault may meet a retry, a probe, or what follows the operator's command."""
    for first, second in itertools.combinations(range(1, 14), 2):
        for kind, other in itertools.product(FAULTS, (CRASH_AFTER, ANSWER_LOST)):
            end("memory", probe, (kind, first), (other, second))


class Calls:
    """A handler of one call, to which these things happen in turn: a result, an error, or what a function does."""

    def __init__(self, world: World, *happen: object, probe: Any = None) -> None:
        self.made = 0
        self.got: object = None
        self._happen = iter(happen)
        self._probe = probe
        world.work.step = self.run

    def run(self, operation: Operation) -> object:
        self.got = operation.external("charge", self._call, self._probe)
        return self.got

    def _call(self, _: str) -> object:
        self.made += 1
        happens = next(self._happen)
        if isinstance(happens, Exception):
            raise happens
        return happens() if callable(happens) else happens


@pytest.mark.parametrize("policy", [{"atomic": True}, {"same_delivery_takes_over": True}, {}], ids=str)
def test_a_call_needs_a_claim_and_a_name_of_its_own(world: World, policy: dict[str, Any]) -> None:
    """Otherwise another attempt could make it too, or a second call would get the result of the first."""
    calls = Calls(world, "one")
    world.work.step = lambda operation: (calls.run(operation), calls.run(operation))
    with pytest.raises(ConfigurationError, match="needs a claim" if policy else "its own name"):
        world.deliver(**policy)
    assert calls.made == (0 if policy else 1)


@pytest.mark.parametrize("probe", [None, lambda _: NOT_DONE], ids=["no probe", "a probe"])
@pytest.mark.parametrize("taken", [True, False], ids=["taken over", "its lease has ended"])
def test_nothing_is_called_without_a_lease(world: World, probe: Any, *, taken: bool) -> None:
    """Another attempt may be making the call, and no trace of an intent is left."""
    calls = Calls(world, probe=probe)

    def stall(operation: Operation) -> None:
        world.clock.advance(60)
        if taken:
            world.crash(by="request-2")
        calls.run(operation)

    world.work.step = stall
    with pytest.raises(LostLeaseError):
        world.deliver()
    assert (calls.made, unknown_calls(world.record())) == (0, [])


def test_a_late_heartbeat_erases_no_intent(world: World) -> None:
    """It was sent before the intent, and is refused after it."""

    def late() -> list[str]:
        world.store.update_if_owner(earlier[0])
        return unknown_calls(world.record())

    calls, earlier = Calls(world, late), list[Record]()
    world.work.step = lambda operation: earlier.append(world.record()) or calls.run(operation)  # type: ignore[func-returns-value] # None, then the call
    world.deliver()
    assert calls.got == ["charge"]


def test_only_a_call_that_says_so_was_not_made(world: World) -> None:
    """After a NotDoneError the call is made again; after any other error it is not."""
    calls = Calls(world, NotDoneError("no such card"), PermanentError("perhaps"))
    with pytest.raises(NotDoneError):
        world.deliver()
    assert (world.deliver()["outcome"], world.reasons, calls.made) == ("DeadLettered", [UNKNOWN], 2)


def test_an_unknown_outcome_is_not_swallowed(world: World) -> None:
    """Neither the run nor a later one that makes no call is completed, until the call is settled."""
    calls = Calls(world, TimeoutError())

    def swallow(operation: Operation) -> None:
        with contextlib.suppress(TimeoutError):
            calls.run(operation)

    for step in (swallow, lambda _: None):
        world.work.step = step
        assert world.deliver()["outcome"] == "DeadLettered"
        assert release(world.store, "history#k1", clock=world.clock)
    assert not settle(world.store, "history#k1", "another", NOT_DONE)
    assert settle(world.store, "history#k1", "charge", Done("paid"), clock=world.clock)
    world.work.step = calls.run
    assert (world.deliver()["outcome"], calls.got, calls.made, world.effects) == ("Retried", "paid", 1, 1)


@pytest.mark.parametrize("result", [object(), "x" * 200_000], ids=["without a stored form", "too large"])
def test_a_result_that_cannot_be_kept_is_used(world: World, result: object) -> None:
    """The call has taken effect, so its run is completed. Only a later attempt would have to probe."""
    calls = Calls(world, result)
    assert (world.deliver()["outcome"], calls.got) == ("New", result)
    assert world.record().externals is None, "a completed record needs it no more"


@pytest.mark.parametrize("answer", [None, False, "NOT_DONE"])
def test_a_probe_gives_one_of_its_answers(world: World, answer: object) -> None:
    """A probe that forgets to return anything has not said that nothing was done."""
    calls = Calls(world, TimeoutError(), probe=lambda _: answer)
    for error in (TimeoutError, ConfigurationError):
        with pytest.raises(error):
            world.deliver()
    assert calls.made == 1


def test_a_rerun_after_a_conflict_does_not_call_again(world: World) -> None:
    """It is the same attempt, and knows the result."""
    calls = Calls(world, "paid")
    world.transport.pass_on(2)
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed"}]
    world.transport.answer("TransactionCanceledException", body={"CancellationReasons": reasons})
    assert (world.deliver(conflict_reruns=1)["outcome"], calls.got, len(world.work.runs)) == ("New", "paid", 2)
