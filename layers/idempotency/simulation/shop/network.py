"""The requests of one run of the shop, with their faults, and the notes for the judge."""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from botocore.exceptions import ReadTimeoutError

from carride_idempotency.dead_letters import DeadLetter, SqsDeadLetters
from carride_idempotency.record import Record
from carride_idempotency.record_items import record_of
from carride_idempotency.stores.lean import LeanTransport
from carride_idempotency.stores.signing import ContainerCredentials, Credentials
from carride_idempotency.stores.transport import ServiceError
from carride_idempotency.testing.expressions import Item, Request
from shop.plan import AGENT_HANGS, LETTERS_HANG, Fault, Message, Plan
from virtual_time.network import LONGEST_TRY_S, REQUEST_LOST, Network
from virtual_time.scheduler import OUTSIDE, Machine, here

COMPANY: Final = "company"
_SQS_HANGS_S: Final = 2.0
_AGENT_HANGS_S: Final = 2.0
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


def _state_of(item: Item) -> str:
    """Return the state of a stored record; `record_of` reads much that no timeline tells."""
    owner = item.get("owner", {}).get("S", "-")
    attempt = item.get("attempt", {}).get("N", "0")
    return f"{item['status']['S']} {attempt} of {owner[:4]}"


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
    starved: bool = False
    """Letters that hang may have taken all of its concurrency."""
    started: set[int] = field(default_factory=set)
    """The messages that it began to work on, or decided about."""
    committed: set[int] = field(default_factory=set)
    """The messages whose effects it is known to have committed."""
    running: int = 0
    """How many runs of handlers there are now."""
    busy_s: float = 0.0
    """For how long there was at least one."""
    busy_since_s: float = 0.0


class ShopNetwork(Network):
    """Carries the requests of all machines, and is the client of the dead-letter queue.

    Attributes:
        calls: what each machine is working on.
        undelivered: what a source gave up, and why.
        gave_up: requests whose clients have no answer, or the one that they were given up.
        answers: what clients were answered, for good.
        broken: promises that were broken on the way: of which message, and how.
        attempts_excused: reasons for which each message may have lost an attempt.
        deliveries_excused: the calls which may fail for each message.
        killed: messages of which a call was killed, or a request's outcome could not be known or
            recorded.
        lately: for how many seconds the latest runs of each machine were to work that ended
            normally. A run that failed does not say how long the work takes.
    """

    def __init__(self, plan: Plan, kept: Container[str] | None = None) -> None:
        super().__init__(plan.seed, {"Orders": ("id",)}, kept)
        self.plan = plan
        self.healed = False
        self.calls: dict[Machine, Call] = {}
        self.undelivered: list[tuple[Entry, str]] = []
        self.gave_up: set[int] = set()
        self.answers: dict[int, list[tuple[int, str]]] = defaultdict(list)
        self.broken: list[tuple[int | None, str]] = []
        self.runs: Counter[int] = Counter()
        self.attempts_excused: dict[int, set[str]] = defaultdict(set)
        self.deliveries_excused: dict[int, set[str]] = defaultdict(set)
        self.killed: set[int] = set()
        self.lately: dict[Machine, deque[float]] = defaultdict(partial(deque, maxlen=20))
        self._at_a_request = {(fault.message, int(fault.at)): fault for fault in plan.faults}
        self._for_a_while = [fault for fault in plan.faults if fault.message is None]
        self._at_fault = {message.number for message in plan.messages if message.behaviour != "ok"}
        self._requests: Counter[int] = Counter()

    @contextmanager
    def living(self) -> Generator[None]:
        """Have everything inside live in this world: its time, its chance, its services."""
        fetch = partial(_fetch, self)
        with (
            self.threads(),
            patch.object(ContainerCredentials, "_fetch", lambda *_: fetch()),
            self.simulation.patched(),
        ):
            yield

    # ── What is seen ──────────────────────────────────────────────────────────────────────────────

    def say(self, text: str, who: str = "") -> None:
        """Add a line to the timeline."""
        self.timeline.append(f"{self.now_s:12.3f} s  {who or here().name:11} {text:.160}")

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

    def dead(self) -> set[int]:
        """Return the numbers of the messages in any dead-letter queue, or without an answer."""
        letters = {number_in(letter.key or letter.event) for letter in self.dead_letters.letters}
        undelivered = {entry.message.number for entry, _ in self.undelivered}
        dead = undelivered | self.gave_up
        return dead | {number for number in letters if number is not None}

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

    def letters(self) -> SqsDeadLetters:
        """Return a dead-letter queue for the handler of one machine."""
        url = "https://sqs.eu-west-1.amazonaws.com/123456789012/dead-letters"
        return SqsDeadLetters(url, client=self, clock=self.simulation)

    def send_message(self, *, MessageBody: str, **_: object) -> None:  # noqa: N803 - botocore's name
        """Send a dead letter, as a client of SQS does."""
        letter = DeadLetter.from_body(MessageBody)
        number = number_in(letter.key or letter.event)
        what = f"dead letter of order-{number}, {letter.reason}: {letter.message[:60]}"
        if self.lasts(LETTERS_HANG):
            self.excuse(number)
            self._note_hanging_letter()
            self.say(f"{what} HANGS")
            self.simulation.sleep(_SQS_HANGS_S)
            raise _no_answer("hangs")
        self.call(what, partial(self.dead_letters.letters.append, letter), _no_answer)

    def _note_hanging_letter(self) -> None:
        """Note that letters may have taken all the concurrency of a call."""
        call = self.calls.get(here())
        if call is None:
            return
        at_fault = sum(entry.message.number in self._at_fault for entry in call.entries)
        call.starved = at_fault >= self.plan.policy.concurrency

    def lasts(self, kind: str) -> bool:
        """Return whether something hangs now."""
        if self.healed:
            return False
        for fault in self._for_a_while:
            if fault.kind == kind and fault.at <= self.now_s < fault.at + fault.amount:
                self.counts[f"fault: {kind}"] += 1
                return True
        return False

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
        way_s = 0.002 + 0.02 * self.roll(f"way {number}") ** 3
        self.simulation.sleep(way_s)
        kind = self._meet(number, what)
        if kind == "odd":
            self._note_unknown(number)
            self.give_up(OSError("something odd about the connection"))
        if kind == "outage":
            kind = REQUEST_LOST

        def lose(why: str) -> Exception:
            self._note_unknown(number)
            return lost(why)

        place = partial(self._take_place, what, number, perform, note)
        answer = self.carry(kind, what, place, lose)
        self.simulation.sleep(way_s)
        return answer

    def _meet(self, number: int | None, what: str) -> str:
        """Return the kind of the fault that a request meets; raise where it is a refusal."""
        if self.healed or number is None:
            return ""
        self._requests[number] += 1
        fault = self._at_a_request.get((number, self._requests[number])) or self._lasting()
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

    def _lasting(self) -> Fault | None:
        """Return the fault that every request to the store meets now."""
        for fault in self._for_a_while:
            is_open = fault.at <= self.now_s < fault.at + fault.amount
            if is_open and fault.kind not in (LETTERS_HANG, AGENT_HANGS):
                return fault
        return None

    def _note_unknown(self, number: int | None) -> None:
        """Note that a sender gives up, and cannot know what became of its request."""
        self.excuse(number)
        if number is not None:
            self.killed.add(number)

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
            items = self.dynamodb.all("Idempotency")
            states = [
                _state_of(item)
                for item in items
                if number_in(item["idempotencyKey"]["S"]) == number
            ]
            self.say(f"{what}{refused}  [{', '.join(states)}]")

    def _delete_expired(self) -> None:
        """Delete records as the TTL does, up to two days late."""
        for item in self.dynamodb.all("Idempotency"):
            key = item["idempotencyKey"]
            ended_s = int(item.get("expiryTimestamp", {"N": "99999999999"})["N"])
            late_s = self.simulation.now_ms / 1000 - ended_s
            if late_s > 0 and late_s > _TTL_IS_LATE_S * self.roll(f"ttl {key}"):
                self.dynamodb.delete({"TableName": "Idempotency", "Key": {"idempotencyKey": key}})

    def kill_here(self, why: str = "crashed", *, by_company: bool = False) -> None:
        """End the current machine, by a fault or ``by_company``, a record beside it."""
        if (call := self.calls.get(here())) is not None:
            self.excuse_all(call, f"{COMPANY} in {call.id}" if by_company else "")
        super().kill_here(why)


def _no_answer(_: str) -> Exception:
    return ReadTimeoutError(endpoint_url="sqs")


def _refusal(operation: str, fault: Fault) -> ServiceError | None:
    if operation == "TransactWriteItems" and fault.kind in _REASONS:
        return ServiceError("TransactionCanceledException", 400, "cancelled", _REASONS[fault.kind])
    return _REFUSALS.get(fault.kind) if operation.endswith(("Item", "Items")) else None


# ── Credentials ───────────────────────────────────────────────────────────────────────────────────


class SignedTransport(LeanTransport):
    """The layer's transport, with an agent that hands out credentials, as far as the signature."""

    def __init__(self, network: ShopNetwork) -> None:
        clock = network.simulation
        self._agent = ContainerCredentials("http://127.0.0.1/", {}, clock)
        super().__init__("http://dynamodb", "eu-west-1", self._agent, clock=clock)
        self.longest_try_s = LONGEST_TRY_S
        self._network = network

    def __call__(self, operation: str, request: Request, /) -> Any:
        network = self._network
        began_ms = network.simulation()
        # The agent has no name for it, since nobody else may ask.
        holds = self._agent._expires_ms > began_ms  # noqa: SLF001 - see above
        try:
            self._signed(operation, b"")
        except ServiceError:
            call = network.calls.get(here())
            if call is not None:
                call.touched = True
                network.excuse_all(call)
                network.killed |= {entry.message.number for entry in call.entries}
            raise
        if holds and network.simulation() > began_ms:
            words = "a request waited for the agent, although its credentials hold"
            network.broken.append((None, words))
        return network.dynamodb(operation, request)


def _fetch(network: ShopNetwork) -> tuple[Credentials, int]:
    """Fetch credentials from the agent: what they are, and when they expire."""
    if network.lasts(AGENT_HANGS):
        network.say("the agent HANGS")
        network.simulation.sleep(_AGENT_HANGS_S)
        raise TimeoutError("the agent does not answer")
    network.simulation.sleep(0.02)
    expires_ms = network.simulation.now_ms + int(network.plan.credentials_s * 1000)
    network.say(f"fetches credentials until {datetime.fromtimestamp(expires_ms / 1000, UTC):%T}")
    return Credentials("AKIA", "secret"), expires_ms
