"""The world of one run: the way of each request, with its faults, and the notes for the judge."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from carride_idempotency.dead_letters import DeadLetter, DeadLetterError
from carride_idempotency.record import Record
from carride_idempotency.record_items import record_of
from carride_idempotency.stores.transport import ServiceError
from carride_idempotency.testing import START_MS, FakeDynamoDB, World
from tests.world.engine.scheduler import OUTSIDE, Killed, Machine, Simulation, here
from tests.world.shop.plan import Fault, Message, Plan

COMPANY: Final = "company"
_LONGEST_TRY_S: Final = FakeDynamoDB.longest_try_s
_TTL_IS_LATE_S: Final = 172_800
_ORDER: Final = re.compile(r"order-(\d+)")
_REFUSALS: Final = {
    "throttled": ServiceError("ThrottlingException", 400, "Rate exceeded", {}),
    "denied": ServiceError("AccessDeniedException", 400, "is not authorized to perform", {}),
}
_REASONS: Final = {
    "conflict": {"CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict"}]},
    "no reasons": {},
}


def number_in(text: object) -> int | None:
    """Return the number of the message that a key, an event or a line contains."""
    found = _ORDER.search(str(text))
    return None if found is None else int(found[1])


@dataclass(eq=False)
class Entry:
    """One message as its transport holds it, under one id; each copy of it is another entry."""

    message: Message
    id: str
    sent_ms: int
    kind: str = "sent"
    visible_ms: float = 0.0
    receives: int = 0
    calls: list["Call"] = field(default_factory=list)
    """In which it was delivered."""


@dataclass(eq=False)
class Call:
    """One invocation of a Lambda function."""

    id: str
    entries: list[Entry]
    done: Callable[[bool, Any], None]
    touched: bool = False
    """A fault has hit it, so it may fail."""


class Network(World):
    """Carries the requests of all machines, and is the layer's dead-letter queue.

    Attributes:
        calls: what each machine is working on.
        undelivered: what a transport gave up, and why.
        broken: promises that were broken on the way: of which message, and how.
        attempts_excused: reasons for which each message may have lost an attempt.
        deliveries_excused: the calls which may fail for each message.
        killed: messages of which a call was killed, or a request's outcome could not be known or
            recorded.
        measured: machines on which a run has ended normally. Before that nothing says how long the
            work takes: a run that failed says only that it takes longer.
    """

    def __init__(self, plan: Plan) -> None:
        self.simulation = Simulation(plan.seed)
        super().__init__({"Orders": ("id",)}, clock=self.simulation)
        self.concurrency = self.simulation
        self.jitter = self.simulation.roll
        self.plan = plan
        self.healed = False
        self.calls: dict[Machine, Call] = {}
        self.counts: Counter[str] = Counter()
        self.undelivered: list[tuple[Entry, str]] = []
        self.broken: list[tuple[int | None, str]] = []
        self.runs: Counter[int] = Counter()
        self.attempts_excused: dict[int, set[str]] = defaultdict(set)
        self.deliveries_excused: dict[int, set[str]] = defaultdict(set)
        self.killed: set[int] = set()
        self.measured: set[Machine] = set()
        self._at_a_request = {(fault.message, int(fault.at)): fault for fault in plan.faults}
        self._for_a_while = [fault for fault in plan.faults if fault.message is None]
        self._at_fault = {message.number for message in plan.messages if message.behaviour != "ok"}
        self._requests: Counter[int] = Counter()

    # ── What is seen ──────────────────────────────────────────────────────────────────────────────

    def say(self, text: str, who: str = "") -> None:
        """Add a line to the timeline."""
        now_s = (self.simulation.now_ms - START_MS) / 1000
        self.timeline.append(f"{now_s:12.3f} s  {who or here().name:11} {text:.160}")

    def stored(self) -> list[Record]:
        return [record_of(item) for item in self.dynamodb.all("Idempotency")]

    def charges(self, number: int) -> int:
        """Return how often the effect on an order took place.

        In its table, or under different downstream keys.
        """
        order = f"order-{number}"
        found = [
            int(item["charges"]["N"])
            for item in self.dynamodb.all("Orders")
            if item["id"]["S"] == order
        ]
        return sum(found) + len(self.effects.get(f"external charges {order}", ()))

    def excuse(self, number: int | None, why: str = "", *, attempt: bool = True) -> None:
        """Note that the running call may fail for a message, which may cost an ``attempt``."""
        call = self.calls.get(here())
        if call is not None and number is not None:
            self.deliveries_excused[number].add(call.id)
            if attempt:
                self.attempts_excused[number].add(why or call.id)

    def excuse_all(self, call: Call, why: str = "") -> None:
        for number in (entry.message.number for entry in call.entries):
            self.deliveries_excused[number].add(call.id)
            self.attempts_excused[number].add(why or call.id)

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def send(self, dead_letter: DeadLetter) -> None:
        number = number_in(dead_letter.key or dead_letter.event)
        what = f"dead letter of order-{number}, {dead_letter.reason}: {dead_letter.message[:60]}"
        self.call(what, partial(self.dead_letters.letters.append, dead_letter), DeadLetterError)

    def call[T](
        self,
        what: str,
        perform: Callable[[], T],
        lost: Callable[[str], Exception],
        note: Callable[[T], object] = id,
    ) -> T:
        """Send a request: it travels, takes place, and its answer travels back."""
        if here() is OUTSIDE:
            return perform()  # the operator meets no faults
        number = number_in(what)
        way_s = 0.002 + 0.02 * self.simulation.roll(f"way {number}") ** 3
        self.simulation.sleep(way_s)
        kind = self._meet(number, what)
        if kind == "crash before":
            self.crash("crashed")
        if kind == "late":
            late_s = _LONGEST_TRY_S + 60 * self.simulation.roll("late") ** 3
            self.simulation.after(
                late_s, partial(self._late, f"{what}, late", number, perform, note)
            )
        if kind in ("late", "request lost", "outage"):
            raise self._unknown(number, lost(kind))
        if kind == "odd":
            raise self._unknown(number, OSError("something odd about the connection"))
        answer = self._take_place(what, number, perform, note)
        if kind == "crash after":
            self.crash("crashed")
        if kind == "answer lost":
            raise self._unknown(number, lost(kind))
        self.simulation.sleep(_LONGEST_TRY_S * 0.9 if kind == "slow" else way_s)
        return answer

    def _meet(self, number: int | None, what: str) -> str:
        """Return the kind of the fault that a request meets; raise where it is a refusal."""
        if self.healed or number is None:
            return ""
        self._requests[number] += 1
        now_s = (self.simulation.now_ms - START_MS) / 1000
        lasting = (each for each in self._for_a_while if each.at <= now_s < each.at + each.amount)
        fault = self._at_a_request.get((number, self._requests[number])) or next(lasting, None)
        if fault is None:
            return ""
        self.counts[f"fault: {fault.kind}"] += 1
        self.say(f"{what} meets: {fault.kind.upper()}")
        if (call := self.calls.get(here())) is not None:
            call.touched = True
        if (refusal := _refusal(what.split(maxsplit=1)[0], fault)) is not None:
            self.excuse(number)
            # The failure cannot be recorded either.
            lasts = fault.message is None and fault.kind != "conflict"
            if lasts or number in self._at_fault:
                self.killed.add(number)
            raise refusal
        return fault.kind

    def _unknown(self, number: int | None, error: Exception) -> Exception:
        """Return the error of a sender who gives up, and cannot know what became of the request."""
        self.excuse(number)
        if number is not None:
            self.killed.add(number)
        self.simulation.sleep(_LONGEST_TRY_S)
        return error

    def _take_place[T](
        self, what: str, number: int | None, perform: Callable[[], T], note: Callable[[T], object]
    ) -> T:
        self._delete_expired()
        refused = ""
        try:
            answer = perform()
            note(answer)
        except Exception as error:
            refused = f": {error}"
            raise
        else:
            return answer
        finally:
            found = [each for each in self.stored() if number_in(each.key) == number]
            states = (
                f"{each.status} {each.attempt} of {(each.owner or '-')[:4]}" for each in found
            )
            self.say(f"{what}{refused}  [{', '.join(states)}]")

    def _late(self, *request: Any) -> None:
        with suppress(Exception):  # nobody is there any more to hear of it
            self._take_place(*request)

    def _delete_expired(self) -> None:
        """Delete records as the TTL does, up to two days late."""
        for item in self.dynamodb.all("Idempotency"):
            key = item["idempotencyKey"]
            ended_s = int(item.get("expiryTimestamp", {"N": "99999999999"})["N"])
            late_s = self.simulation.now_ms / 1000 - ended_s
            if late_s > 0 and late_s > _TTL_IS_LATE_S * self.simulation.roll(f"ttl {key}"):
                self.dynamodb.delete({"TableName": "Idempotency", "Key": {"idempotencyKey": key}})

    def crash(self, why: str, *, by_company: bool = False) -> None:
        """End the current machine, by a fault or ``by_company``, a record beside it."""
        if (call := self.calls.get(here())) is not None:
            self.excuse_all(call, f"{COMPANY} in {call.id}" if by_company else "")
        self.simulation.kill(here(), why)
        raise Killed


def _refusal(operation: str, fault: Fault) -> ServiceError | None:
    if operation == "TransactWriteItems" and fault.kind in _REASONS:
        return ServiceError("TransactionCanceledException", 400, "cancelled", _REASONS[fault.kind])
    return _REFUSALS.get(fault.kind) if operation.endswith(("Item", "Items")) else None
