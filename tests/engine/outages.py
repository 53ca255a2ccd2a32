"""Outages of regions: a plug-in of the engine, for tests of a failover (`LocalAws("--plug-in=tests.engine.outages")`).

``POST /_engine/outages`` with ``{"late": […], "lagging": …}``; a switch that is left out stays as it is.

- ``late`` names the regions whose EventBridge accepts events and hands none of them over. Their pipes stand still, and
  endpoints route elsewhere. What waited arrives when the region has recovered.
- ``lagging`` says whether replicas of global tables see nothing of what is written in other regions. Afterwards the
  copies are made in the order of the writes; of two writes to one item the later one wins. MiniStack itself copies
  each write at once.

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
    """A write that its table's other replicas have not seen."""

    number: int
    scope: Scope
    table: str
    kind: str
    old: _Item | None
    new: _Item | None


_invoke_target, _replicate_write = eventbridge._invoke_target, dynamodb._replicate_write
_waiting: list[tuple[Scope, tuple[Any, ...]]] = []
_writes: list[_Write] = []
_latest: dict[tuple[str, str, Any, Any], int] = {}
"""By region, table and item, the number of the latest of the writes that were made there."""
_lagging = False


def _deliver(*delivery: Any) -> None:
    here = Scope.current()
    if here in impaired:
        _waiting.append((here, delivery))
    else:
        _invoke_target(*delivery)


def _set_late(regions: list[str]) -> None:
    here = Scope.current()
    impaired.clear()
    impaired.update(Scope(here.account, region) for region in regions)
    arrived = [waiting for waiting in _waiting if waiting[0] not in impaired]
    _waiting[:] = [waiting for waiting in _waiting if waiting[0] in impaired]
    for scope, delivery in arrived:
        scope.enter()
        eventbridge._invoke_target(*delivery)
    here.enter()


def _replicate(table: dict[str, Any], kind: str, old: _Item | None, new: _Item | None) -> None:
    if not _lagging:
        _replicate_write(table, kind, old, new)
    elif dynamodb._replica_group(table):
        write = _Write(len(_writes), Scope.current(), table["TableName"], kind, old, new)
        _writes.append(write)
        _latest[_item_of(table, write, write.scope.region)] = write.number


def _set_lagging(lagging: bool) -> None:
    global _lagging  # noqa: PLW0603 - the engine has one switch, as it has one MiniStack
    _lagging = lagging
    if lagging:
        return
    here = Scope.current()
    for write in _writes:
        write.scope.enter()
        if table := dynamodb._tables.get(write.table):
            regions = dynamodb._replica_group(table)
            behind = [each for each in regions if _latest.get(_item_of(table, write, each), -1) <= write.number]
            _replicate_write({**table, "_global_regions": behind}, write.kind, write.old, write.new)
    _writes.clear()
    _latest.clear()
    here.enter()


def _item_of(table: dict[str, Any], write: _Write, region: str) -> tuple[str, str, Any, Any]:
    item = write.new if write.new is not None else write.old or {}
    keys = [
        dynamodb._extract_key_val(item.get(name)) if name else None for name in (table["pk_name"], table["sk_name"])
    ]
    return region, write.table, *keys  # type: ignore[return-value] # two keys, as MiniStack has them


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
