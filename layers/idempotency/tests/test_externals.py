"""External calls: none is made twice, and none is forgotten.

The other system here does not recognise keys.

The explorer meets every request, call and probe with a crash or a loss.
"""

import contextlib
from decimal import Decimal
from typing import Any

import pytest

from carride_idempotency import MemoryStore, Operation, Policy, release, settle
from carride_idempotency.dead_letters import UNKNOWN
from carride_idempotency.errors import (
    ConfigurationError,
    LostLeaseError,
    NotDoneError,
    PermanentError,
    QuarantinedError,
    RetryableError,
    UnknownOutcomeError,
)
from carride_idempotency.keys import downstream_key
from carride_idempotency.protocol.externals import CANNOT_TELL, NOT_DONE, Done
from carride_idempotency.record import Record, unknown_calls
from carride_idempotency.testing import Crash
from tests.samples import World, consumer_of, crash, event, fail_with

KEY = "history#k1"


class Calls:
    """A handler of one call, to which these things happen in turn.

    A result, an error, or what a function does.
    """

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


@pytest.mark.parametrize(
    "probe", [None, lambda _: CANNOT_TELL], ids=["no probe", "a probe that cannot tell"]
)
def test_what_nobody_can_tell_waits_for_an_operator(world: World, probe: Any) -> None:
    """The dead letter names the call.

    Settled as not done, it is made again, after an intent of its own.
    """
    calls = Calls(world, *2 * [lambda: crash(None)], "paid", probe=probe)
    for _ in range(2):
        with pytest.raises(Crash):
            world.deliver()
        world.clock.advance(60)
        assert [world.deliver()["outcome"] for _ in range(2)] == ["DeadLettered", "Quarantined"]
        assert (
            f"charge (downstream key {downstream_key(KEY, 'charge')})"
            in world.box.letters[-1].message
        )
        assert settle(world.store, KEY, "charge", NOT_DONE, clock=world.clock)
    assert (world.deliver()["outcome"], calls.got, calls.made) == ("Retried", "paid", 3)
    assert set(world.reasons) == {UNKNOWN}


@pytest.mark.parametrize("between", ["a failure before the call", "a release"])
def test_a_call_that_a_crash_left_open_is_probed_by_every_later_attempt(
    world: World, between: str
) -> None:
    """Neither a failure before the call nor a release makes the next attempt a first one."""
    calls = Calls(world, lambda: crash(None), probe=lambda _: Done("paid"))
    with pytest.raises(Crash):
        world.deliver()
    world.clock.advance(120)
    if between == "a release":
        assert release(world.store, KEY, clock=world.clock)
    else:
        world.fail(KeyError("pickup"))
        world.work.step = calls.run
    assert world.deliver()["outcome"] == "Retried"
    assert (calls.got, calls.made) == ("paid", 1)


BEYOND_WINDOW_S = 31 * 86_400


class Forgetful:
    """A function with a call, over a store that deletes what has expired, of an unknown caller."""

    def __init__(self, world: World, *happen: object, probe: Any = None, **policy: Any) -> None:
        self.calls = Calls(world, *happen, probe=probe)
        self._world = world
        store = MemoryStore(clock=world.clock)
        self.consumer = consumer_of(
            "billing", store, policy=Policy(**policy), clock=world.clock, sleep=world.clock.sleep
        )

        @self.consumer.function(key="order_id", name="pay")
        def pay(order_id: str, operation: Any = None) -> object:
            return self.calls.run(operation)

        self._pay = pay

    def pay(self) -> object:
        return self._pay("k1")

    def wait(self) -> None:
        """Let the window pass, and every record that ends with it be deleted."""
        self._world.clock.advance(BEYOND_WINDOW_S)


@pytest.mark.parametrize("probes", [False, True])
@pytest.mark.parametrize("ends", ["a crash", "a failure"])
def test_a_call_that_is_open_outlasts_the_window(world: World, ends: str, probes: bool) -> None:
    """However late the next attempt comes, it asks the probe, and without one the operator."""
    happens: object = (lambda: crash(None)) if ends == "a crash" else TimeoutError()
    probe = (lambda _: Done("paid")) if probes else None
    forgetful = Forgetful(world, happens, probe=probe)
    with pytest.raises((Crash, TimeoutError)):
        forgetful.pay()
    forgetful.wait()
    if probes:
        assert forgetful.pay() == "paid"
    else:
        with pytest.raises(UnknownOutcomeError):
            forgetful.pay()
    assert forgetful.calls.made == 1


def test_a_call_that_was_made_outlasts_the_window_of_a_failed_attempt(world: World) -> None:
    """The attempt after a release finds the call's result, even after the window."""
    forgetful = Forgetful(world, "paid", max_attempts=1)
    run = forgetful.calls.run
    forgetful.calls.run = lambda operation: (run(operation), fail_with(KeyError("pickup"))(None))  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        forgetful.pay()
    assert forgetful.consumer.release("k1", "pay")
    forgetful.wait()
    forgetful.calls.run = run  # type: ignore[method-assign]
    assert (forgetful.pay(), forgetful.calls.made) == ("paid", 1)


def test_a_crashed_function_that_must_not_run_again_never_does(world: World) -> None:
    """With ``on_crash="quarantine"`` the crash outlasts the window."""
    forgetful = Forgetful(world, lambda: crash(None), on_crash="quarantine")
    with pytest.raises(Crash):
        forgetful.pay()
    for _ in range(2):
        forgetful.wait()
        with pytest.raises(QuarantinedError):
            forgetful.pay()
    assert forgetful.calls.made == 1


@pytest.mark.parametrize(("dated", "remains"), [(True, False), (False, True)])
def test_a_claim_is_kept_for_as_long_as_its_delivery_may_come(
    world: World, dated: bool, remains: bool
) -> None:
    """A message with its time is refused after its window, so its claim may expire then."""
    message = event()
    if not dated:
        del message["time"]
    world.crash(message)
    assert (world.record().expiry is None) == remains


def test_an_open_call_of_a_message_outlasts_the_window_of_its_message(world: World) -> None:
    """Another message of the same key may come later than the first one may."""
    Calls(world, lambda: crash(None))
    with pytest.raises(Crash):
        world.deliver()
    assert world.record().expiry is None


def test_a_call_is_not_settled_while_its_attempt_runs(world: World) -> None:
    """An operator who looks too early would free the key under a call that is being made."""
    answers = []

    def meanwhile() -> str:
        answers.append(settle(world.store, KEY, "charge", NOT_DONE, clock=world.clock))
        return "paid"

    calls = Calls(world, meanwhile)
    assert (world.deliver()["outcome"], answers, calls.made) == ("New", [False], 1)


@pytest.mark.parametrize(("probe", "writes"), [(None, 3), (lambda _: CANNOT_TELL, 2)])
def test_a_later_attempt_gets_an_equal_result(world: World, probe: Any, writes: int) -> None:
    """The run that failed after its call keeps the result.

    Only a call without a probe costs a write.
    """
    calls = Calls(world, ("paid", Decimal("12.50")), probe=probe)

    def fail(operation: Operation) -> None:
        calls.run(operation)
        raise KeyError("pickup")

    world.work.step = fail
    with pytest.raises(KeyError):
        world.deliver()
    assert len(world.transport.requests) == writes
    world.work.step = calls.run
    assert (world.deliver()["outcome"], calls.got, calls.made) == (
        "Retried",
        ("paid", Decimal("12.50")),
        1,
    )


@pytest.mark.parametrize(
    "policy", [{"atomic": True}, {"same_delivery_takes_over": True}, {}], ids=str
)
def test_a_call_needs_a_claim_and_a_name_of_its_own(world: World, policy: dict[str, Any]) -> None:
    """Otherwise another attempt could make it too, or a second call get the first's result."""
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

    calls = Calls(world, late)
    earlier = list[Record]()
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
    """No run is completed until the call is settled, even one that makes no call."""
    calls = Calls(world, TimeoutError())

    def swallow(operation: Operation) -> None:
        with contextlib.suppress(TimeoutError):
            calls.run(operation)

    for step in (swallow, lambda _: None):
        world.work.step = step
        assert world.deliver()["outcome"] == "DeadLettered"
        assert release(world.store, KEY, clock=world.clock)
    assert not settle(world.store, KEY, "another", NOT_DONE)
    assert settle(world.store, KEY, "charge", Done("paid"), clock=world.clock)
    world.work.step = calls.run
    assert (world.deliver()["outcome"], calls.got, calls.made, world.effects) == (
        "Retried",
        "paid",
        1,
        1,
    )


@pytest.mark.parametrize(
    "result", [object(), "x" * 200_000], ids=["without a stored form", "too large"]
)
def test_a_result_that_cannot_be_kept_is_used(world: World, result: object) -> None:
    """The call has taken effect, so its run is completed.

    Only a later attempt would have to probe.
    """
    calls = Calls(world, result)
    assert (world.deliver()["outcome"], calls.got) == ("New", result)
    assert world.record().externals is None, "a completed record needs it no more"


@pytest.mark.parametrize("answer", [None, False, "NOT_DONE"])
def test_a_probe_gives_one_of_its_answers(world: World, answer: object) -> None:
    """A probe that forgets to return anything has not said that nothing was done."""
    answers = iter([answer, Done("paid")])
    calls = Calls(world, TimeoutError(), probe=lambda _: next(answers))
    for error in (TimeoutError, ConfigurationError):
        with pytest.raises(error):
            world.deliver()
    assert (world.deliver()["outcome"], calls.got, calls.made) == ("Retried", "paid", 1)


def test_a_rerun_after_a_conflict_does_not_call_again(world: World) -> None:
    """It is the same attempt, and knows the result."""
    calls = Calls(world, "paid")
    world.transport.pass_on(2)
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed"}]
    world.transport.answer("TransactionCanceledException", body={"CancellationReasons": reasons})
    assert (world.deliver(conflict_reruns=1)["outcome"], calls.got, len(world.work.runs)) == (
        "New",
        "paid",
        2,
    )


class ThrottledError(NotDoneError, RetryableError):
    """The other system has thrown the request away, which is not the message's fault."""


def test_a_request_that_was_thrown_away_uses_up_no_attempt(world: World) -> None:
    """It may be made as often as it takes, and no operator is asked."""
    calls = Calls(world, *[ThrottledError("slow down")] * 9, "paid")
    for _ in range(9):
        with pytest.raises(ThrottledError):
            world.deliver()
    assert world.deliver()["outcome"] == "Retried"
    assert (calls.made, calls.got) == (10, "paid")
