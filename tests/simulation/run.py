"""One run of a plan, the operator who mends what is left of it, and the judge of both."""

import json
from collections import Counter, defaultdict
from functools import partial
from typing import Any, Final, NamedTuple

from idempotency import codec
from idempotency.dead_letters import BEYOND_WINDOW, QUARANTINED, UNKNOWN, DeadLetter
from idempotency.operators import release
from idempotency.record import COMPLETED
from tests.simulation.engine import Line, RestlessError, Simulation
from tests.simulation.handlers import Shop
from tests.simulation.network import COMPANY, Entry, Network, number_in
from tests.simulation.plan import BATCHES, PASSING, THE_CODES_FAULT, UNREADABLE, Message, Plan
from tests.simulation.transports import Function, open_transport

_OPERATOR_WAITS_S: Final = 3600.0
_ROUNDS_OF_THE_OPERATOR: Final = 3
"""A key whose last attempt crashed is still claimed when its transport gives up, and its redrive quarantines it first;
so it is with the key of a function that its handler calls."""
_CRASHED: Final = ("every attempt ended without an answer", "its outcome is unknown")
"""What the letter of a key says whose attempts crashed."""


class Broken(NamedTuple):
    """A promise that was broken."""

    message: int | None
    what: str


class Report(NamedTuple):
    """What came of one plan."""

    plan: Plan
    broken: list[Broken]
    timeline: list[Line]
    counts: Counter[str]
    hours: float


def run(plan: Plan) -> Report:
    """Have a plan happen, and judge it."""
    simulation = Simulation(plan.seed)
    with simulation.patched():
        world = World(plan, simulation)
        try:
            simulation.run()
            world.judge()
            for _ in range(_ROUNDS_OF_THE_OPERATOR if not world.broken else 0):
                world.operate()
                simulation.run()
            if not world.broken:
                world.judge_the_end()
        except RestlessError as error:
            world.broken.append(Broken(None, str(error)))
    return Report(plan, world.broken, simulation.timeline, world.notes.counts, simulation.now_ms / 3_600_000)


class World:
    """A plan come to life."""

    def __init__(self, plan: Plan, simulation: Simulation) -> None:
        self.broken: list[Broken] = []
        self._plan = plan
        self._simulation = simulation
        self._network = Network(plan, simulation)
        self.notes = self._network.notes
        self._messages = {message.number: message for message in plan.messages}
        self._shop = Shop(plan, simulation, self._network)
        self._function = Function(plan, simulation, self._network, self._shop)
        self._transport = open_transport(plan, simulation, self._network, self._function)
        self._entries: list[Entry] = []
        for message in plan.messages:
            first = self._entry(message, message.at_s)
            self._send(first, message.at_s)
            for copy in message.copies:
                at_s = message.at_s + copy.after_s
                entry = self._entry(message, at_s if copy.kind == "resent" else message.at_s)
                entry.id, entry.kind = entry.id if copy.kind == "resent" else first.id, copy.kind
                self._send(entry, at_s)
        for version in plan.versions[1:]:
            simulation.after(version.at_s, partial(simulation.say, "operator", None, f"deploys {version}"))

    def _entry(self, message: Message, at_s: float) -> Entry:
        unordered = self._simulation.hexadecimal("id")
        entry_id = f"{unordered}-{len(self._entries)}-order-{message.number}"
        self._entries.append(Entry(message, entry_id, at_s * 1000))
        return self._entries[-1]

    def _send(self, entry: Entry, after_s: float) -> None:
        self._simulation.after(after_s, partial(self._transport.send, entry))

    def operate(self) -> None:
        """Mend the handlers and the environment, release what is quarantined, and deliver again what was given up."""
        if not self._network.healed:
            self._network.healed = True
            self._function.deploy_again()
        self._simulation.now_ms += _OPERATOR_WAITS_S * 1000
        for record in self._network.backend.records():
            if release(self._network.backend.store, record.key, clock=self._simulation.clock):
                self._simulation.say("operator", number_in(record.key), f"releases {record.key}")
        again = self._dead() | self.notes.gave_up
        self.notes.letters.clear()
        self.notes.undelivered.clear()
        self.notes.runs.clear()
        for number in sorted(again):
            if self._messages[number].behaviour not in UNREADABLE:
                entry = self._entry(self._messages[number], self._messages[number].at_s)
                self._simulation.say("operator", number, f"sends {entry.id}")
                self._send(entry, 0.0)

    # ── Judgement ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def judge(self) -> None:
        """Judge what the layer made of the bad luck."""
        self.broken += [Broken(*each) for each in self.notes.broken]
        dead = self._dead()
        for number, message in self._messages.items():
            if not self._is_done(number) and number not in dead | self.notes.gave_up | self.notes.expired:
                self._break(number, "it is lost: neither done nor in a dead-letter queue")
            if message.behaviour in PASSING:
                self._judge_health(message)
            self._judge_bounds(message)
        for letter in self.notes.letters:
            self._judge_reason(letter)
        self._judge_doubles()
        for record in self._network.backend.records():
            number_ = number_in(record.key)
            if record.status not in (COMPLETED, "QUARANTINED") and number_ not in dead | self.notes.gave_up:
                self._break(number_, f"{record.key} is {record.status} in the end")

    def judge_the_end(self) -> None:
        """Judge that an operator could mend it all; what the window no longer covers stays where it is."""
        self.broken += [Broken(*each) for each in self.notes.broken]
        late = {number_in(letter.key) for letter in self.notes.letters if self._is_late(letter)} | self.notes.expired
        for number, message in self._messages.items():
            if message.behaviour not in UNREADABLE and number not in late and not self._is_done(number):
                self._break(number, "it is not done, though everything was mended and it was delivered again")
        for letter in self.notes.letters:
            if not self._is_late(letter):
                self._break(number_in(letter.key), f"it was given up again: {letter.reason} {letter.message}")
        for entry, words in self.notes.undelivered:
            self._break(entry.message.number, f"it was given up again by its transport: {words}")
        for number in self.notes.gave_up:
            self._break(number, "its caller had no answer, though everything was mended")
        for record in self._network.backend.records():
            if record.status != COMPLETED and number_in(record.key) not in late:
                self._break(number_in(record.key), f"{record.key} is {record.status} in the end")
        self._judge_doubles()

    def _judge_health(self, message: Message) -> None:
        """Judge that a message whose handler would succeed was given up only for what others did to it.

        Excused are, for each attempt and each delivery: an injected fault that met it, a failure of its own, a crash
        that its neighbours caused, though not on its last attempt; deliveries also for a record of its group before it,
        for another delivery that holds its key, and for want of time, as `_deliveries_allowed` has it.
        """
        number, lettered = message.number, False
        attempts = min(version.max_attempts for version in self._plan.versions)
        reasons = self.notes.attempts_excused[number]
        company = sum(reason.startswith(COMPANY) for reason in reasons)
        excused = len(reasons) - company + min(company, attempts - 1)
        for letter in self.notes.letters:
            if number_in(letter.key) != number:
                continue
            lettered = True
            crash = self._plan.versions[0].once and number in self.notes.killed | self.notes.may_overlap
            if not (self._is_late(letter) or crash or (letter.reason == QUARANTINED and excused >= attempts)):
                words = f"{letter.reason}: {letter.message}; excused are {excused} of {attempts} attempts"
                self._break(number, f"it is healthy and was given up, {words}")
        given_up = dict(self.notes.undelivered)
        for entry in self._entries:
            calls = [call.id for call in entry.calls if call.id not in self.notes.deliveries_excused[number]]
            settled = lettered or self._is_done(number) or number in self.notes.expired
            judged = not settled if entry in given_up else self._plan.world == "queue" and not message.copies
            if entry.message is message and judged and len(calls) > self._deliveries_allowed(number):
                words = f"was given up by its transport ({given_up[entry]})" if entry in given_up else "was done late"
                self._break(number, f"it is healthy and {words}: {calls} are unexcused")

    def _deliveries_allowed(self, number: int) -> int:
        """Return how many deliveries a healthy message may need, because its neighbours take the time."""
        plan = self._plan
        if plan.world not in BATCHES:
            return 0
        longest_s = max(message.work_s for message in plan.messages) + 1
        in_turn = max(1, int((plan.timeout_s - 1) / longest_s))
        alone = plan.world != "queue" or number in self.notes.killed  # in a group, or suspected
        at_once = 1 if alone else min(version.concurrency for version in plan.versions)
        return bool(self.notes.killed) - -plan.batch // (at_once * in_turn)

    def _judge_bounds(self, message: Message) -> None:
        bound = max(version.max_attempts for version in self._plan.versions)
        bound += message.times if message.behaviour == "retryable" else 0
        if any(version.atomic for version in self._plan.versions):
            bound = self.notes.counts["deliveries"]
        for part in self._shop.parts:
            runs = self.notes.runs[message.number, part]
            if runs > bound:
                self._break(message.number, f"{part} was run {runs} times, and {bound} is the bound")

    def _judge_reason(self, letter: DeadLetter) -> None:
        number = number_in(letter.key or letter.event)
        assert number is not None
        behaviour, excused = self._messages[number].behaviour, self.notes.attempts_excused[number]
        crashed = letter.reason == UNKNOWN or any(words in letter.message for words in _CRASHED)
        if letter.reason not in (QUARANTINED, UNKNOWN):
            at_fault = behaviour in UNREADABLE and behaviour not in THE_CODES_FAULT
            wrong = not at_fault and not self._is_late(letter)
        elif behaviour == "crasher":
            wrong = not crashed and len(excused) < 2
        elif crashed:
            wrong = number not in self.notes.killed | self.notes.may_overlap
        else:
            wrong = behaviour in ("poison", "permanent") and "poison" not in letter.message and not excused
        if wrong:
            self._break(number, f"its letter does not say what happened, but {letter.reason}: {letter.message}")

    def _judge_doubles(self) -> None:
        for order, times in self._network.backend.effects().items():
            if times > 1:
                self._break(number_in(order), f"its effect took place {times} times")
        keys = defaultdict(list)
        for key, fact in self.notes.ledger.items():
            keys[fact].append(key)
        for fact, used in keys.items():
            if len(used) > 1:
                self._break(number_in(fact), f"{fact} was charged under {len(used)} downstream keys")
        stored = defaultdict(list)
        for record in self._network.backend.records():
            result: Any = codec.decode(record.result) if record.result else None
            stored[number_in(record.key)].append(json.loads(result["body"]) if "body" in (result or ()) else result)
        for number, told in self.notes.results:
            if told not in stored[number] and self._messages[number].behaviour != "bad result":
                self._break(number, f"a caller was told {told}, which is not the committed result")

    # ── What there is ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _break(self, number: int | None, what: str) -> None:
        self.broken.append(Broken(number, what))

    def _dead(self) -> set[int]:
        """Return the numbers of the messages in any dead-letter queue."""
        letters = {number_in(letter.key or letter.event) for letter in self.notes.letters}
        undelivered = {entry.message.number for entry, _ in self.notes.undelivered}
        return undelivered | {number for number in letters if number is not None}

    def _is_late(self, letter: DeadLetter) -> bool:
        """Whether a letter says that the window is over, and it can be, by some clock that the message met."""
        over = self._simulation.now_ms > 900 * self._plan.window_s or number_in(letter.key) in self.notes.wild
        return over and letter.reason == BEYOND_WINDOW

    def _is_done(self, number: int) -> bool:
        order = f"order-{number}"
        charged = {f"{part} of {order}" for part in self._shop.parts} <= set(self.notes.ledger.values())
        written = order in self._network.backend.effects()
        return {"effects": written, "both": written and charged}.get(self._plan.work, charged)
