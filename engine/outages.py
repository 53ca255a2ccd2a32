"""Outages and delays: a plug-in of the engine for tests.

``POST /_engine/outages`` with ``{"late": […], "lagging": …}`` sets these switches.

- ``late`` names the regions whose EventBridge accepts events and delivers none of them. Their pipes
  stand still, and endpoints route elsewhere. The waiting events are delivered when the region has
  recovered.
- ``lagging``: replicas of global tables see no writes of other regions. Afterwards each item's
  latest write is copied. MiniStack itself copies each write at once.
"""

from typing import Any

from ministack.services import dynamodb, eventbridge

from engine import control
from engine.scope import Scope, impaired
from engine.settings import Settings

type _Item = dict[str, Any]

_invoke_target = eventbridge._invoke_target
_replicate_write = dynamodb._replicate_write
_waiting: list[tuple[Scope, tuple[Any, ...]]] = []
_writes: dict[tuple[Any, ...], tuple[Scope, tuple[Any, ...]]] = {}
"""The latest write of each item, by table and key."""
_switches: dict[str, Any] = {"late": [], "lagging": False}


def _deliver(*delivery: Any) -> None:
    here = Scope.current()
    if here in impaired:
        _waiting.append((here, delivery))
    else:
        _invoke_target(*delivery)


def _replicate(table: dict[str, Any], kind: str, old: _Item | None, new: _Item | None) -> None:
    if not _switches["lagging"]:
        _replicate_write(table, kind, old, new)
    elif dynamodb._replica_group(table):
        item = new or old or {}
        partition_key = str(item.get(table["pk_name"]))
        sort_key = str(item.get(table["sk_name"]))
        key = (table["TableName"], partition_key, sort_key)
        _writes[key] = (Scope.current(), (table, kind, old, new))


def _switch(wanted: dict[str, Any]) -> dict[str, Any]:
    _switches.update(wanted)
    impaired.clear()
    impaired.update(Scope(Scope.current().account, region) for region in _switches["late"])
    waiting = list(_waiting)
    _waiting.clear()
    for scope, delivery in waiting:
        with scope.entered():
            _deliver(*delivery)
    if not _switches["lagging"]:
        for scope, write in _writes.values():
            with scope.entered():
                if write[0]["TableName"] in dynamodb._tables:
                    _replicate_write(*write)
        _writes.clear()
    return wanted


def apply(_settings: Settings) -> None:
    """Let deliveries wait and replicas lag."""
    eventbridge._invoke_target = _deliver
    dynamodb._replicate_write = _replicate
    control.route("outages", _switch)
