"""One run of a plan, the operator who repairs what is left of it, and the judge of both."""

import logging
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from unittest.mock import patch

from carride_idempotency import release
from carride_idempotency.dead_letters import BEYOND_WINDOW, QUARANTINED, UNKNOWN, DeadLetter
from carride_idempotency.record import COMPLETED
from carride_idempotency.testing import START_MS
from shop.network import COMPANY, Entry, ShopNetwork, number_in
from shop.plan import (
    BATCHES,
    ORDERED,
    PASSING,
    REFUSED,
    THE_CODES_FAULT,
    UNREADABLE,
    UNSENDABLE,
    Message,
    Plan,
)
from shop.sources import SOURCES, Function
from virtual_time.scheduler import RestlessError

_OPERATOR_WAITS_S: Final = 3600
_ROUNDS_OF_THE_OPERATOR: Final = 2
"""A key whose last attempt crashed is still claimed when its transport gives up: its first redrive
quarantines it."""
_UNPROCESSABLE: Final = 422
_CRASHED: Final = "every attempt ended without an answer"
"""The message of the dead letter of a key whose attempts crashed."""

type Broken = tuple[int | None, str]
"""The number of a message, and what was promised of it."""


class Report(NamedTuple):
    """What became of a plan."""

    story: Plan
    broken: Sequence[Broken]
    timeline: Sequence[str]
    counts: Counter[str]
    hours: float
    used: Sequence[str]
    """The names of the freedoms that were used."""


def run(plan: Plan, kept: Container[str] | None = None) -> Report:
    """Live a plan, and judge it; ``kept`` as in the engine's `Network`."""
    network = ShopNetwork(plan, kept)
    complaints = logging.getLogger("carride_idempotency")
    with network.living(), patch.object(complaints, "disabled", new=True):
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
    hours = network.now_s / 3_600
    return Report(plan, broken, network.timeline, network.counts, hours, network.used)


class Judge:
    """Sends what a plan says, operates, and says which promises were broken."""

    def __init__(self, network: ShopNetwork) -> None:
        self._network = network
        self._plan = network.plan
        self._messages = {message.number: message for message in network.plan.messages}
        self._function = Function(network)
        self._source = SOURCES[network.plan.source](network, self._function)
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
        unique = self._network.simulation.hexadecimal(f"id {message.number}")
        name = f"{unique}-order-{message.number}"
        self._entries.append(Entry(message, name, START_MS + round(at_s * 1000)))
        return self._entries[-1]

    def _send(self, entry: Entry, after_s: float) -> None:
        self._network.simulation.after(after_s, partial(self._source.send, entry))

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
        again = self._network.dead()
        network.dead_letters.letters.clear()
        network.undelivered.clear()
        network.gave_up.clear()
        network.runs.clear()
        for number in sorted(again):
            if self._messages[number].behaviour not in UNREADABLE:
                # A redrive writes a new message, whose age begins now; its body stays the same.
                entry = self._entry(self._messages[number], network.now_s)
                network.say(f"sends {entry.id}", "operator")
                self._send(entry, 0)

    # ── Judgement ─────────────────────────────────────────────────────────────────────────────────

    def after_the_run(self) -> Iterator[Broken]:
        dead = self._network.dead()
        for number, message in self._messages.items():
            if not self._is_done(message) and number not in dead:
                yield number, "it is lost: neither done nor in a dead-letter queue"
            if message.behaviour in PASSING:
                yield from self._of_health(message)
                yield from self._of_patience(message)
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
                and not self._is_done(message)
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
            yield entry.message.number, f"it was given up again by its source: {words}"
        for number in sorted(self._network.gave_up):
            if self._messages[number].behaviour != UNSENDABLE:  # its answer was never stored
                yield number, "its client has no answer, though everything was repaired"
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
                        f"it is healthy and was given up by its source ({why}): "
                        f"{calls} are unexcused"
                    ),
                )

    def _of_patience(self, message: Message) -> Iterator[Broken]:
        """Judge that a client whose request is healthy was left without an answer for a reason."""
        network = self._network
        number = message.number
        if number not in network.gave_up:
            return
        attempts = self._plan.policy.max_attempts
        quarantined = any(
            record.status == QUARANTINED and number_in(record.key) == number
            for record in network.stored()
        )
        excused = len(network.attempts_excused[number])
        if quarantined and excused < attempts:
            yield number, f"its client was told that it is given up; {excused} attempts are excused"
        if quarantined:
            return
        calls = {
            call.id for entry in self._entries if entry.message is message for call in entry.calls
        }
        if unexcused := sorted(calls - network.deliveries_excused[number]):
            yield number, f"its client has no answer, and {unexcused} are unexcused"

    def _of_answers(self) -> Iterator[Broken]:
        """Judge that a client's repeated request gets the first answer, and that it is true."""
        for number, answers in self._network.answers.items():
            if len(set(answers)) > 1:
                yield number, f"its client was answered differently: {answers}"
            status = answers[0][0]
            is_refused = self._messages[number].behaviour == REFUSED
            if (status == _UNPROCESSABLE) != is_refused:
                yield number, f"its client was answered {status}"

    def _is_done(self, message: Message) -> bool:
        """Return whether a message has taken effect, or was refused as it should be."""
        if message.behaviour == REFUSED:
            return message.number in self._network.answers
        return bool(self._network.charges(message.number))

    def _deliveries_allowed(self, number: int) -> int:
        """Return how many deliveries a healthy message may need beside slow neighbours."""
        plan = self._plan
        killed = self._network.killed
        if plan.source not in BATCHES:
            return 0
        longest_s = max(message.work_s for message in plan.messages) + 1
        in_turn = max(1, int((plan.timeout_s - 1) / longest_s))
        # Suspects and the messages of a group run one after another.
        is_alone = plan.source in ORDERED or number in killed
        at_once = 1 if is_alone else plan.policy.concurrency
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
        yield from self._of_answers()
        for number, message in self._messages.items():
            if self._network.charges(number) and message.behaviour == REFUSED:
                yield number, "it was refused, and took effect"
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

    def _is_late(self, dead_letter: DeadLetter) -> bool:
        """Whether a dead letter says that the window is over, and it can be."""
        passed_ms = self._network.simulation.now_ms - START_MS
        return dead_letter.reason == BEYOND_WINDOW and passed_ms > 900 * self._plan.policy.window_s
