"""What happens in one run of the shop, as data drawn from a seed."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from carride_idempotency.policy import DAY, Policy

SOURCES: Final[Mapping[str, str]] = {
    "queue": "an SQS queue: duplicates, receive counts, redrive, partial failures",
    "fifo": "an SQS FIFO queue: groups in order",
    "rule": "an EventBridge rule: asynchronous invokes with two retries, duplicates, replays, "
    "manual invokes",
    "kinesis": "a Kinesis shard: order, checkpoints, bisected batches, several batches at once",
    "stream": "a shard of a DynamoDB stream, likewise",
    "http": "clients of an HTTP API who lose patience and repeat their request under its key",
}
BATCHES: Final = ("queue", "fifo", "kinesis", "stream")
ORDERED: Final = ("fifo", "kinesis", "stream")
"""Messages of one group are worked on one after another."""
SHARDS: Final = ("kinesis", "stream")

PASSING: Final = ("ok", "flaky", "retryable")
HOPELESS: Final = ("poison", "permanent", "crasher", "crasher", "awaitable")
THE_CODES_FAULT: Final = ("typo", "overflow")
"""Reading raises AttributeError or OverflowError: the code's fault, so the source delivers the
message again."""
UNREADABLE: Final = ("nested", "keyless", *THE_CODES_FAULT)
"""JSON that is nested too deeply, an event without a key, and the code's faults."""
REFUSED: Final = "refused"
"""A request that the handler refuses for good: the refusal is its stored answer."""
UNSENDABLE: Final = "unsendable"
"""A request whose answer cannot be encoded."""

AT_A_REQUEST: Final = (
    *("killed before", "killed after", "request lost", "answer lost", "late", "slow", "odd"),
    *("throttled", "denied", "conflict", "no reasons"),
)
"""Faults of one request of one message: ``at`` says which one."""
LETTERS_HANG: Final = "letters hang"
"""The dead-letter queue does not answer."""
AGENT_HANGS: Final = "agent hangs"
"""The agent that hands out credentials does not answer."""
FOR_A_WHILE: Final = ("throttled", "denied", "conflict", "outage")
"""Faults of every request: ``at`` is the second in which it begins, ``amount`` for how many seconds
it lasts."""
SLOW_SHARE: Final = 0.75
"""The part of the timeout that a slow job takes; no other takes more than half of it."""


class Copy(NamedTuple):
    after_s: float
    kind: str
    """``again`` under the same id, ``resent`` under a new one, ``replayed`` from an archive,
    ``invoked`` by hand."""


class Message(NamedTuple):
    number: int
    at_s: float
    work_s: float = 0.2
    behaviour: str = "ok"
    times: int = 0
    """How often a passing failure happens."""
    group: int = 0
    copies: tuple[Copy, ...] = ()


class Fault(NamedTuple):
    """A fault of one message's request, or of all requests for a while."""

    kind: str
    message: int | None
    at: float
    amount: float = 0.0


class Plan(NamedTuple):
    seed: int
    source: str
    """One of `SOURCES`."""
    work: str
    """``effects`` or ``external``."""
    timeout_s: int
    batch: int
    sandboxes: int
    receives: int
    """The queue's maxReceiveCount, or how often a shard's batch is tried again."""
    reports: bool
    """The mapping has ReportBatchItemFailures; without it a batch holds one message."""
    policy: Policy
    bisects: bool = False
    """A shard's batch whose invocation failed is cut in two."""
    parallel: int = 1
    """How many batches of a shard are worked on at once, by groups."""
    forever: bool = False
    """A shard's batch is tried again until its records are an hour old."""
    observer_raises: bool = False
    credentials_s: float = 0.0
    """For how long the agent's credentials hold; 0: they are in the environment."""
    messages: tuple[Message, ...] = ()
    faults: tuple[Fault, ...] = ()


def draw(seed: int, source: str | None = None) -> Plan:
    """Draw a plan. The ``source`` is drawn if it is not given."""
    dice = random.Random(seed)  # noqa: S311 - it has to be the same every time
    drawn = dice.choice(tuple(SOURCES))
    source = source or drawn
    calm = dice.random() < 0.3  # no faults except those of the messages
    work = dice.choice(("external", "effects"))
    timeout_s = dice.choice((10, 30, 60, 60, 120, 300, 900))
    reports = source not in BATCHES or dice.random() < 0.8
    rush_s = dice.choice((1.0, 1.0, 20.0, 600.0))  # all messages come within so many seconds
    atomic = dice.random() < 0.5
    is_short = dice.random() < 0.2
    policy = Policy(
        max_attempts=dice.choice((2, 3, 3, 3, 5)),
        atomic=work == "effects" and atomic,
        window=7200 if is_short and source != "http" else 30 * DAY,
        concurrency=dice.choice((1, 2, 5, 10, 10, 10)),
        lease=dice.choice((10, 10, 30, 90)),
    )
    plan = Plan(
        seed,
        source,
        work,
        timeout_s,
        batch=dice.choice((2, 5, 10, 10)) if reports else 1,
        sandboxes=dice.choice((1, 2, 5)),
        receives=policy.max_attempts + dice.choice((3, 3, 4, 7)),
        reports=reports,
        policy=policy,
        bisects=dice.random() < 0.5,
        parallel=dice.choice((1, 1, 2, 10)),
        forever=dice.random() < 0.2,
        observer_raises=dice.random() < 0.1,
        credentials_s=dice.choice((0.0, 0.0, 0.0, 660.0, 900.0)),
    )
    plan = plan._replace(messages=tuple(_messages(plan, dice, rush_s)))
    if source == "queue":
        aimed = random.Random(f"{seed} batch")  # noqa: S311 - the same every time
        if aimed.random() < _AIMED:
            brief = plan._replace(timeout_s=aimed.choice((10, 60, 120)))
            return aimed.choice(_BATCHES)(brief, aimed)
    if calm:
        return plan
    return plan._replace(faults=(*_faults(plan, dice, rush_s), *_hanging(plan, dice, rush_s)))


def _messages(plan: Plan, dice: random.Random, rush_s: float) -> Iterator[Message]:
    pace = _Pace(plan, dice)
    all_flaky = dice.random() < 0.2
    odd = dice.choice(_oddities(plan.source))
    number_of_messages = dice.choice((1, 2, 4, 8, 12, 12, 20))
    slow = dice.randrange(number_of_messages) if dice.random() < 0.15 else None
    for number in range(number_of_messages):
        behaviour = "ok"
        if odd and dice.random() < 0.25:
            behaviour = dice.choice(odd)
        elif all_flaky or dice.random() < 0.1:
            behaviour = "flaky" if all_flaky else dice.choice(("flaky", "flaky", "retryable"))
        most = {"flaky": 1 if all_flaky else plan.policy.max_attempts - 1, "retryable": 4}.get(
            behaviour, 0
        )
        copies = tuple(_copies(plan, dice))
        message = Message(
            number,
            round(dice.random() * rush_s, 3),
            pace.work_s(),
            behaviour,
            dice.randint(1, most) if most else 0,
            group=dice.randrange(3),
            copies=copies if behaviour not in UNREADABLE else (),
        )
        if slow is not None:
            work_s = plan.timeout_s * (SLOW_SHARE if number == slow else 0.05)
            message = message._replace(work_s=work_s)
        yield message


# ── Batches whose time is short ───────────────────────────────────────────────────────────────────


def _failing_at_once(plan: Plan, dice: random.Random) -> Plan:
    """Have many runs fail at once, and then some take long, one after another."""
    messages = [
        Message(number, round(dice.random(), 3), 0.0, "flaky", times=dice.choice((1, 2)))
        for number in range(20)
    ]
    for number in range(20, 26):
        work_s = round(plan.timeout_s * dice.uniform(0.35, 0.45), 1)
        messages.append(Message(number, 5.0 + round(dice.random(), 3), work_s))
    return _batched(plan, messages, attempts=5, concurrency=1)


def _one_slow(plan: Plan, dice: random.Random) -> Plan:
    """Have a healthy message that takes long run out of time, and its copy come among others.

    In a batch with the first message it has too little time, and dies. So its copy, which nobody
    has received before, is on its last attempt. Beside one of the others it had even less time.
    """
    timeout_s = plan.timeout_s
    again_s = round(timeout_s * dice.uniform(1.2, 2.0), 1)
    slow = Message(1, 0.1, timeout_s * SLOW_SHARE, copies=(Copy(again_s, "resent"),))
    messages = [Message(0, 0.0, timeout_s * 0.3), slow]
    for number in range(2, 2 + dice.choice((1, 2, 3))):
        at_s = again_s + round(dice.random() / 5, 3)
        messages.append(Message(number, at_s, timeout_s * 0.35))
    return _batched(plan, messages, attempts=2, concurrency=1)


def _starving(plan: Plan, dice: random.Random) -> Plan:
    """Have some messages be dead letters, while the queue that takes these does not answer."""
    kinds = [*["keyless"] * dice.choice((3, 5)), *["ok"] * dice.choice((2, 4))]
    dice.shuffle(kinds)
    messages = [
        Message(number, round(dice.random(), 3), 0.2, behaviour=kind)
        for number, kind in enumerate(kinds)
    ]
    plan = _batched(plan, messages, attempts=3, concurrency=10)
    return plan._replace(faults=(Fault(LETTERS_HANG, None, 0.0, dice.choice((60.0, 600.0))),))


def _batched(plan: Plan, messages: list[Message], *, attempts: int, concurrency: int) -> Plan:
    """Return a plan without faults whose messages come in few and large batches."""
    policy = replace(plan.policy, max_attempts=attempts, concurrency=concurrency, atomic=False)
    return plan._replace(
        batch=10,
        sandboxes=1,
        receives=attempts + 7,
        reports=True,
        policy=policy,
        credentials_s=0.0,
        messages=tuple(messages),
    )


_AIMED: Final = 0.12
"""The share of a queue's plans that are about the time of a batch."""
_BATCHES: Final[tuple[Callable[[Plan, random.Random], Plan], ...]] = (
    _failing_at_once,
    _one_slow,
    _one_slow,
    _starving,
)


class _Pace:
    """How long the work of a plan's messages takes."""

    def __init__(self, plan: Plan, dice: random.Random) -> None:
        self._dice = dice
        self._longest_s = plan.timeout_s * 0.45
        longest_s = self._longest_s
        self._usual_s = dice.choice((0.2, 0.2, 1.0, longest_s / 2, longest_s))
        self._is_mixed = dice.random() < 0.3

    def work_s(self) -> float:
        dice = self._dice
        drawn_s = dice.choice((0.2, self._usual_s, self._longest_s * dice.random()))
        return round(drawn_s if self._is_mixed else self._usual_s, 1)


def _oddities(source: str) -> tuple[tuple[str, ...], ...]:
    """Return which odd behaviours a plan may have, as sets of which one is drawn."""
    if source == "http":
        return (), ("crasher",), HOPELESS, (REFUSED, UNSENDABLE), (*HOPELESS, REFUSED, UNSENDABLE)
    # The code reads these as JSON inside of something that was read already.
    unreadable = tuple(
        kind for kind in UNREADABLE if source not in ("rule", "stream") or kind != "nested"
    )
    return (), ("crasher",), HOPELESS, unreadable, (*HOPELESS, *unreadable)


_KINDS_OF_COPIES: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": ("again", "resent"),
    "rule": ("again", "resent", "replayed", "invoked"),
    "fifo": ("resent",),
    "kinesis": ("resent",),
    "stream": ("resent",),
    "http": ("again",),
}


def _copies(plan: Plan, dice: random.Random) -> Iterator[Copy]:
    number = dice.choice((0, 0, 0, 1, 1, 2))
    for kind in dice.choices(_KINDS_OF_COPIES[plan.source], k=number):
        after_s = dice.choice((0.01, 0.5, 5.0, 5.0, 90.0, 4000.0, 90_000.0))
        yield Copy(round(after_s * (0.5 + dice.random()), 3), kind)


def _faults(plan: Plan, dice: random.Random, rush_s: float) -> Iterator[Fault]:
    for _ in range(dice.choice((1, 1, 2, 3, 5, 8, 13))):
        if dice.random() < 0.2:
            at_s = round(dice.random() * (rush_s + 2 * plan.messages[0].work_s), 2)
            yield Fault(dice.choice(FOR_A_WHILE), None, at_s, dice.choice((1.0, 5.0, 40.0, 200.0)))
        else:
            kind = dice.choice(AT_A_REQUEST)
            yield Fault(
                kind, dice.randrange(len(plan.messages)), dice.choice((1, 1, 2, 2, 3, 4, 5, 6, 8))
            )


def _hanging(plan: Plan, dice: random.Random, rush_s: float) -> Iterator[Fault]:
    """Draw services beside the store that hang, for as long as somebody may need them."""
    if dice.random() < 0.3:
        yield Fault(LETTERS_HANG, None, 0.0, dice.choice((rush_s, 600.0, 7200.0, 40_000.0)))
    if plan.credentials_s and dice.random() < 0.7:
        at_s = round(dice.random() * plan.credentials_s, 2)
        yield Fault(AGENT_HANGS, None, at_s, dice.choice((30.0, 300.0, 3600.0)))
