"""What happens in one run, as data drawn from a seed: a plan is printed as Python, and read again from that."""

import random
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

DAY: Final = 86_400

WORLDS: Final[Mapping[str, str]] = {
    "queue": "an SQS queue: duplicates, receive counts, redrive, partial failures",
    "fifo": "an SQS FIFO queue: message groups in order",
    "rule": "an EventBridge rule: asynchronous invokes, duplicates, replays, an operator's own invokes",
    "async": "asynchronous invokes: two retries under the same request id, then the OnFailure queue",
    "kinesis": "a Kinesis shard: order, checkpoints at the lowest failure, bisecting, an on-failure destination",
    "stream": "a DynamoDB stream's shard: as Kinesis",
    "kafka": "a Kafka partition: no partial failures, the whole batch again",
    "callers": "synchronous callers of a Lambda function who lose patience and call again",
    "api": "clients of an HTTP API who do so under an Idempotency-Key",
    "service": "callers of containers, which have no deadline, and are killed and frozen",
}
BATCHES: Final = ("queue", "fifo", "kinesis", "stream", "kafka")
CALLS: Final = ("callers", "api", "service")

PASSING: Final = ("ok", "flaky", "retryable")
HOPELESS: Final = ("poison", "permanent", "crasher", "crasher", "awaitable", "bad write", "bad result")
THE_CODES_FAULT: Final = ("typo", "overflow")
"""Reading raises AttributeError, OverflowError: no fault of the message, so its transport delivers it again."""
UNREADABLE: Final = ("nested", "keyless", *THE_CODES_FAULT)
"""Besides, JSON that is nested too deeply, and an event without a key."""

AT_A_REQUEST: Final = (
    *("crash before", "crash after", "request lost", "answer lost", "late", "slow", "odd"),
    *("throttled", "denied", "conflict", "no reasons", "freeze", "clock"),
)
"""Faults that meet one request of one message: ``at`` is which one, ``amount`` the seconds of a freeze or a jump."""
FOR_A_WHILE: Final = ("throttled", "denied", "conflict", "outage")
"""Faults that meet every request: ``at`` is the second in which it begins, ``amount`` for how many it lasts."""


class Copy(NamedTuple):
    """A further delivery of a fact."""

    after_s: float
    kind: str
    """``again`` under the same id, ``resent`` under a new one, ``replayed`` from an archive, ``invoked`` by hand."""


class Message(NamedTuple):
    """One fact, and what its handler makes of it."""

    number: int
    at_s: float
    work_s: float = 0.2
    behaviour: str = "ok"
    times: int = 0
    """How often a passing failure happens."""
    group: int = 0
    expires_s: float | None = None
    """After this second of the run the fact is of no use any more."""
    copies: tuple[Copy, ...] = ()


class Fault(NamedTuple):
    """Something that goes wrong."""

    kind: str
    message: int | None
    at: float
    amount: float


class Version(NamedTuple):
    """One version of the code, and when it is deployed; for two minutes the one before is still called, too."""

    at_s: float = 0.0
    atomic: bool = False
    max_attempts: int = 3
    concurrency: int = 10
    lease: int = 30
    waits: bool = False
    once: bool = False
    """on_crash is ``quarantine``."""


class Plan(NamedTuple):
    """One run."""

    seed: int
    world: str
    store: str
    work: str
    """``effects``, ``external``, ``both``, ``functions`` (two, nested in the handler) or ``block``."""
    timeout_s: int
    """0: none."""
    batch: int
    sandboxes: int
    receives: int
    """The queue's maxReceiveCount, or the stream's maximum of retries."""
    reports: bool
    """The mapping has ReportBatchItemFailures. Without it a batch is one message: nothing can be said of some only."""
    bisects: bool
    window_s: int
    room: int
    """So many runs at once use up the memory of a sandbox; 0: none do."""
    versions: tuple[Version, ...]
    messages: tuple[Message, ...]
    faults: tuple[Fault, ...]


def draw(seed: int, world: str | None = None) -> Plan:
    """Draw a plan."""
    dice = random.Random(seed)  # noqa: S311 - it has to be the same every time
    drawn = dice.choice(tuple(WORLDS))
    world = world or drawn
    calm = dice.random() < 0.3  # nothing goes wrong but what the messages bring
    store = dice.choice(("dynamodb", "dynamodb", "dynamodb", "valkey", "memory"))
    transactional = () if store == "valkey" else ("effects", "effects", "both")
    works = ("block", "functions") if world in CALLS else ("external", "external", "functions", *transactional)
    work = dice.choice(works if world != "api" else ("external", *transactional))
    timeout_s = dice.choice((10, 30, 300) if world in CALLS else (10, 30, 60, 60, 120, 300, 900))
    reports = world != "kafka" and (world not in BATCHES or dice.random() < 0.8)
    rush_s = dice.choice((1.0, 1.0, 20.0, 600.0))  # all messages come within so many seconds
    max_attempts = dice.choice((2, 3, 3, 3, 5))
    atomic = work == "effects" and dice.random() < 0.5
    version = Version(
        atomic=atomic,
        max_attempts=max_attempts,
        concurrency=dice.choice((1, 2, 5, 10, 10, 10)),
        lease=dice.choice((10, 10, 30, 90)),
        waits=dice.random() < 0.2,
        once=not atomic and dice.random() < 0.15,
    )
    changed = version._replace(
        at_s=round(dice.random() * (rush_s + 60), 1),
        atomic=work == "effects" and not (version.atomic or version.once),
        max_attempts=max(2, max_attempts + dice.choice((-1, 0, 1))),
        concurrency=dice.choice((1, 2, 5, 10)),
        lease=dice.choice((10, 30, 90)),
    )
    plan = Plan(
        seed,
        world,
        store,
        work,
        timeout_s if world != "service" else 0,
        batch=dice.choice((2, 5, 10, 10)) if reports or world == "kafka" else 1,
        sandboxes=dice.choice((1, 2, 5)),
        receives=max_attempts + dice.choice((3, 3, 4, 7)),
        reports=reports,
        bisects=dice.random() < 0.5,
        window_s=7200 if world not in CALLS and dice.random() < 0.2 else 30 * DAY,
        room=dice.choice((0, 0, 0, 3, 5)) if world in BATCHES and not calm else 0,
        versions=(version, changed) if dice.random() < 0.25 else (version,),
        messages=(),
        faults=(),
    )
    messages = tuple(_messages(plan, dice, rush_s))
    return plan._replace(messages=messages, faults=() if calm else tuple(_faults(plan, messages, dice, rush_s)))


def _messages(plan: Plan, dice: random.Random, rush_s: float) -> Iterator[Message]:
    parts = 2 if plan.work == "functions" else 1
    longest_s = plan.timeout_s * 0.45 / parts if plan.timeout_s else 60.0
    usual_s = dice.choice((0.2, 0.2, 1.0, longest_s / 2, longest_s))
    mixed, all_flaky = dice.random() < 0.3, dice.random() < 0.15
    kinds_of_odd: tuple[tuple[str, ...], ...] = (), ("crasher",), HOPELESS, UNREADABLE, (*HOPELESS, *UNREADABLE)
    odd = dice.choice(kinds_of_odd)
    unfit: tuple[str, ...] = () if plan.world in ("queue", "fifo", "kinesis", "kafka") else ("nested",)
    unfit = UNREADABLE if plan.world in CALLS else unfit
    unfit += ("bad result",) if plan.work == "functions" or plan.world == "api" else ()  # nobody would ever get it
    odd = tuple(kind for kind in odd if kind not in unfit)
    kinds = ("again", "resent", "replayed", "invoked") if plan.world == "rule" else ("again", "resent")
    for number in range(dice.choice((1, 2, 4, 8, 12, 20))):
        behaviour = "ok"
        if odd and dice.random() < 0.25:
            behaviour = dice.choice(odd)
        elif (all_flaky or dice.random() < 0.1) and not plan.room:
            behaviour = "flaky" if all_flaky else dice.choice(("flaky", "flaky", "retryable"))
        most = {"flaky": 1 if all_flaky else plan.versions[0].max_attempts - 1, "retryable": 4}.get(behaviour, 0)
        copies = [
            Copy(round(dice.choice((0.01, 0.5, 5.0, 5.0, 90.0, 4000.0, 90_000.0)) * (0.5 + dice.random()), 3), kind)
            for kind in dice.choices(kinds, k=dice.choice((0, 0, 0, 1, 1, 2)))
        ]
        yield Message(
            number,
            round(dice.random() * rush_s, 3),
            round(usual_s if not mixed else dice.choice((0.2, usual_s, longest_s * dice.random())), 1),
            behaviour,
            dice.randint(1, most) if most else 0,
            group=dice.randrange(3),
            expires_s=round(rush_s + dice.random() * 300) if dice.random() < 0.05 and plan.world not in CALLS else None,
            copies=tuple(copies) if behaviour not in UNREADABLE else (),
        )


def _faults(plan: Plan, messages: tuple[Message, ...], dice: random.Random, rush_s: float) -> Iterator[Fault]:
    far_s = min(float(DAY), plan.window_s / 4)  # a clock that jumps over the window forgets what was done in it
    for _ in range(dice.choice((1, 1, 2, 3, 5, 8, 13))):
        if dice.random() < 0.2:
            at_s = round(dice.random() * (rush_s + 2 * messages[0].work_s), 2)
            yield Fault(dice.choice(FOR_A_WHILE), None, at_s, dice.choice((1.0, 5.0, 40.0, 200.0)))
        else:
            kind = dice.choice(AT_A_REQUEST)
            amounts = (0.4, -0.4, 20.0, -20.0, far_s, far_s) if kind == "clock" else (5.0, 20.0, 20.0, 100.0, 400.0)
            where = dice.randrange(len(messages))
            yield Fault(kind, where, dice.choice((1, 1, 2, 2, 3, 4, 5, 6, 8)), dice.choice(amounts))


def smaller(plan: Plan) -> Iterator[Plan]:
    """Yield every plan that has a little less: what a failing one is shrunk with."""
    for index, message in reversed(list(enumerate(plan.messages))):
        faults = tuple(fault for fault in plan.faults if fault.message != message.number)
        yield plan._replace(messages=plan.messages[:index] + plan.messages[index + 1 :], faults=faults)
    for index in reversed(range(len(plan.faults))):
        yield plan._replace(faults=plan.faults[:index] + plan.faults[index + 1 :])
    if len(plan.versions) > 1:
        yield from (plan._replace(versions=(version._replace(at_s=0.0),)) for version in plan.versions)
    for simple in (plan._replace(room=0), plan._replace(sandboxes=1)):
        if simple != plan:
            yield simple
    for index, message in enumerate(plan.messages):
        plainer = [message._replace(copies=tuple(copy for copy in message.copies if copy != gone))
                   for gone in message.copies]  # fmt: skip
        plainer += [message._replace(behaviour="ok", times=0), message._replace(times=min(1, message.times))]
        plainer += [message._replace(expires_s=None), message._replace(work_s=0.2)]
        for plain in plainer:
            if plain != message:
                yield plan._replace(messages=(*plan.messages[:index], plain, *plan.messages[index + 1 :]))
