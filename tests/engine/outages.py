"""Outages of regions: a plug-in of the engine, for tests of a failover (`LocalAws("--plug-in=tests.engine.outages")`).

``POST /_engine/outages`` with ``{"late": […], "lagging": …}``; a switch that is left out stays as it is.

- ``late`` names the regions whose EventBridge accepts events and delivers none of them. Their pipes stand still, and
  endpoints route elsewhere. The waiting events are delivered when the region has recovered.
- ``lagging``: replicas of global tables see no writes of other regions. Afterwards each item's latest write is copied.
  MiniStack itself copies each write at once.

Lies over `eventbridge._invoke_target` and `dynamodb._replicate_write`.
"""

import json
from typing import Any, NamedTuple

from ministack.services import dynamodb, eventbridge

from local.engine import control
from local.engine.scope import Scope, impaired
from local.engine.settings import Settings

type _Item = dict[str, Any]


class _Write(NamedTuple):
    """A write that the other replicas have not seen."""

    scope: Scope
    table: dict[str, Any]
    kind: str
    old: _Item | None
    new: _Item | None


_invoke_target, _replicate_write = eventbridge._invoke_target, dynamodb._replicate_write
_waiting: list[tuple[Scope, tuple[Any, ...]]] = []
_writes: dict[tuple[Any, ...], _Write] = {}
"""The latest write of each item, by table and key."""
_lagging = False


def _deliver(*delivery: Any) -> None:
    here = Scope.current()
    if here in impaired:
        _waiting.append((here, delivery))
    else:
        _invoke_target(*delivery)


def _set_late(regions: list[str]) -> None:
    impaired.clear()
    impaired.update(Scope(Scope.current().account, region) for region in regions)
    arrived = [waiting for waiting in _waiting if waiting[0] not in impaired]
    _waiting[:] = [waiting for waiting in _waiting if waiting[0] in impaired]
    for scope, delivery in arrived:
        with scope.entered():
            eventbridge._invoke_target(*delivery)


def _replicate(table: dict[str, Any], kind: str, old: _Item | None, new: _Item | None) -> None:
    if not _lagging:
        _replicate_write(table, kind, old, new)
    elif dynamodb._replica_group(table):
        item = new or old or {}
        key = (table["TableName"], *(str(item.get(table[name])) for name in ("pk_name", "sk_name")))
        _writes[key] = _Write(Scope.current(), table, kind, old, new)


def _set_lagging(lagging: bool) -> None:
    global _lagging  # noqa: PLW0603 - the engine has one switch, as it has one MiniStack
    _lagging = lagging
    if not lagging:
        for scope, table, kind, old, new in _writes.values():
            with scope.entered():
                if table["TableName"] in dynamodb._tables:
                    _replicate_write(table, kind, old, new)
        _writes.clear()


def _switch(body: bytes) -> dict[str, Any]:
    wanted: dict[str, Any] = json.loads(body)
    if "late" in wanted:
        _set_late(wanted["late"])
    if "lagging" in wanted:
        _set_lagging(wanted["lagging"])
    return wanted


def apply(_settings: Settings) -> None:
    """Let deliveries wait and replicas lag."""
    eventbridge._invoke_target = _deliver
    dynamodb._replicate_write = _replicate
    control.route("outages", _switch)
