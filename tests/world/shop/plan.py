"""What happens in one run of the shop, as data drawn from a seed."""

import random
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from carride_idempotency.policy import DAY, Policy

SOURCES: Final[Mapping[str, str]] = {
    "queue": "an SQS queue: duplicates, receive counts, redrive, partial failures",
    "rule": "an EventBridge rule: asynchronous invokes with two retries, duplicates, replays, "
    "manual invokes",
}

PASSING: Final = ("ok", "flaky", "retryable")
HOPELESS: Final = ("poison", "permanent", "crasher", "crasher", "awaitable")
THE_CODES_FAULT: Final = ("typo", "overflow")
"""Reading raises AttributeError or OverflowError: the code's fault, so the transport delivers the
message again."""
UNREADABLE: Final = ("nested", "keyless", *THE_CODES_FAULT)
"""JSON that is nested too deeply, an event without a key, and the code's faults."""

AT_A_REQUEST: Final = (
    *("crash before", "crash after", "request lost", "answer lost", "late", "slow", "odd"),
    *("throttled", "denied", "conflict", "no reasons"),
)
"""Faults of one request of one message: ``at`` says which one."""
FOR_A_WHILE: Final = ("throttled", "denied", "conflict", "outage")
"""Faults of every request: ``at`` is the second in which it begins, ``amount`` for how many seconds
it lasts."""


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
    """The queue's maxReceiveCount."""
    reports: bool
    """The mapping has ReportBatchItemFailures; without it a batch holds one message."""
    policy: Policy
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
    reports = dice.random() < 0.8
    rush_s = dice.choice((1.0, 1.0, 20.0, 600.0))  # all messages come within so many seconds
    policy = Policy(
        max_attempts=dice.choice((2, 3, 3, 3, 5)),
        atomic=work == "effects" and dice.random() < 0.5,
        window=7200 if dice.random() < 0.2 else 30 * DAY,
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
    )
    plan = plan._replace(messages=tuple(_messages(plan, dice, rush_s)))
    return plan if calm else plan._replace(faults=tuple(_faults(plan, dice, rush_s)))


def _messages(plan: Plan, dice: random.Random, rush_s: float) -> Iterator[Message]:
    longest_s = plan.timeout_s * 0.45
    usual_s = dice.choice((0.2, 0.2, 1.0, longest_s / 2, longest_s))
    mixed = dice.random() < 0.3
    all_flaky = dice.random() < 0.2
    kinds_of_odd: tuple[tuple[str, ...], ...] = (
        (),
        ("crasher",),
        HOPELESS,
        UNREADABLE,
        (*HOPELESS, *UNREADABLE),
    )
    odd = [kind for kind in dice.choice(kinds_of_odd) if plan.source != "rule" or kind != "nested"]
    kinds = (
        ("again", "resent", "replayed", "invoked") if plan.source == "rule" else ("again", "resent")
    )
    for number in range(dice.choice((1, 2, 4, 8, 12, 12, 20))):
        behaviour = "ok"
        if odd and dice.random() < 0.25:
            behaviour = dice.choice(odd)
        elif all_flaky or dice.random() < 0.1:
            behaviour = "flaky" if all_flaky else dice.choice(("flaky", "flaky", "retryable"))
        most = {"flaky": 1 if all_flaky else plan.policy.max_attempts - 1, "retryable": 4}.get(
            behaviour, 0
        )
        copies = [
            Copy(
                round(
                    dice.choice((0.01, 0.5, 5.0, 5.0, 90.0, 4000.0, 90_000.0))
                    * (0.5 + dice.random()),
                    3,
                ),
                kind,
            )
            for kind in dice.choices(kinds, k=dice.choice((0, 0, 0, 1, 1, 2)))
        ]
        yield Message(
            number,
            round(dice.random() * rush_s, 3),
            round(
                usual_s if not mixed else dice.choice((0.2, usual_s, longest_s * dice.random())), 1
            ),
            behaviour,
            dice.randint(1, most) if most else 0,
            copies=tuple(copies) if behaviour not in UNREADABLE else (),
        )


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
