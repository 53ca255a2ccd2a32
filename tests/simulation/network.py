"""The network of one run, its faults, and the notes that the judge reads: above all whom a fault excuses."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from greenlet import getcurrent

from idempotency.dead_letters import DeadLetter, DeadLetterError
from tests.simulation.engine import Killed, Machine, Simulation, Task, current
from tests.simulation.plan import Message, Plan
from tests.simulation.stores import LONGEST_TRY_S, Backend, open_backend

_ORDER: Final = re.compile(r"order-(\d+)")
_CLOCK_BOUND_MS: Final = 500.0
"""Half of the clock skew that policies allow between two clocks."""


def number_in(text: str | None) -> int | None:
    """Return the number of the message that a key speaks of."""
    found = _ORDER.search(text or "")
    return None if found is None else int(found[1])


@dataclass(eq=False)
class Entry:
    """One message as its transport holds it, under one id; each copy of it is another entry."""

    message: Message
    id: str
    sent_ms: float
    replayed: bool = False
    by_hand: bool = False
    visible_ms: float = 0.0
    receives: int = 0
    invocations: list["Invocation"] = field(default_factory=list)
    """In which it was delivered."""


@dataclass(eq=False)
class Invocation:
    """One call of a Lambda function, or of a container."""

    id: str
    entries: list[Entry]
    done: Callable[[bool, Any], None]
    deadline_ms: float
    touched: bool = False
    """A fault has met it, so that it may end badly."""


class LostError(Exception):
    """Raised in a handler when the other side's answer did not come."""


class Notes:
    """What was seen in a run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Deliveries, faults by kind, outcomes."""
        self.letters: list[DeadLetter] = []
        self.undelivered: list[tuple[Entry, str]] = []
        """What a transport gave up, and its words."""
        self.broken: list[tuple[int | None, str]] = []
        """Invariants that were broken on the way: of which message, and how."""
        self.ledger: dict[str, str] = {}
        """The other side's: the fact under each downstream key."""
        self.runs: Counter[tuple[int, str]] = Counter()
        self.results: list[tuple[int, Any]] = []
        """What callers were told."""
        self.expired: set[int] = set()
        self.gave_up: set[int] = set()
        """Messages whose synchronous caller had no answer in the end."""
        self.attempts_excused: dict[int, set[str]] = defaultdict(set)
        """What cost each message an attempt that the layer need not answer for."""
        self.deliveries_excused: dict[int, set[str]] = defaultdict(set)
        """The invocations which may fail for each message."""
        self.killed: set[int] = set()
        """Messages of which an invocation was killed, or some request had an unknown outcome."""
        self.may_overlap: set[int] = set()
        """Messages whose leases were made worthless by a clock or a freeze."""
        self.wild: set[int] = set()
        """Messages that met a machine whose clock is out of bounds."""

    def excuse(self, invocation: Invocation | None, number: int | None, why: str | None = None) -> None:
        """Note that this delivery may fail; ``why`` is what costs an attempt as well: each reason costs one."""
        if invocation is not None and number is not None:
            self.deliveries_excused[number].add(invocation.id)
            if why is not None:
                self.attempts_excused[number].add(why)

    def excuse_all(self, invocation: Invocation | None, why: str) -> None:
        """Note the same for every message of an invocation."""
        for entry in invocation.entries if invocation is not None else ():
            self.excuse(invocation, entry.message.number, why)


class Network:
    """Carries the requests of all machines, and has faults meet them."""

    def __init__(self, plan: Plan, simulation: Simulation) -> None:
        self.notes = Notes()
        self.invocations: dict[Machine, Invocation] = {}
        """What each machine is working on."""
        self.healed = False
        self.backend: Backend = open_backend(plan.store, simulation, self)
        self._simulation = simulation
        self._at_a_request = {(fault.message, int(fault.at)): fault for fault in plan.faults}
        self._for_a_while = [fault for fault in plan.faults if fault.message is None]
        self._requests: Counter[int] = Counter()
        self._at_fault = {message.number for message in plan.messages if message.behaviour != "ok"}
        self._looking = False

    def invocation(self) -> Invocation | None:
        """Return what the running task works on."""
        task = getcurrent()
        return self.invocations.get(task.machine) if isinstance(task, Task) else None

    def request[T](
        self,
        what: str,
        key: str,
        perform: Callable[[], T],
        *,
        lost: Callable[[str], Exception],
        refuse: Callable[[str], Exception | None] = lambda kind: None,
    ) -> T:
        """Send a request: it travels, takes place, and its answer travels back."""
        if self._looking or not isinstance(getcurrent(), Task):
            return perform()  # nobody in the world: the judge looks
        number = number_in(key)
        way_s = 0.002 + 0.02 * self._simulation.roll(f"way {number}") ** 3
        self._simulation.sleep(way_s)
        kind, amount = self._meet(number, what)
        invocation = self.invocation()
        excuse = None if invocation is None else f"fault in {invocation.id}"
        if kind == "crash before":
            self.crash("crashed")
        elif kind == "freeze":
            self.freeze(amount)
        elif kind == "clock":
            self._jump(amount)
        elif kind in ("request lost", "outage", "late"):
            if kind == "late":
                late_s = LONGEST_TRY_S + 60 * self._simulation.roll("late") ** 3
                self._simulation.after(
                    late_s, lambda: self._take_place(f"{what}, late", number, key, perform, late=True)
                )
            self._unknown(number, excuse)
            raise lost(kind)
        elif kind == "odd":
            self._unknown(number, excuse)
            raise OSError("something odd about the connection")
        elif kind is not None and (refusal := refuse(kind)) is not None:
            self.notes.excuse(invocation, number, excuse)
            if number in self._at_fault or self._is_for_a_while(kind):
                self.notes.killed.add(number)  # a failure that cannot be recorded either
            raise refusal
        answer = self._take_place(what, number, key, perform)
        if kind == "crash after":
            self.crash("crashed")
        if kind == "answer lost":
            self._unknown(number, excuse)
            raise lost(kind)
        self._simulation.sleep(LONGEST_TRY_S * 0.9 if kind == "slow" else way_s)
        return answer

    def _meet(self, number: int | None, what: str) -> tuple[str | None, float]:
        """Return what this request meets, and how much of it."""
        if self.healed or number is None:
            return None, 0.0
        self._requests[number] += 1
        fault = self._at_a_request.get((number, self._requests[number]))
        if fault is None:
            now_s = self._simulation.now_ms / 1000
            fault = next((each for each in self._for_a_while if each.at <= now_s < each.at + each.amount), None)
        if fault is None:
            return None, 0.0
        self.notes.counts[f"fault: {fault.kind}"] += 1
        self.say(number, f"{what} meets: {fault.kind.upper()} {fault.amount if fault.message is not None else ''}")
        invocation = self.invocation()
        if invocation is not None:
            invocation.touched = True
        return fault.kind, fault.amount

    def _is_for_a_while(self, kind: str) -> bool:
        """Whether the store refuses everything; a conflict concerns transactions only."""
        now_s = self._simulation.now_ms / 1000
        return kind != "conflict" and any(
            fault.kind == kind and fault.at <= now_s < fault.at + fault.amount for fault in self._for_a_while
        )

    def _unknown(self, number: int | None, excuse: str | None) -> None:
        """Nobody can know what became of a request: its sender gives it up after a while."""
        self.notes.excuse(self.invocation(), number, excuse)
        if number is not None:
            self.notes.killed.add(number)
        self._simulation.sleep(LONGEST_TRY_S)

    def _take_place[T](
        self, what: str, number: int | None, key: str, perform: Callable[[], T], *, late: bool = False
    ) -> T | None:
        try:
            answer = perform()
        except Exception as error:
            self.say(number, f"{what}: {error}  [{self._state(key)}]")
            if late:
                return None  # nobody is there any more to hear of it
            raise
        self.say(number, f"{what}  [{self._state(key)}]")
        return answer

    def _state(self, key: str) -> str:
        """Say what the record of a key is now."""
        self._looking = True
        record = self.backend.store.read(key)
        self._looking = False
        return "-" if record is None else f"{record.status} {record.attempt} of {(record.owner or '-')[:4]}"

    def say(self, number: int | None, text: str) -> None:
        """Add a line to the timeline."""
        task = getcurrent()
        self._simulation.say(task.machine.name if isinstance(task, Task) else "", number, text)

    # ── What happens to machines ──────────────────────────────────────────────────────────────────────────────────────

    def crash(self, why: str, excuse: str | None = None) -> None:
        """End the machine that runs; ``excuse`` names what excuses one attempt, however often it happens."""
        machine = current().machine
        invocation = self.invocation()
        if invocation is not None:
            self.notes.excuse_all(invocation, excuse or f"fault in {invocation.id}")
        self._simulation.kill(machine, why)
        raise Killed

    def freeze(self, seconds: float) -> None:
        """Have the machine that runs stand still."""
        self._disturb()
        current().machine.frozen_until_ms = self._simulation.now_ms + seconds * 1000
        self._simulation.sleep(0.0)

    def _jump(self, seconds: float) -> None:
        machine = current().machine
        machine.clock_ms += seconds * 1000
        if self.is_wild(machine):
            self._disturb()

    def _disturb(self) -> None:
        invocation = self.invocation()
        if invocation is not None:
            self.disturb(invocation)

    def disturb(self, invocation: Invocation) -> None:
        """Note that the messages of an invocation cannot rely on their leases."""
        invocation.touched = True
        self.notes.excuse_all(invocation, f"fault in {invocation.id}")
        numbers = {entry.message.number for entry in invocation.entries}
        self.notes.may_overlap |= numbers
        if any(call is invocation and self.is_wild(machine) for machine, call in self.invocations.items()):
            self.notes.wild |= numbers

    def is_wild(self, machine: Machine) -> bool:
        """Whether a machine's clock is further off than policies allow."""
        return abs(machine.clock_ms) > _CLOCK_BOUND_MS

    # ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, letter: DeadLetter) -> None:
        """Take a dead letter: the layer's `DeadLetters`."""
        key = letter.key or str(letter.event)
        what = f"letter {letter.reason}: {letter.message[:60]}"
        self.request(what, key, lambda: self.notes.letters.append(letter), lost=DeadLetterError)
