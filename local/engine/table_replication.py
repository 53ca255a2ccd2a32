"""Replication of global tables that can be held up.

AWS: a write is seen by conditions and reads in its own region at once, and in another one about a second later, item by
item and in no order; of two writes to one item the later one wins. In an outage it can take longer.

Stock MiniStack: has a table of its own for each replica and copies each write at once, so that none is ever behind.

Plugs into `dynamodb._replicate_write`. `hold` keeps copies back until `release`, which makes them in the order in which
they were written; a simulation of a lag that has no length of its own.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from ministack.services import dynamodb

from local.engine.scope import Scope

type _Item = dict[str, Any]
type _Key = tuple[str, str, Any, Any]

_stock_replicate = dynamodb._replicate_write
_stock_reset = dynamodb.reset


@dataclass(frozen=True, slots=True)
class _Write:
    """A write that its table's other replicas have not seen."""

    number: int
    scope: Scope
    table: str
    kind: str
    old: _Item | None
    new: _Item | None

    @property
    def item(self) -> _Item:
        """The item, for its key."""
        return self.new if self.new is not None else self.old or {}


class _Replication:
    """What is on its way between replicas."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: list[_Write] | None = None
        self._latest: dict[_Key, int] = {}
        """By region and item, the number of the write that it shows, of those since replication is held."""

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]

    def hold(self) -> None:
        if self._held is None:
            self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for write in held:
            write.scope.enter()
            self._copy(write)
        self._latest.clear()

    def replicate(self, table: dict[str, Any], kind: str, old: _Item | None, new: _Item | None) -> None:
        if self._held is None:
            _stock_replicate(table, kind, old, new)
        elif dynamodb._replica_group(table):
            write = _Write(next(self._numbers), Scope.current(), table["TableName"], kind, old, new)
            self._held.append(write)
            self._latest[self._key(table, write, write.scope.region)] = write.number

    def _copy(self, write: _Write) -> None:
        """Make a write in the other replicas, but for those whose own write of the item is the later one."""
        table = dynamodb._tables.get(write.table)
        if table is None:
            return
        group = dynamodb._replica_group(table)
        behind = [region for region in group if self._latest.get(self._key(table, write, region), -1) <= write.number]
        _stock_replicate({**table, "_global_regions": behind}, write.kind, write.old, write.new)

    def _key(self, table: dict[str, Any], write: _Write, region: str) -> _Key:
        names = [table["pk_name"], table["sk_name"]]
        keys = [dynamodb._extract_key_val(write.item.get(name)) if name else None for name in names]
        return region, write.table, keys[0], keys[1]


_replication = _Replication()


def hold(held: bool) -> None:
    """Keep copies back from now on, or make those that were kept back and all later ones at once."""
    scope = Scope.current()
    if held:
        _replication.hold()
    else:
        _replication.release()
        scope.enter()


def apply() -> None:
    """Let replication be held."""

    def reset() -> None:
        _replication.reset()
        _stock_reset()

    dynamodb._replicate_write = _replication.replicate
    dynamodb.reset = reset
