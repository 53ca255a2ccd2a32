"""One run of a plan, the operator who repairs what is left of it, and the judge of both."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from idempotency import release
from idempotency.dead_letters import BEYOND_WINDOW, QUARANTINED, UNKNOWN, DeadLetter
from idempotency.record import COMPLETED
from tests.idempotency.simulation.engine import Line, RestlessError, Simulation
from tests.idempotency.simulation.handlers import Shop
from tests.idempotency.simulation.network import COMPANY, Entry, Network, Part, number_in
from tests.idempotency.simulation.plan import PASSING, THE_CODES_FAULT, UNREADABLE, Message, Plan
from tests.idempotency.simulation.transports import TRANSPORTS, Function

_OPERATOR_WAITS_S: Final = 3600.0
_ROUNDS_OF_THE_OPERATOR: Final = 2
"""A key whose last attempt crashed is still claimed when its transport gives up: its first redrive quarantines it."""
_CRASHED: Final = "every attempt ended without an answer"
"""The message of the dead letter of a key whose attempts crashed."""


class Broken(NamedTuple):
    message: int | None
    what: str


class Report(NamedTuple):
    plan: Plan
    broken: list[Broken]
    timeline: list[Line]
    counts: Counter[str]
    hours: float


def run(plan: Plan) -> Report:
    simulation = Simulation(plan.seed)
    with simulation.patched():
        network = Network(plan, simulation)
        world = World(network)
        broken: list[Broken] = []
        try:
            simulation.run()
            broken += world.judge()
            for _ in range(_ROUNDS_OF_THE_OPERATOR if not broken else 0):
                world.operate()
                simulation.run()
            if not broken:
                broken += world.judge_the_end()
        except RestlessError as error:
            broken.append(Broken(None, str(error)))
    return Report(plan, broken, simulation.timeline, network.notes.counts, simulation.now_ms / 3_600_000)


class World(Part):
    """What a plan describes: its transport, its function and its store."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        plan = network.plan
        self._messages = {message.number: message for message in plan.messages}
        self._function = Function(self._network, Shop(self._network))
        self._transport = TRANSPORTS[plan.world](self._network, self._function)
        self._entries: list[Entry] = []
        for message in plan.messages:
            first = self._entry(message, message.at_s)
            self._send(first, message.at_s)
            for copy in message.copies:
                at_s = message.at_s + copy.after_s
                entry = self._entry(message, at_s if copy.kind == "resent" else message.at_s)
                entry.id, entry.kind = entry.id if copy.kind == "resent" else first.id, copy.kind
                self._send(entry, at_s)

    def _entry(self, message: Message, at_s: float) -> Entry:
        unordered = self._simulation.hexadecimal("id")
        self._entries.append(Entry(message, f"{unordered}-{len(self._entries)}-order-{message.number}", at_s * 1000))
        return self._entries[-1]

    def _send(self, entry: Entry, after_s: float) -> None:
        self._simulation.after(after_s, partial(self._transport.send, entry))

    def operate(self) -> None:
        """Repair handlers and network, release quarantined keys, and redrive messages that were given up."""
        if not self._network.healed:
            self._network.healed = True
            self._function.idle.clear()
        self._simulation.now_ms += _OPERATOR_WAITS_S * 1000
        for record in self._network.dynamodb.records():
            if release(self._network.dynamodb.store, record.key, clock=self._simulation.clock):
                self._simulation.say("operator", number_in(record.key), f"releases {record.key}")
        again = self._dead()
        self._notes.dead_letters.clear()
        self._notes.undelivered.clear()
        self._notes.runs.clear()
        for number in sorted(again):
            if self._messages[number].behaviour not in UNREADABLE:
                entry = self._entry(self._messages[number], self._messages[number].at_s)
                self._simulation.say("operator", number, f"sends {entry.id}")
                self._send(entry, 0.0)

    # ── Judgement ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def judge(self) -> Iterator[Broken]:
        dead = self._dead()
        for number, message in self._messages.items():
            if not self._is_done(number) and number not in dead:
                yield Broken(number, "it is lost: neither done nor in a dead-letter queue")
            if message.behaviour in PASSING:
                yield from self._judge_health(message)
            yield from self._judge_bounds(message)
        for dead_letter in self._notes.dead_letters:
            yield from self._judge_reason(dead_letter)
        for record in self._network.dynamodb.records():
            number_ = number_in(record.key)
            if record.status not in (COMPLETED, QUARANTINED) and number_ not in dead:
                yield Broken(number_, f"{record.key} is {record.status} in the end")
        yield from self._judge_effects()

    def judge_the_end(self) -> Iterator[Broken]:
        """Yield what an operator could not repair, except events beyond their window."""
        notes = self._notes
        late = {number_in(each.key) for each in notes.dead_letters if self._is_late(each)}
        for number, message in self._messages.items():
            if message.behaviour not in UNREADABLE and number not in late and not self._is_done(number):
                yield Broken(number, "it is not done, though everything was repaired and it was delivered again")
        for dead_letter in notes.dead_letters:
            if not self._is_late(dead_letter):
                words = f"it was given up again: {dead_letter.reason} {dead_letter.message}"
                yield Broken(number_in(dead_letter.key), words)
        for entry, words in notes.undelivered:
            yield Broken(entry.message.number, f"it was given up again by its transport: {words}")
        for record in self._network.dynamodb.records():
            if record.status != COMPLETED and number_in(record.key) not in late:
                yield Broken(number_in(record.key), f"{record.key} is {record.status} in the end")
        yield from self._judge_effects()

    def _judge_health(self, message: Message) -> Iterator[Broken]:
        """Judge that a healthy message was given up only for excused reasons.

        Attempts and deliveries are excused by an injected fault, a failure of its own, or a crash that its neighbours
        caused (except on the last attempt). Deliveries are also excused while another delivery holds the key, and for
        want of time, see `_deliveries_allowed`.
        """
        number, notes = message.number, self._notes
        attempts = self._plan.max_attempts
        reasons = notes.attempts_excused[number]
        company = sum(reason.startswith(COMPANY) for reason in reasons)
        excused = len(reasons) - company + min(company, attempts - 1)
        mine = [dead_letter for dead_letter in notes.dead_letters if number_in(dead_letter.key) == number]
        for dead_letter in mine:
            used_up = dead_letter.reason in (QUARANTINED, UNKNOWN) and excused >= attempts
            if not (self._is_late(dead_letter) or used_up):
                words = f"{dead_letter.reason}: {dead_letter.message}; excused are {excused} of {attempts} attempts"
                yield Broken(number, f"it is healthy and was given up, {words}")
        given_up = {} if mine or self._is_done(number) else dict(notes.undelivered)
        for entry in self._entries:
            calls = [call.id for call in entry.calls if call.id not in notes.deliveries_excused[number]]
            if entry.message is message and entry in given_up and len(calls) > self._deliveries_allowed(number):
                words = f"was given up by its transport ({given_up[entry]}): {calls} are unexcused"
                yield Broken(number, f"it is healthy and {words}")

    def _deliveries_allowed(self, number: int) -> int:
        """Return how many deliveries a healthy message may need, because its neighbours take the time."""
        plan = self._plan
        if plan.world == "rule":
            return 0
        longest_s = max(message.work_s for message in plan.messages) + 1
        in_turn = max(1, int((plan.timeout_s - 1) / longest_s))
        at_once = 1 if number in self._notes.killed else plan.concurrency  # suspects run alone
        return bool(self._notes.killed) - -plan.batch // (at_once * in_turn)

    def _judge_bounds(self, message: Message) -> Iterator[Broken]:
        bound = self._plan.max_attempts + (message.times if message.behaviour == "retryable" else 0)
        if self._plan.atomic:
            bound = self._notes.counts["deliveries"]
        runs = self._notes.runs[message.number]
        if runs > bound:
            yield Broken(message.number, f"it was run {runs} times, and {bound} is the bound")

    def _judge_reason(self, dead_letter: DeadLetter) -> Iterator[Broken]:
        number = number_in(dead_letter.key or dead_letter.event)
        assert number is not None
        behaviour, excused = self._messages[number].behaviour, self._notes.attempts_excused[number]
        crashed = _CRASHED in dead_letter.message
        if dead_letter.reason not in (QUARANTINED, UNKNOWN):
            at_fault = behaviour in UNREADABLE and behaviour not in THE_CODES_FAULT
            wrong = not at_fault and not self._is_late(dead_letter)
        elif behaviour == "crasher":
            wrong = not crashed and len(excused) < 2
        elif crashed:
            wrong = number not in self._notes.killed
        else:
            wrong = behaviour in ("poison", "permanent") and "poison" not in dead_letter.message and not excused
        if wrong:
            words = f"{dead_letter.reason}: {dead_letter.message}"
            yield Broken(number, f"its dead letter does not say what happened, but {words}")

    def _judge_effects(self) -> Iterator[Broken]:
        yield from (Broken(*each) for each in self._notes.broken)
        for order, times in self._network.dynamodb.effects().items():
            if times > 1:
                yield Broken(number_in(order), f"its effect took place {times} times")
        for order, used in Counter(self._notes.ledger.values()).items():
            if used > 1:
                yield Broken(number_in(order), f"{order} was charged under {used} downstream keys")

    # ── What there is ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _dead(self) -> set[int]:
        """Return the numbers of the messages in any dead-letter queue."""
        numbers = {number_in(dead_letter.key or dead_letter.event) for dead_letter in self._notes.dead_letters}
        undelivered = {entry.message.number for entry, _ in self._notes.undelivered}
        return undelivered | {number for number in numbers if number is not None}

    def _is_late(self, dead_letter: DeadLetter) -> bool:
        """Whether a dead letter says that the window is over, and it can be."""
        return dead_letter.reason == BEYOND_WINDOW and self._simulation.now_ms > 900 * self._plan.window_s

    def _is_done(self, number: int) -> bool:
        order = f"order-{number}"
        done = self._network.dynamodb.effects() if self._plan.work == "effects" else self._notes.ledger.values()
        return order in done
