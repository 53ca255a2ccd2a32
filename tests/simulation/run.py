"""One run of a plan, the operator who mends what is left of it, and the judge of both."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from idempotency import dead_letters
from idempotency.operators import release
from idempotency.record import COMPLETED, QUARANTINED, Record
from tests.simulation.engine import Line, RestlessError, Simulation
from tests.simulation.handlers import Shop
from tests.simulation.network import Entry, Network, number_in
from tests.simulation.plan import PASSING, THE_CODES_FAULT, UNREADABLE, Message, Plan
from tests.simulation.transports import Callers, Function, Invokes, open_transport

_OPERATOR_WAITS_S: Final = 3600.0
_ROUNDS_OF_THE_OPERATOR: Final = 3
"""A key whose last attempt crashed is still claimed when its transport gives up, and its redrive quarantines it first;
so it is with the key of a function that its handler calls."""
_NO_ATTEMPT_LIVED: Final = "attempt lived"
"""What the letter of a key says whose attempts all crashed."""


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
        self._shop = Shop(plan, simulation, self._network)
        self._function = Function(plan, simulation, self._network, self._shop)
        self._transport = open_transport(plan, simulation, self._network, self._function)
        self._ids = 0
        for message in plan.messages:
            first = self._entry(message, message.at_s)
            simulation.after(message.at_s, partial(self._transport.send, first))
            for copy in message.copies:
                at_s = message.at_s + copy.after_s
                entry = self._entry(message, at_s if copy.kind == "resent" else message.at_s)
                entry.id = entry.id if copy.kind == "resent" else first.id
                entry.replayed = copy.kind == "replayed"
                entry.by_hand = copy.kind == "invoked"
                send = self._transport.send
                if entry.by_hand and isinstance(self._transport, Invokes):
                    send = self._transport.call
                simulation.after(at_s, partial(send, entry))
        for version in plan.versions[1:]:
            simulation.after(version.at_s, partial(simulation.say, "operator", None, f"deploys {version}"))

    def _entry(self, message: Message, at_s: float) -> Entry:
        self._ids += 1
        unordered = f"{int(self._simulation.roll('id') * 16**6):06x}"
        return Entry(message, f"{unordered}-{self._ids}-order-{message.number}", at_s * 1000)

    def operate(self) -> None:
        """Mend the handlers and the environment, release what is quarantined, and deliver again what was given up."""
        if not self._network.healed:
            self._network.healed = True
            self._function.deploy_again()
        self._simulation.now_ms += _OPERATOR_WAITS_S * 1000
        for record in self._records():
            if record.status == QUARANTINED:
                self._simulation.say("operator", number_in(record.key), f"releases {record.key}")
                freed = release(self._network.backend.store, record.key, clock=self._simulation.clock)
                assert freed, "a quarantined key can be released"
        again = (self._dead() | self.notes.gave_up) - self._hopeless_to_send()
        self.notes.letters.clear()
        self.notes.undelivered.clear()
        self.notes.runs.clear()
        for number in sorted(again):
            message = self._message(number)
            entry = self._entry(message, message.at_s)
            self._simulation.say("operator", number, f"sends {entry.id}")
            self._simulation.after(0.0, partial(self._transport.send, entry))

    # ── Judgement ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def judge(self) -> None:
        """Judge what the layer made of the bad luck."""
        self.broken += [Broken(*each) for each in self.notes.broken]
        dead = self._dead()
        for message in self._plan.messages:
            number = message.number
            excused = number in self.notes.gave_up | self.notes.expired
            if not self._is_done(number) and number not in dead and not excused:
                self._break(number, "it is lost: neither done nor in a dead-letter queue")
            if message.behaviour in PASSING:
                self._judge_health(message)
            self._judge_bounds(message)
        for letter in self.notes.letters:
            self._judge_reason(letter)
        self._judge_doubles()
        for record in self._records():
            settled = record.status in (COMPLETED, QUARANTINED)
            number_ = number_in(record.key)
            if not settled and number_ not in dead | self.notes.gave_up:
                self._break(number_, f"{record.key} is {record.status} in the end")

    def judge_the_end(self) -> None:
        """Judge that an operator could mend it all; what the window no longer covers stays where it is."""
        beyond = {number_in(each.key) for each in self.notes.letters if each.reason == dead_letters.BEYOND_WINDOW}
        self.broken += [Broken(*each) for each in self.notes.broken]
        for message in self._plan.messages:
            number = message.number
            if message.behaviour in UNREADABLE or number in self.notes.expired | beyond:
                continue
            if not self._is_done(number):
                self._break(number, "it is not done, though everything was mended and it was delivered again")
        for letter in self.notes.letters:
            if letter.reason == dead_letters.BEYOND_WINDOW and self._is_late(number_in(letter.key)):
                continue
            self._break(
                number_in(letter.key), f"it came back to the dead-letter queue: {letter.reason} {letter.message}"
            )
        for entry, words in self.notes.undelivered:
            self._break(entry.message.number, f"it came back to the transport's dead-letter queue: {words}")
        for number in self.notes.gave_up:
            self._break(number, "its caller had no answer, though everything was mended")
        for record in self._records():
            if record.status != COMPLETED and number_in(record.key) not in self.notes.expired | beyond:
                self._break(number_in(record.key), f"{record.key} is {record.status} in the end")
        self._judge_doubles()

    def _judge_health(self, message: Message) -> None:
        number = message.number
        attempts = min(version.max_attempts for version in self._plan.versions)
        excused = self.notes.attempts_excused[number]
        for letter in self.notes.letters:
            if number_in(letter.key or str(letter.event)) != number:
                continue
            if letter.reason == dead_letters.BEYOND_WINDOW and self._is_late(number):
                continue
            may_be_unknown = number in self.notes.killed | self.notes.may_overlap
            if letter.reason == dead_letters.UNKNOWN and self._plan.versions[0].once and may_be_unknown:
                continue
            if letter.reason != dead_letters.QUARANTINED or len(excused) < attempts:
                words = f"{letter.reason}: {letter.message}; excused are {len(excused)} of {attempts} attempts"
                self._break(number, f"it is healthy and was given up, {words}")
        lettered = {number_in(letter.key) for letter in self.notes.letters}
        for entry, words in self.notes.undelivered:
            if entry.message is not message or self._is_done(number) or number in lettered:
                continue
            calls = [call.id for call in entry.invocations if call.id not in self.notes.deliveries_excused[number]]
            if len(calls) > self._deliveries_allowed(number):
                self._break(number, f"it is healthy and was given up by its transport ({words}): {calls} are unexcused")

    def _deliveries_allowed(self, number: int) -> int:
        """How many deliveries of a healthy message may fail for no reason of its own: others took the time."""
        plan = self._plan
        if not hasattr(self._transport, "_poll"):
            return 0
        longest_s = max(message.work_s for message in plan.messages) + 1
        in_turn = max(1, int((plan.timeout_s - 1) / longest_s))

        def rounds(at_once: int) -> int:
            return -(-plan.batch // (at_once * in_turn)) - 1

        suspected = rounds(1) if number in self.notes.killed else 0
        return 2 + max(suspected, rounds(min(version.concurrency for version in plan.versions)))

    def _judge_bounds(self, message: Message) -> None:
        attempts = max(version.max_attempts for version in self._plan.versions)
        for part in self._shop.facts():
            runs = self.notes.runs[message.number, part]
            bound = attempts + (message.times if message.behaviour == "retryable" else 0)
            if any(version.atomic for version in self._plan.versions):
                bound = self.notes.counts["deliveries"]
            if runs > bound:
                self._break(message.number, f"{part} was run {runs} times, and {bound} is the bound")

    def _judge_reason(self, letter: dead_letters.DeadLetter) -> None:
        number = number_in(letter.key or str(letter.event))
        message = self._message(number)
        crashed = _NO_ATTEMPT_LIVED in letter.message or letter.reason == dead_letters.UNKNOWN
        if letter.reason not in (dead_letters.QUARANTINED, dead_letters.UNKNOWN):
            late = letter.reason == dead_letters.BEYOND_WINDOW and self._is_late(number)
            if (message.behaviour not in UNREADABLE or message.behaviour in THE_CODES_FAULT) and not late:
                self._break(number, f"its letter says {letter.reason}: {letter.message}")
        elif message.behaviour == "crasher":
            if not crashed and len(self.notes.attempts_excused[message.number]) < 2:
                self._break(number, f"it kills its process, and its letter says {letter.message}")
        elif crashed and message.number not in self.notes.killed | self.notes.may_overlap:
            self._break(number, f"no attempt was killed, and its letter says {letter.message}")
        elif message.behaviour in ("poison", "permanent") and not crashed and "poison" not in letter.message:
            if not self.notes.attempts_excused[message.number]:
                self._break(number, f"its handler says poison, and its letter {letter.message}")

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
        told: dict[tuple[int, str], Any] = {}
        for number, result in self.notes.results:
            if self._message(number).behaviour == "bad result":
                continue  # its caller is told what could not be stored
            first = told.setdefault((number, str(result and result["part"])), result)
            if result != first:
                self._break(number, f"one caller was told {first}, another {result}")
            if result not in self._stored(number):
                self._break(number, f"a caller was told {result}, which is not the committed result")

    def _stored(self, number: int) -> list[Any]:
        from idempotency import codec  # noqa: PLC0415

        results = [record.result for record in self._records() if number_in(record.key) == number and record.result]
        return [codec.decode(result) for result in results]

    # ── What there is ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _break(self, number: int | None, what: str) -> None:
        self.broken.append(Broken(number, what))

    def _message(self, number: int | None) -> Message:
        return next(message for message in self._plan.messages if message.number == number)

    def _records(self) -> list[Record]:
        return list(self._network.backend.records().values())

    def _dead(self) -> set[int]:
        """The numbers of the messages in any dead-letter queue."""
        letters = {number_in(letter.key or str(letter.event)) for letter in self.notes.letters}
        return {number for number in letters if number is not None} | {
            entry.message.number for entry, _ in self.notes.undelivered
        }

    def _is_late(self, number: int | None) -> bool:
        """Whether a message's window can have ended, by any clock that it met."""
        return self._simulation.now_ms > 900 * self._plan.window_s or number in self.notes.wild

    def _hopeless_to_send(self) -> set[int]:
        return {message.number for message in self._plan.messages if message.behaviour in UNREADABLE}

    def _is_done(self, number: int) -> bool:
        order = f"order-{number}"
        charged = {f"{part} of {order}" for part in self._shop.facts()} <= set(self.notes.ledger.values())
        written = order in self._network.backend.effects()
        match self._plan.work:
            case "effects":
                return written
            case "both":
                return written and charged
            case _:
                return charged
