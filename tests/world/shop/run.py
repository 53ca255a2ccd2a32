"""One run of a plan, the operator who repairs what is left of it, and the judge of both."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from carride_idempotency import release
from carride_idempotency.dead_letters import BEYOND_WINDOW, QUARANTINED, UNKNOWN, DeadLetter
from carride_idempotency.record import COMPLETED
from carride_idempotency.testing import START_MS
from tests.world.engine.scheduler import RestlessError
from tests.world.shop.network import COMPANY, Entry, Network, number_in
from tests.world.shop.plan import PASSING, THE_CODES_FAULT, UNREADABLE, Message, Plan
from tests.world.shop.sources import TRANSPORTS, Function

_OPERATOR_WAITS_S: Final = 3600
_ROUNDS_OF_THE_OPERATOR: Final = 2
"""A key whose last attempt crashed is still claimed when its transport gives up: its first redrive
quarantines it."""
_CRASHED: Final = "every attempt ended without an answer"
"""The message of the dead letter of a key whose attempts crashed."""

type Broken = tuple[int | None, str]
"""The number of a message, and what was promised of it."""


class Report(NamedTuple):
    plan: Plan
    broken: list[Broken]
    timeline: list[str]
    counts: Counter[str]
    hours: float


def run(plan: Plan) -> Report:
    network = Network(plan)
    with network.simulation.patched():
        judge = Judge(network)
        broken: list[Broken] = []
        try:
            network.simulation.run()
            broken += judge.after_the_run()
            for _ in range(_ROUNDS_OF_THE_OPERATOR if not broken else 0):
                judge.operate()
                network.simulation.run()
            if not broken:
                broken += judge.in_the_end()
        except RestlessError as error:
            broken.append((None, str(error)))
    hours = (network.simulation.now_ms - START_MS) / 3_600_000
    return Report(plan, broken, network.timeline, network.counts, hours)


class Judge:
    """Sends what a plan says, operates, and says which promises were broken."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._plan = network.plan
        self._messages = {message.number: message for message in network.plan.messages}
        self._function = Function(network)
        self._transport = TRANSPORTS[network.plan.source](network, self._function)
        self._entries: list[Entry] = []
        for message in network.plan.messages:
            first = self._entry(message, message.at_s)
            self._send(first, message.at_s)
            for copy in message.copies:
                at_s = message.at_s + copy.after_s
                entry = self._entry(message, at_s if copy.kind == "resent" else message.at_s)
                entry.id = entry.id if copy.kind == "resent" else first.id
                entry.kind = copy.kind
                self._send(entry, at_s)

    def _entry(self, message: Message, at_s: float) -> Entry:
        unique = self._network.simulation.hexadecimal("id")
        name = f"{unique}-{len(self._entries)}-order-{message.number}"
        self._entries.append(Entry(message, name, START_MS + round(at_s * 1000)))
        return self._entries[-1]

    def _send(self, entry: Entry, after_s: float) -> None:
        self._network.simulation.after(after_s, partial(self._transport.send, entry))

    def operate(self) -> None:
        """Mend handlers and network, release quarantined keys, redrive what was given up."""
        network = self._network
        if not network.healed:
            network.healed = True
            self._function.idle.clear()
        network.simulation.advance(_OPERATOR_WAITS_S)
        for record in network.stored():
            if release(network.store, record.key, clock=network.simulation):
                network.say(f"releases {record.key}", "operator")
        again = self._dead()
        network.dead_letters.letters.clear()
        network.undelivered.clear()
        network.runs.clear()
        for number in sorted(again):
            if self._messages[number].behaviour not in UNREADABLE:
                entry = self._entry(self._messages[number], self._messages[number].at_s)
                network.say(f"sends {entry.id}", "operator")
                self._send(entry, 0)

    # ── Judgement ─────────────────────────────────────────────────────────────────────────────────

    def after_the_run(self) -> Iterator[Broken]:
        dead = self._dead()
        for number, message in self._messages.items():
            if not self._network.charges(number) and number not in dead:
                yield number, "it is lost: neither done nor in a dead-letter queue"
            if message.behaviour in PASSING:
                yield from self._of_health(message)
            yield from self._of_bounds(message)
        for dead_letter in self._network.dead_letters.letters:
            yield from self._of_reason(dead_letter)
        for record in self._network.stored():
            if record.status not in (COMPLETED, QUARANTINED) and number_in(record.key) not in dead:
                yield number_in(record.key), f"{record.key} is {record.status} in the end"
        yield from self._of_effects()

    def in_the_end(self) -> Iterator[Broken]:
        """Yield what an operator could not repair, except events beyond their window."""
        letters = self._network.dead_letters.letters
        late = {number_in(each.key) for each in letters if self._is_late(each)}
        for number, message in self._messages.items():
            if (
                message.behaviour not in UNREADABLE
                and number not in late
                and not self._network.charges(number)
            ):
                yield (
                    number,
                    "it is not done, though everything was repaired and it was delivered again",
                )
        for dead_letter in letters:
            if not self._is_late(dead_letter):
                words = f"it was given up again: {dead_letter.reason} {dead_letter.message}"
                yield number_in(dead_letter.key), words
        for entry, words in self._network.undelivered:
            yield entry.message.number, f"it was given up again by its transport: {words}"
        for record in self._network.stored():
            if record.status != COMPLETED and number_in(record.key) not in late:
                yield number_in(record.key), f"{record.key} is {record.status} in the end"
        yield from self._of_effects()

    def _of_health(self, message: Message) -> Iterator[Broken]:
        """Judge that a healthy message was given up only for excused reasons.

        Attempts and deliveries are excused by an injected fault, a failure of its own, or a crash
        that its neighbours caused (except on the last attempt). Deliveries are also excused while
        another delivery holds the key, and for want of time, see `_deliveries_allowed`.
        """
        network = self._network
        number = message.number
        attempts = self._plan.policy.max_attempts
        reasons = network.attempts_excused[number]
        company = sum(reason.startswith(COMPANY) for reason in reasons)
        excused = len(reasons) - company + min(company, attempts - 1)
        mine = [
            letter for letter in network.dead_letters.letters if number_in(letter.key) == number
        ]
        for dead_letter in mine:
            used_up = dead_letter.reason in (QUARANTINED, UNKNOWN) and excused >= attempts
            if not (self._is_late(dead_letter) or used_up):
                words = (
                    f"{dead_letter.reason}: {dead_letter.message}; "
                    f"excused are {excused} of {attempts} attempts"
                )
                yield number, f"it is healthy and was given up, {words}"
        given_up = [] if mine or network.charges(number) else network.undelivered
        for entry, why in given_up:
            calls = [
                call.id for call in entry.calls if call.id not in network.deliveries_excused[number]
            ]
            if entry.message is message and len(calls) > self._deliveries_allowed(number):
                yield (
                    number,
                    (
                        f"it is healthy and was given up by its transport ({why}): "
                        f"{calls} are unexcused"
                    ),
                )

    def _deliveries_allowed(self, number: int) -> int:
        """Return how many deliveries a healthy message may need beside slow neighbours."""
        plan = self._plan
        killed = self._network.killed
        if plan.source == "rule":
            return 0
        longest_s = max(message.work_s for message in plan.messages) + 1
        in_turn = max(1, int((plan.timeout_s - 1) / longest_s))
        at_once = 1 if number in killed else plan.policy.concurrency  # suspects run alone
        return bool(killed) - -plan.batch // (at_once * in_turn)

    def _of_bounds(self, message: Message) -> Iterator[Broken]:
        bound = self._plan.policy.max_attempts + (
            message.times if message.behaviour == "retryable" else 0
        )
        if self._plan.policy.atomic:
            bound = self._network.counts["deliveries"]
        runs = self._network.runs[message.number]
        if runs > bound:
            yield message.number, f"it was run {runs} times, and {bound} is the bound"

    def _of_reason(self, dead_letter: DeadLetter) -> Iterator[Broken]:
        number = number_in(dead_letter.key or dead_letter.event)
        assert number is not None
        behaviour = self._messages[number].behaviour
        excused = self._network.attempts_excused[number]
        crashed = _CRASHED in dead_letter.message
        if dead_letter.reason not in (QUARANTINED, UNKNOWN):
            at_fault = behaviour in UNREADABLE and behaviour not in THE_CODES_FAULT
            wrong = not at_fault and not self._is_late(dead_letter)
        elif behaviour == "crasher":
            wrong = not crashed and len(excused) < 2
        elif crashed:
            wrong = number not in self._network.killed
        else:
            wrong = (
                behaviour in ("poison", "permanent")
                and "poison" not in dead_letter.message
                and not excused
            )
        if wrong:
            words = f"{dead_letter.reason}: {dead_letter.message}"
            yield number, f"its dead letter does not say what happened, but {words}"

    def _of_effects(self) -> Iterator[Broken]:
        yield from self._network.broken
        for number in self._messages:
            if (times := self._network.charges(number)) > 1:
                yield (
                    number,
                    f"its effect took place {times} times, or under {times} downstream keys",
                )
        used = Counter(
            key for keys in self._network.effects.values() for key in keys if isinstance(key, str)
        )
        for key, orders in used.items():
            if orders > 1:
                yield None, f"the downstream key {key} was used for {orders} orders"

    # ── What there is ─────────────────────────────────────────────────────────────────────────────

    def _dead(self) -> set[int]:
        """Return the numbers of the messages in any dead-letter queue."""
        letters = {
            number_in(letter.key or letter.event) for letter in self._network.dead_letters.letters
        }
        undelivered = {entry.message.number for entry, _ in self._network.undelivered}
        return undelivered | {number for number in letters if number is not None}

    def _is_late(self, dead_letter: DeadLetter) -> bool:
        """Whether a dead letter says that the window is over, and it can be."""
        passed_ms = self._network.simulation.now_ms - START_MS
        return dead_letter.reason == BEYOND_WINDOW and passed_ms > 900 * self._plan.policy.window_s
