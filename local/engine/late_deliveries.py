"""A region whose EventBridge is late: it accepts events and hands none of them over, and its pipes stand still.

A simulation of the outage that a global endpoint is made for, and of nothing that MiniStack lacks: accepted events
wait, and arrive when the region has recovered, however long ago another region has taken over.

Lies in front of `eventbridge._invoke_target`.
"""

from typing import Any, NamedTuple

from ministack.services import eventbridge

from local.engine.scope import Scope


class _Delivery(NamedTuple):
    """A delivery that waits."""

    target: dict[str, Any]
    event: dict[str, Any]
    rule: dict[str, Any]
    view: Any


_waiting: dict[Scope, list[_Delivery]] = {}
"""Deliveries by account and region; a region that is not late has no list."""


def is_late(region: str, account: str | None = None) -> bool:
    """Whether deliveries wait in a region of the account; left out, the current one."""
    return Scope(account or Scope.current().account, region) in _waiting


def set_late(regions: set[str]) -> None:
    """Let deliveries wait in these regions, and hand over those that have waited in the others."""
    here = Scope.current()
    for region in regions:
        _waiting.setdefault(Scope(here.account, region), [])
    for scope in [scope for scope in _waiting if scope.account == here.account and scope.region not in regions]:
        scope.enter()
        for delivery in _waiting.pop(scope):
            eventbridge._invoke_target(*delivery)
    here.enter()


def apply() -> None:
    """Let deliveries wait."""
    invoke_target, stock_reset = eventbridge._invoke_target, eventbridge.reset

    def deliver(target: dict[str, Any], event: dict[str, Any], rule: dict[str, Any], view: Any = None) -> None:
        waiting = _waiting.get(Scope.current())
        if waiting is None:
            invoke_target(target, event, rule, view)
        else:
            waiting.append(_Delivery(target, event, rule, view))

    def reset() -> None:
        _waiting.clear()
        stock_reset()

    eventbridge._invoke_target = deliver
    eventbridge.reset = reset
