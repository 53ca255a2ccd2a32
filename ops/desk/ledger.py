"""The page of the ledger: what became of events, and the letters behind its numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from carride_idempotency import observation
from ops.audit import Report
from ops.audit.evidence import AuditedConsumer, grouped
from ops.audit.ledger import Account
from ops.dead_letters import READERS
from ops.desk.counts import DELIVERIES
from ops.desk.facts import BUS, KEPT
from ops.desk.registry import Explanation, Next, Said, Seen, act, page
from ops.sentences import says
from ops.stack import FAILURES

_MOST_NAMED: Final = 40
_FEW: Final = 5
"""Of the rides or events with the same failure, so many are named."""

_BECAME: Final = (
    ("effects", "have their effect"),
    ("doubled", "doubled: effects beyond one for each event"),
    ("lettered", "waiting as dead letters"),
    ("expired", "dropped as expired"),
    ("in_flight", "in flight"),
    ("lost", "lost"),
    ("undecided", "not to be told"),
    ("others", "events that break the contract, or were never published"),
    ("distinct", "events to act on"),
)
"""What became of the events of a consumer: these rows add up to the last one."""
_LETTERS: Final = "letters"
"""All messages in the dead-letter queues of a consumer, and in those of the bus."""
_UNLOGGED: Final = "unlogged"
"""Effects whose delivery has not logged that it committed them."""
_OTHERS: Final = "other_deliveries"
_ALWAYS: Final = frozenset({"effects", "distinct", "deliveries"})
"""The rows that are shown even if all their numbers are 0."""
_UNPAID: Final = "it was driven, and its payment ended without money"
_SAYS: Final[Mapping[str, str]] = {
    **{each.row: each.says for each in DELIVERIES},
    "effects": "events whose effect is in the consumer's table",
    "lettered": "events without an effect whose letter a redrive may mend",
    _LETTERS: "also those of events that break the contract, and further ones of an event",
    "distinct": "published events without copies that the consumer acts on",
    "deliveries": "all that were logged; a crash logs nothing",
    _UNLOGGED: "committed by an attempt that crashed before it logged so; a later delivery was "
    "recognised as a duplicate",
}
"""What a number of the ledger counts, for whoever points at it."""


@page("/ledger", "ledger.html")
def _ledger(desk: Seen, _request: Request) -> dict[str, Any]:
    report = desk.feed.report
    context: dict[str, Any] = {
        "title": "Ledger",
        "report": report,
        "paths": paths_of(desk.feed.consumers),
        "says": _SAYS,
        "standing": desk.feed.standing(),
    }
    if report is not None:
        explained = desk.explained
        if explained is None or explained.report is not report:
            explained = desk.explained = Explanation(report, _explained(report))
        context |= explained.context
        context["title"] = f"{context['standing'].verdict} · Ledger"
        context["redrivable"] = _redrivable(desk, report.ledger.waiting)
    return context


def _redrivable(desk: Seen, waiting: int) -> int | None:
    """Return how many of the waiting letters can be redriven, as Dead letters counts them.

    It is None if there are others by now, or if not all could be read.
    """
    if not waiting:
        return 0
    with suppress(*FAILURES):
        reading = desk.letters()
        if waiting == sum(reading.counts.values()) == len(reading.found):
            return sum(each.verdict.goes for each in reading.found)
    return None


def paths_of(consumers: Sequence[AuditedConsumer]) -> dict[tuple[str, str], str]:
    """Return the list of the letters behind a number of the ledger, by consumer and row."""
    found = dict[tuple[str, str], str]()
    for each in consumers:
        found[each.name, "lettered"] = f"/letters?at={each.name}&contract={KEPT}"
    for name in (BUS, *(each.name for each in consumers)):
        found[name, _LETTERS] = f"/letters?at={name}"
    return found


def _explained(report: Report) -> dict[str, Any]:
    """Return what the ledger's sums are explained by: the rides and events that do not add up."""
    found = [("; ".join(map(says, why)), ride) for ride, why in report.saga.problems.items()]
    found += [(_UNPAID, ride) for ride in report.saga.unpaid]
    problems = _folded(grouped(found))
    overdue = [*report.saga.overdue.items()]
    named = grouped(((each.kind, each.at), each) for each in report.ledger.named())
    return {
        "blocks": blocks_of(report),
        "named": [*named.values()],
        "problems": problems[:_MOST_NAMED],
        "more_problems": max(0, len(problems) - _MOST_NAMED),
        "overdue": overdue[:_MOST_NAMED],
        "few": _FEW,
    }


class Block(NamedTuple):
    """Rows of the ledger below a heading."""

    title: str
    rows: list[tuple[str, str, dict[str, int]]]
    """Name, label, and the number of each consumer."""

    @property
    def names(self) -> Sequence[str]:
        """The consumers, and the bus if it has letters."""
        return [*dict.fromkeys(name for _, _, numbers in self.rows for name in numbers)]


def blocks_of(report: Report) -> tuple[Block, Block]:
    """Return what became of the events of each consumer, and its deliveries."""
    delivered = [(each.row, each.label) for each in DELIVERIES]
    delivered += [(_OTHERS, "with another outcome"), ("deliveries", "deliveries")]
    became = _block("What became of its events", _BECAME, report, _number)
    if report.ledger.waiting:
        became.rows.append((_LETTERS, "all dead letters in its queues", _letters_of(report)))
    deliveries = _block("Its deliveries", delivered, report, _number_of_deliveries)
    unlogged = {name: _unlogged(each) for name, each in report.ledger.consumers.items()}
    if any(unlogged.values()):
        label = "effects whose delivery logged nothing, beside these"
        deliveries.rows.append((_UNLOGGED, label, unlogged))
    return became, deliveries


def _unlogged(account: Account) -> int:
    """Return how many effects were committed by deliveries that crashed before they logged so."""
    logged = sum(account.outcomes.get(each, 0) for each in observation.COMMITTED)
    return max(0, account.effects - logged)


def _letters_of(report: Report) -> dict[str, int]:
    """Return how many letters the queues of each consumer have, and those of none if they do."""
    found = dict.fromkeys(report.ledger.consumers, 0)
    for queue, reasons in report.ledger.dead_lettered.items():
        reader = READERS.get(queue)
        name = reader.name if reader is not None and reader.name in found else BUS
        found[name] = found.get(name, 0) + sum(reasons.values())
    return found


def _block(
    title: str,
    rows: Iterable[tuple[str, str]],
    report: Report,
    number: Callable[[Account, str], int],
) -> Block:
    found = []
    for name, label in rows:
        numbers = {}
        for consumer, account in report.ledger.consumers.items():
            numbers[consumer] = number(account, name)
        if name in _ALWAYS or any(numbers.values()):
            found.append((name, label, numbers))
    return Block(title, found)


def _number(account: Account, name: str) -> int:
    """Return a number of an account; doubled effects are taken off, so that the sum is right."""
    if name == "undecided":
        return len(account.undecided)
    if name != "others":
        return int(getattr(account, name))
    parts = ("effects", "lettered", "expired", "in_flight", "lost", "undecided")
    explained = sum(_number(account, each) for each in parts) - account.doubled
    return account.distinct - explained


def _number_of_deliveries(account: Account, name: str) -> int:
    """Return how many deliveries a consumer has logged, all or those of one kind."""
    if name == "deliveries":
        return account.deliveries
    if name == _OTHERS:
        return account.deliveries - sum(each.of(account.outcomes) for each in DELIVERIES)
    (count,) = [each for each in DELIVERIES if each.row == name]
    return count.of(account.outcomes)


class Alike(NamedTuple):
    """Rides or events with the same failure."""

    why: str
    names: list[str]


def _folded(by_why: Mapping[str, list[str]]) -> list[Alike]:
    """Return the failures, the most frequent first."""
    found = [Alike(why, names) for why, names in by_why.items()]
    return sorted(found, key=lambda each: -len(each.names))


@act("/audit")
def _audit(desk: Seen, _form: Mapping[str, str]) -> Next:
    desk.feed.audit_wanted.set()
    return "/ledger", Said("The audit has begun.")
