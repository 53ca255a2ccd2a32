"""What happens in one run: the world, its messages and its faults, as data drawn from a seed."""

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

WORLDS: Final[Mapping[str, str]] = {
    "queue": "an SQS queue: duplicates, receive counts, redrive, partial failures",
    "fifo": "an SQS FIFO queue: message groups in order",
    "rule": "an EventBridge rule: asynchronous invokes, duplicates, replays, an operator's own invokes",
    "async": "asynchronous invokes: two retries under the same request id, then the OnFailure queue",
    "kinesis": "a Kinesis shard: order, checkpoints at the lowest failure, bisecting, an on-failure destination",
    "stream": "a DynamoDB stream's shard: as Kinesis",
    "kafka": "a Kafka partition: no partial failures, the whole batch again",
    "callers": "synchronous callers of a Lambda function who lose patience and call again",
    "service": "callers of a process without deadline: containers that are killed and frozen",
}
BATCHES: Final = ("queue", "fifo", "kinesis", "stream", "kafka")
CALLS: Final = ("callers", "service")

UNREADABLE: Final = ("nested", "keyless", "typo", "overflow")
"""Too deep for the JSON decoder; without a key; the key function raises AttributeError; ``occurred`` OverflowError."""
THE_CODES_FAULT: Final = UNREADABLE[2:]
"""These are no fault of the message, so its transport delivers it again."""
HOPELESS: Final = ("poison", "permanent", "crasher", "awaitable", "bad write", "bad result")
PASSING: Final = ("ok", "flaky", "retryable")

AT_A_REQUEST: Final = (
    *("crash before", "crash after", "request lost", "answer lost", "late", "slow", "odd"),
    *("throttled", "denied", "conflict", "no reasons", "freeze", "clock"),
)
"""Faults that meet one request of one message: ``at`` is which one, ``amount`` the seconds of a freeze or a jump."""
FOR_A_WHILE: Final = ("throttled", "denied", "conflict", "outage")
"""Faults that meet every request: ``at`` is the second in which it begins, ``amount`` for how many it lasts."""


class Copy(NamedTuple):
    """A further delivery of the same fact."""

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
    amount: float = 0.0


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
    """``dynamodb``, ``valkey`` or ``memory``."""
    work: str
    """``effects``, ``external``, ``both``, ``functions`` or ``block``."""
    timeout_s: int = 30
    batch: int = 10
    sandboxes: int = 3
    receives: int = 5
    """The queue's maxReceiveCount, or the stream's maximum of retries."""
    reports: bool = True
    """The mapping has ReportBatchItemFailures. Without it a batch is one message: the layer can say nothing of some only."""
    bisects: bool = False
    window_s: int = 30 * 86_400
    room: int = 0
    """So many runs at once use up the memory of a sandbox; 0: none do."""
    versions: tuple[Version, ...] = (Version(),)
    messages: tuple[Message, ...] = ()
    faults: tuple[Fault, ...] = ()


def draw(seed: int, world: str | None = None) -> Plan:  # noqa: C901, PLR0912 - one line a choice
    """Draw a plan."""
    dice = random.Random(seed)  # noqa: S311 - it has to be the same every time
    drawn = dice.choice(tuple(WORLDS))
    world = world or drawn
    calm = dice.random() < 0.3  # no fault but what the messages bring
    store = dice.choice(("dynamodb", "dynamodb", "dynamodb", "valkey", "memory"))
    works = ["external", "external", "functions"]
    if store != "valkey":
        works += ["effects", "effects", "both"]
    if world in CALLS:
        works = ["block", "functions"]
    work = dice.choice(works)
    timeout_s = dice.choice((10, 30, 60, 60, 120, 300, 900)) if world not in CALLS else dice.choice((10, 30, 300))
    if world == "service":
        timeout_s = 0
    max_attempts = dice.choice((2, 3, 3, 3, 5))
    first = Version(
        atomic=work == "effects" and dice.random() < 0.5,
        max_attempts=max_attempts,
        concurrency=dice.choice((1, 2, 5, 10, 10, 10)),
        lease=dice.choice((10, 30, 30, 90)),
        waits=dice.random() < 0.2,
    )
    if not first.atomic and dice.random() < 0.15:
        first = first._replace(once=True)
    reports = world != "kafka" and (world not in BATCHES or dice.random() < 0.8)
    batch = dice.choice((2, 5, 10, 10)) if reports or world == "kafka" else 1
    longest_s = timeout_s * 0.45 if timeout_s else 60.0
    if work == "functions":
        longest_s /= 2  # there are two of them
    usual_s = dice.choice((0.2, 0.2, 1.0, longest_s / 2, longest_s))
    mixed = dice.random() < 0.3
    rush_s = dice.choice((1.0, 1.0, 20.0, 600.0))  # all of them come within so many seconds
    oddest = dice.choice(((), ("crasher",), (*HOPELESS, "crasher"), UNREADABLE, (*HOPELESS, *UNREADABLE)))
    unfit = UNREADABLE if world in CALLS else () if world in ("queue", "fifo", "kinesis", "kafka") else ("nested",)
    if work == "functions":
        unfit += ("bad result",)  # whoever calls again would never get it
    odd = [kind for kind in oddest if kind not in unfit]
    all_flaky = dice.random() < 0.15
    messages = []
    for number in range(dice.choice((1, 2, 4, 8, 12, 20))):
        behaviour = "ok"
        if odd and dice.random() < 0.25:
            behaviour = dice.choice(odd)
        elif all_flaky or dice.random() < 0.1:
            behaviour = dice.choice(("flaky", "flaky", "retryable")) if not all_flaky else "flaky"
        times = 1 if all_flaky else dice.randint(1, 4 if behaviour == "retryable" else max_attempts - 1)
        copies = tuple(
            Copy(
                round(dice.choice((0.01, 0.5, 5.0, 90.0, 4000.0, 90_000.0)) * (0.5 + dice.random()), 3),
                dice.choice(kinds),
            )
            for kinds in [_copies(world)]
            for _ in range(dice.choice((0, 0, 0, 1, 1, 2)))
        )
        messages.append(
            Message(
                number,
                round(dice.random() * rush_s, 3),
                round(usual_s if not mixed else dice.choice((0.2, usual_s, longest_s * dice.random())), 1),
                behaviour,
                times if behaviour in ("flaky", "retryable") else 0,
                group=dice.randrange(3),
                expires_s=round(rush_s + dice.random() * 300) if dice.random() < 0.05 and world not in CALLS else None,
                copies=copies if behaviour not in UNREADABLE else (),
            )
        )
    faults = []
    for _ in range(0 if calm else dice.choice((1, 1, 2, 3, 5, 8, 13))):
        if dice.random() < 0.2:
            length_s = dice.choice((1.0, 5.0, 40.0, 200.0))
            kind = dice.choice(FOR_A_WHILE)
            faults.append(Fault(kind, None, round(dice.random() * (rush_s + 2 * usual_s), 2), length_s))
        else:
            kind = dice.choice(AT_A_REQUEST)
            amounts = (0.4, -0.4, 20.0, -20.0, 3600.0, 86_400.0) if kind == "clock" else (1.0, 20.0, 100.0, 400.0)
            where = dice.randrange(len(messages))
            faults.append(Fault(kind, where, dice.choice((1, 1, 2, 2, 3, 4, 5, 6, 8)), dice.choice(amounts)))
    versions = [first]
    if dice.random() < 0.25:
        versions.append(
            first._replace(
                at_s=round(dice.random() * (rush_s + 60), 1),
                atomic=work == "effects" and not (first.atomic or first.once),
                max_attempts=max(2, max_attempts + dice.choice((-1, 0, 1))),
                concurrency=dice.choice((1, 2, 5, 10)),
                lease=dice.choice((10, 30, 90)),
            )
        )
    return Plan(
        seed,
        world,
        store,
        work,
        timeout_s,
        batch,
        sandboxes=dice.choice((1, 2, 5)),
        receives=max(version.max_attempts for version in versions) + dice.choice((2, 2, 3, 6)),
        reports=reports,
        window_s=7200 if world not in CALLS and dice.random() < 0.2 else 30 * 86_400,
        bisects=dice.random() < 0.5,
        room=dice.choice((0, 0, 0, 3, 5)) if world in BATCHES and not calm else 0,
        versions=tuple(versions),
        messages=tuple(messages),
        faults=tuple(faults),
    )


def _copies(world: str) -> tuple[str, ...]:
    if world == "rule":
        return ("again", "resent", "replayed", "invoked")
    return ("again", "resent")


def from_json(data: Mapping[str, Any]) -> Plan:
    """Return the plan that was printed as JSON."""
    parts = dict(data)
    parts["versions"] = tuple(Version(**version) for version in data["versions"])
    parts["faults"] = tuple(Fault(**fault) for fault in data["faults"])
    parts["messages"] = tuple(
        Message(**{**message, "copies": tuple(Copy(**copy) for copy in message["copies"])})
        for message in data["messages"]
    )
    return Plan(**parts)


def to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON can hold it."""
    return plan._asdict() | {
        "versions": [version._asdict() for version in plan.versions],
        "faults": [fault._asdict() for fault in plan.faults],
        "messages": [
            message._asdict() | {"copies": [copy._asdict() for copy in message.copies]} for message in plan.messages
        ],
    }


def smaller(plan: Plan) -> Iterator[Plan]:
    """Every plan that has a little less: what a failing one is shrunk with. The seed's draws stay as they are."""
    for number in range(len(plan.messages) - 1, -1, -1):
        gone = plan.messages[number].number
        yield plan._replace(
            messages=plan.messages[:number] + plan.messages[number + 1 :],
            faults=tuple(fault for fault in plan.faults if fault.message != gone),
        )
    for index in range(len(plan.faults) - 1, -1, -1):
        yield plan._replace(faults=plan.faults[:index] + plan.faults[index + 1 :])
    if len(plan.versions) > 1:
        for version in plan.versions:
            yield plan._replace(versions=(version._replace(at_s=0.0),))
    if plan.room:
        yield plan._replace(room=0)
    for index, message in enumerate(plan.messages):
        plainer = [
            message._replace(copies=message.copies[:place] + message.copies[place + 1 :])
            for place in range(len(message.copies))
        ]
        if message.behaviour != "ok":
            plainer.append(message._replace(behaviour="ok", times=0))
        if message.times > 1:
            plainer.append(message._replace(times=message.times - 1))
        if message.expires_s is not None:
            plainer.append(message._replace(expires_s=None))
        if message.work_s > 1:
            plainer.append(message._replace(work_s=0.2))
        for plain in plainer:
            yield plan._replace(messages=(*plan.messages[:index], plain, *plan.messages[index + 1 :]))
    if plan.sandboxes > 1:
        yield plan._replace(sandboxes=1)
