"""The network of one run with its faults, and the notes for the judge."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from idempotency.dead_letters import DeadLetter, DeadLetterError
from tests.idempotency.simulation.dynamodb import LONGEST_TRY_S, DynamoDB, Refuse
from tests.idempotency.simulation.engine import Killed, Machine, Simulation, current, running
from tests.idempotency.simulation.plan import Fault, Message, Plan

_ORDER: Final = re.compile(r"order-(\d+)")
COMPANY: Final = "company"


def number_in(text: object) -> int | None:
    """Return the number of the message that a key, or an event, contains."""
    found = _ORDER.search(str(text))
    return None if found is None else int(found[1])


@dataclass(eq=False)
class Entry:
    """One message as its transport holds it, under one id; each copy of it is another entry."""

    message: Message
    id: str
    sent_ms: float
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


class Notes:
    """What was seen in a run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.dead_letters: list[DeadLetter] = []
        self.undelivered: list[tuple[Entry, str]] = []
        """What a transport gave up, and why."""
        self.broken: list[tuple[int | None, str]] = []
        """Promises that were broken on the way: of which message, and how."""
        self.ledger: dict[str, str] = {}
        """The order that the external system has charged under each downstream key."""
        self.runs: Counter[int] = Counter()
        self.attempts_excused: dict[int, set[str]] = defaultdict(set)
        """Reasons for which each message may have lost an attempt."""
        self.deliveries_excused: dict[int, set[str]] = defaultdict(set)
        """The calls which may fail for each message."""
        self.killed: set[int] = set()
        """Messages of which a call was killed, or a request's outcome could not be known or recorded."""

    def excuse(self, call: Call | None, number: int | None, why: str | None = None) -> None:
        """Note that this delivery may fail; ``why`` is what costs an attempt as well: each reason costs one."""
        if call is not None and number is not None:
            self.deliveries_excused[number].add(call.id)
            if why is not None:
                self.attempts_excused[number].add(why)

    def excuse_all(self, call: Call, why: str | None = None) -> None:
        for entry in call.entries:
            self.excuse(call, entry.message.number, why or call.id)


class Network:
    """Carries the requests of all machines, and applies the faults to them. It is the layer's dead-letter queue."""

    def __init__(self, plan: Plan, simulation: Simulation) -> None:
        self.plan = plan
        self.simulation = simulation
        self.notes = Notes()
        self.calls: dict[Machine, Call] = {}
        """What each machine is working on."""
        self.healed = False
        self.dynamodb = DynamoDB(simulation, self.request)
        self._at_a_request = {(fault.message, int(fault.at)): fault for fault in plan.faults}
        self._for_a_while = [fault for fault in plan.faults if fault.message is None]
        self._at_fault = {message.number for message in plan.messages if message.behaviour != "ok"}
        self._requests: Counter[int] = Counter()
        self._looking = False

    def call(self) -> Call | None:
        task = current()
        return None if task is None else self.calls.get(task.machine)

    def say(self, number: int | None, text: str) -> None:
        task = current()
        self.simulation.say("network" if task is None else task.machine.name, number, text)

    def send(self, dead_letter: DeadLetter) -> None:
        what = f"dead letter {dead_letter.reason}: {dead_letter.message[:60]}"
        key = dead_letter.key or f"order-{number_in(dead_letter.event)}"
        self.request(what, key, lambda: self.notes.dead_letters.append(dead_letter), DeadLetterError)

    def request[T](
        self,
        what: str,
        key: str,
        perform: Callable[[], T],
        lost: Callable[[str], Exception],
        refuse: Refuse = lambda kind: None,
    ) -> T:
        """Send a request: it travels, takes place, and its answer travels back."""
        if self._looking or current() is None:
            return perform()  # the judge reads without faults
        number = number_in(key)
        way_s = 0.002 + 0.02 * self.simulation.roll(f"way {number}") ** 3
        self.simulation.sleep(way_s)
        fault = self._meet(number, what)
        kind = None if fault is None else fault.kind
        if fault is not None:
            if kind == "late":
                late_s = LONGEST_TRY_S + 60 * self.simulation.roll("late") ** 3
                self.simulation.after(late_s, partial(self._late, what, number, key, perform))
            self._before(fault, number, lost, refuse)
        answer = self._take_place(what, number, key, perform)
        if kind == "crash after":
            self.crash("crashed")
        if kind == "answer lost":
            raise self._unknown(number, lost(kind))
        self.simulation.sleep(LONGEST_TRY_S * 0.9 if kind == "slow" else way_s)
        return answer

    def _meet(self, number: int | None, what: str) -> Fault | None:
        if self.healed or number is None:
            return None
        self._requests[number] += 1
        now_s = self.simulation.now_ms / 1000
        lasting = (each for each in self._for_a_while if each.at <= now_s < each.at + each.amount)
        fault = self._at_a_request.get((number, self._requests[number])) or next(lasting, None)
        if fault is not None:
            self.notes.counts[f"fault: {fault.kind}"] += 1
            self.say(number, f"{what} meets: {fault.kind.upper()}")
            if (call := self.call()) is not None:
                call.touched = True
        return fault

    def _before(self, fault: Fault, number: int | None, lost: Callable[[str], Exception], refuse: Refuse) -> None:
        match fault.kind:
            case "crash before":
                self.crash("crashed")
            case "late" | "request lost" | "outage":
                raise self._unknown(number, lost(fault.kind))
            case "odd":
                raise self._unknown(number, OSError("something odd about the connection"))
            case kind if (refusal := refuse(kind)) is not None:
                self._excuse(number)
                lasts = fault.message is None and kind != "conflict"  # the failure cannot be recorded either
                if number is not None and (lasts or number in self._at_fault):
                    self.notes.killed.add(number)
                raise refusal

    def _unknown(self, number: int | None, error: Exception) -> Exception:
        """Return the error of a sender who gives up, and cannot know what became of the request."""
        self._excuse(number)
        if number is not None:
            self.notes.killed.add(number)
        self.simulation.sleep(LONGEST_TRY_S)
        return error

    def _excuse(self, number: int | None) -> None:
        if (call := self.call()) is not None:
            self.notes.excuse(call, number, call.id)

    def _take_place[T](self, what: str, number: int | None, key: str, perform: Callable[[], T]) -> T:
        refused = ""
        try:
            return perform()
        except Exception as error:
            refused = f": {error}"
            raise
        finally:
            self._looking = True
            record = self.dynamodb.store.read(key)
            self._looking = False
            state = "-" if record is None else f"{record.status} {record.attempt} of {(record.owner or '-')[:4]}"
            self.say(number, f"{what}{refused}  [{state}]")

    def _late(self, what: str, number: int | None, key: str, perform: Callable[[], object]) -> None:
        try:
            self._take_place(f"{what}, late", number, key, perform)
        except Exception as error:  # noqa: BLE001 - nobody is there any more to hear of it
            self.say(number, f"nobody hears of {type(error).__name__}")

    def crash(self, why: str, *, by_company: bool = False) -> None:
        """End the current machine, by a fault or ``by_company``, a record beside it."""
        if (call := self.call()) is not None:
            self.notes.excuse_all(call, f"{COMPANY} in {call.id}" if by_company else None)
        self.simulation.kill(running().machine, why)
        raise Killed


class Part:
    """Base of the parts of one run."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._plan = network.plan
        self._simulation = network.simulation
        self._notes = network.notes
