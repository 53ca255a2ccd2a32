"""The verbs of dead letters."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ops import letters as dead
from ops import redrive as redriving
from ops.cli.show import show, table
from ops.cli.verbs import Plan, Session, Span, acts, reads, spelt
from ops.stack import OperatorError

_SHOWN = 20
"""Letters of a plan that are printed; JSON has all."""
_UNITS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))


@reads("letters")
def letters(session: Session, queue: str | None = None, /) -> dead.Letters:
    """Show what lies in the dead-letter queues, grouped by failure.

    Letters of one group have the same queue, consumer, reason and error; ids and numbers in the error do not count.
    Of each group the oldest letters are shown. Every letter stays in its queue.

    Args:
        queue: Logical id of one queue: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …
    """
    return dead.letters(session.stack, queue)


@acts("redrive", status=lambda done: 0 if done.succeeded else 1)
def redrive(
    session: Session,
    queue: str,
    /,
    *,
    key: str | None = None,
    reason: str | None = None,
    group: str | None = None,
    limit: int | None = None,
    rate: float | None = None,
    release: bool = False,
    no_canary: bool = False,
    wait: Span = redriving.WAIT,
) -> Plan:
    """Send dead letters to the target that they were meant for. Other targets do not receive them.

    Letters that would only return stay in the queue. One letter of each group goes first, and the others of the group
    only if the consumer has completed it.

    Args:
        queue: Logical id of the queue: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …
        key: Only the letters of this key, CONSUMER#ID.
        reason: Only letters with this reason.
        group: Only letters of this group; `carride letters` shows the groups.
        limit: The most letters; the oldest go.
        rate: The most letters a second.
        release: Release quarantined keys and keys whose attempts are used up; their cause is fixed.
        no_canary: Send all letters at once, without waiting for the first of each group.
        wait: How long to wait for the outcome of the first letters.
    """
    if (limit is not None and limit < 1) or (rate is not None and rate <= 0):
        raise OperatorError("--limit and --rate have to be more than 0")
    stack = session.stack
    plan = redriving.plan(stack, queue, key=key, reason=reason, group=group, limit=limit, release=release)
    options: Any = {"canary": not no_canary, "rate": rate, "wait": wait, "report": session.say}
    return Plan(plan, lambda: redriving.redrive(stack, plan, **options), (stack,))


@show.register
def _(found: dead.Letters) -> RenderableType:
    rows = table("group", "letters", "oldest", "redriven", "queue", "reason", "error")
    oldest = []
    for each in found.failures:
        numbers = (str(each.count), _age(each.oldest), str(each.redriven))
        rows.add_row(each.group, *numbers, each.queue, each.reason, each.error)
        for letter in each.letters:
            named = (letter.group, letter.key or letter.fact, letter.ride, letter.type, f"{_age(letter.sent)} old")
            oldest.append(Text("  ".join(map(str, filter(None, named)))))
        event = each.letters[0].event
        detail = json.dumps(event.get("detail") if isinstance(event, Mapping) else event, ensure_ascii=False)
        oldest.append(Text(f"        {detail:.1000}", style="dim"))
    shown = [rows, "", *oldest] if found.failures else ["there are no dead letters"]
    return Group(*shown, *_hidden(found.hidden))


@show.register
def _(plan: redriving.RedrivePlan) -> RenderableType:
    rows = table("group", "reason", "key", "ride", "age", "redriven", "what happens")
    for letter, verdict in plan.letters[:_SHOWN]:
        named = (letter.group, letter.reason, letter.key or "", letter.ride or "", _age(letter.sent))
        rows.add_row(*named, str(letter.redriven), f"{'goes' if verdict.goes else 'stays'}: {verdict.why}")
    more = len(plan.letters) - _SHOWN
    return Group(
        *([rows] if plan.letters else []),
        *([f"… and {more} more, which --json lists"] if more > 0 else []),
        f"target: {plan.target}",
        _totals(Counter(("go" if each.verdict.goes else "stay", each.verdict.why) for each in plan.letters)),
        *([f"{plan.queue} has more letters, which were not chosen: {plan.others}"] if plan.others else []),
        *_hidden({plan.queue: plan.hidden}),
    )


@show.register
def _(done: redriving.Redriven) -> RenderableType:
    gone = {("gone", "no longer in the queue, or another operator has received them"): done.gone}
    return _totals({("sent", ""): done.sent, **{("stay", why): count for why, count in done.stayed.items()}, **gone})


def _totals(counts: Mapping[tuple[str, str], int]) -> RenderableType:
    rows = table("", "letters", "why")
    for (what, why), count in sorted(counts.items()):
        if count:
            rows.add_row(what, str(count), why)
    return rows if rows.row_count else "no letters"


def _hidden(messages: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each queue with messages that could not be read."""
    why = "another operator has received them, or a command was interrupted. They are shown again within minutes"
    yield from (f"{queue} hides {count} more: {why}" for queue, count in messages.items() if count)


def _age(since: datetime) -> str:
    """Return an age in its largest whole unit."""
    age = datetime.now(UTC) - since
    unit = next((unit for unit in _UNITS if age >= unit), _UNITS[-1])
    return str(spelt(max(age // unit, 0) * unit))
