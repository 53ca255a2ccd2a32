"""The real stores over simulated servers: DynamoDB as a dictionary, fakeredis with its real Lua, and memory."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Protocol

import fakeredis
import valkey.exceptions

from idempotency import DynamoDBStore, MemoryStore, Update
from idempotency.effects import Effect
from idempotency.errors import EffectsRejectedError, StoreRefusedError, StoreUnavailableError
from idempotency.record import Record
from idempotency.stores import Store
from idempotency.stores.dynamodb import record_of
from idempotency.stores.transport import NoAnswerError, ServiceError
from idempotency.stores.valkey import ValkeyStore
from tests.simulation.engine import EPOCH_MS, Simulation

LONGEST_TRY_S: Final = 1.5
_TOKEN_LASTS_MS: Final = 600_000
_TTL_IS_LATE_S: Final = 172_800

type Item = dict[str, dict[str, Any]]


class Network(Protocol):
    """Carries requests, or does not."""

    def request[T](
        self,
        what: str,
        key: str,
        perform: Callable[[], T],
        *,
        lost: Callable[[str], Exception],
        refuse: Callable[[str], Exception | None],
    ) -> T:
        """Have ``perform`` happen once, unless a fault has it otherwise."""
        ...


class Backend(Protocol):
    """A store, and what the simulation must know of its server."""

    store: Store

    def records(self) -> dict[str, Record]:
        """Return every record."""
        ...

    def effects(self) -> dict[str, int]:
        """Return how often the effect on each order took place."""
        ...


def open_backend(kind: str, simulation: Simulation, network: Network) -> Backend:
    """Open a store for all machines: its clock is that of the machine that asks."""
    return {"dynamodb": DynamoDB, "valkey": Valkey, "memory": Memory}[kind](simulation, network)


# ── DynamoDB ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class DynamoDB:
    """Two tables, with the part of DynamoDB that the layer and the handlers use."""

    longest_try_s = LONGEST_TRY_S

    def __init__(self, simulation: Simulation, network: Network) -> None:
        self._simulation = simulation
        self._network = network
        self._tables: dict[str, dict[str, Item]] = {"Records": {}, "Orders": {}}
        self._tokens: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self.store: Store = DynamoDBStore(
            "Records", transport=self, clock=simulation.clock, sleep=simulation.sleep, jitter=simulation.roll
        )

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request: the layer's `Transport`."""
        first = request["TransactItems"][0]["Put"] if operation == "TransactWriteItems" else request
        (key,) = (first.get("Item") or first["Key"])["idempotencyKey"].values()
        return self._network.request(
            operation,
            key,
            lambda: self._take(operation, request),
            lost=NoAnswerError,
            refuse=lambda kind: _refusal(kind, operation),
        )

    def records(self) -> dict[str, Record]:
        """Return every record."""
        return {key: record_of(item) for key, item in self._tables["Records"].items()}

    def effects(self) -> dict[str, int]:
        """Return how often the effect on each order took place."""
        return {key: int(item["charges"]["N"]) for key, item in self._tables["Orders"].items()}

    def _take(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if operation == "GetItem":
            item = self._find(request)
            return {"Item": item} if item else {}
        if operation == "PutItem":
            found = self._find(request)
            if not _holds(request, found):
                body = {"Item": found} if found else {}
                raise ServiceError("ConditionalCheckFailedException", 400, "The conditional request failed", body)
            self._write(request)
            return {}
        return self._transact(request)

    def _transact(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        since_ms, before = self._tokens.get(request["ClientRequestToken"], (-math.inf, None))
        if self._simulation.now_ms - since_ms < _TOKEN_LASTS_MS:
            if before != request:
                raise ServiceError("IdempotentParameterMismatchException", 400, "another request has this token", {})
            return {}
        actions = [next(iter(entry.values())) for entry in request["TransactItems"]]
        reasons: list[dict[str, Any]] = []
        for action in actions:
            found = self._find(action)
            reason = {"Code": "None"} if _holds(action, found) else {"Code": "ConditionalCheckFailed"}
            reasons.append(reason | ({"Item": found} if found and reason["Code"] != "None" else {}))
        if any(reason["Code"] != "None" for reason in reasons):
            raise _cancelled(reasons)
        for action in actions:
            self._write(action)
        self._tokens[request["ClientRequestToken"]] = (self._simulation.now_ms, request)
        return {}

    def _find(self, request: Mapping[str, Any]) -> Item | None:
        """The item under a request's key; TTL deletes it up to two days after its time."""
        table = self._tables[request["TableName"]]
        key = _key_of(request)
        found = table.get(key)
        if found is not None and "expiryTimestamp" in found:
            late_s = (EPOCH_MS + self._simulation.now_ms) / 1000 - int(found["expiryTimestamp"]["N"])
            if late_s > 0 and late_s > _TTL_IS_LATE_S * self._simulation.roll(f"ttl {key}"):
                del table[key]
                return None
        return found

    def _write(self, request: Mapping[str, Any]) -> None:
        table = self._tables[request["TableName"]]
        if "Item" in request:
            table[_key_of(request)] = dict(request["Item"])
        else:
            assert request["UpdateExpression"] == "ADD charges :one"
            charges = int(table.get(_key_of(request), {}).get("charges", {"N": "0"})["N"])
            table[_key_of(request)] = {"charges": {"N": str(charges + 1)}}


def _key_of(request: Mapping[str, Any]) -> str:
    item = request.get("Item") or request["Key"]
    key: str = (item.get("idempotencyKey") or item["id"])["S"]
    return key


def _holds(request: Mapping[str, Any], found: Item | None) -> bool:
    """Judge a condition."""
    condition = request.get("ConditionExpression")
    if condition is None:
        return True
    names = request.get("ExpressionAttributeNames", {})
    values = request.get("ExpressionAttributeValues", {})

    def value(name: str) -> Any:
        attribute = values.get(name) or (found or {}).get(names.get(name, name))
        if attribute is None:
            return math.nan  # equal to nothing, and neither smaller nor larger
        ((kind, content),) = attribute.items()
        return int(content) if kind == "N" else content

    return bool(eval(_compiled(condition), {"value": value, "nan": math.isnan}))  # noqa: S307 - the layer's own text


@lru_cache
def _compiled(condition: str) -> Any:
    """Translate a condition to Python: what it has are attribute_exists, comparisons, AND, OR, NOT and parentheses."""
    known = {"AND": " and ", "OR": " or ", "NOT": " not ", "=": "==", "<>": "!="}
    text = ""
    for word in re.findall(r"attribute_(?:not_)?exists|[#:]?\w+|<=|>=|<>|[=<>()]", condition):
        if word.startswith("attribute_"):
            text += "not has" if "not" in word else "has"
        elif word[0] in "#:" or word[0].isalpha():
            text += known.get(word) or f"value({word!r})"
        else:
            text += known.get(word, word)
    return compile(text.replace("has(", "(lambda found: found == found)("), condition, "eval")


def _cancelled(reasons: Sequence[Mapping[str, Any]] | None) -> ServiceError:
    body = {} if reasons is None else {"CancellationReasons": reasons}
    return ServiceError("TransactionCanceledException", 400, "Transaction cancelled", body)


def _refusal(kind: str, operation: str) -> Exception | None:
    transaction = operation == "TransactWriteItems"
    if kind == "throttled":
        return ServiceError("ThrottlingException", 400, "Rate exceeded", {})
    if kind == "denied":
        return ServiceError("AccessDeniedException", 400, "is not authorized to perform", {})
    if kind == "conflict":
        return _cancelled([{"Code": "None"}, {"Code": "TransactionConflict"}]) if transaction else None
    return _cancelled(None) if kind == "no reasons" and transaction else None


# ── Valkey ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Client(fakeredis.FakeValkey):
    """A client whose scripts are carried by the simulated network."""

    network: Network

    def evalsha(self, sha: str, numkeys: int, *arguments: Any) -> Any:
        """Say that the server has forgotten its scripts, so that each request carries its own."""
        raise valkey.exceptions.NoScriptError

    def eval(self, script: str, numkeys: int, *arguments: Any) -> Any:
        """Send a script."""
        return self.network.request(
            "script",
            arguments[0],
            partial(super().eval, script, numkeys, *arguments),
            lost=valkey.exceptions.TimeoutError,
            refuse=lambda kind: valkey.exceptions.ResponseError(kind) if kind in ("throttled", "denied") else None,
        )


class Valkey:
    """fakeredis, whose clock is the simulation's."""

    def __init__(self, simulation: Simulation, network: Network) -> None:
        self._client = _Client(server=fakeredis.FakeServer(), socket_timeout=0.8)
        self._client.network = network
        self.store: Store = ValkeyStore(
            self._client, prefix="", clock=simulation.clock, sleep=simulation.sleep, jitter=simulation.roll
        )

    def records(self) -> dict[str, Record]:
        """Return every record."""
        keys: Any = self._client.keys()
        found = ((key, self.store.read(key)) for key in sorted(key.decode() for key in keys))
        return {key: record for key, record in found if record is not None}

    def effects(self) -> dict[str, int]:
        """Return nothing: there are no transactions."""
        return {}


# ── Memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Memory:
    """A MemoryStore that is reached over the simulated network, as if it were a server."""

    transactional = True
    effect_writer = None

    def __init__(self, simulation: Simulation, network: Network) -> None:
        self._network = network
        self._charges: dict[str, int] = {}
        self._store = MemoryStore(apply=self._apply, clock=lambda: int(EPOCH_MS + simulation.now_ms))
        self.store: Store = self

    def insert(self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None) -> Record:
        """Send an insert."""
        return self._send("insert", record.key, lambda: self._store.insert(record, effects))

    def swap(
        self, seen: Record, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Send a swap."""
        return self._send("swap", record.key, lambda: self._store.swap(seen, record, effects))

    def advance(self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None) -> Record | None:
        """Send an advance."""
        return self._send("advance", record.key, lambda: self._store.advance(record, effects))

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Send a read."""
        return self._send("read", key, lambda: self._store.read(key))

    def _send[T](self, what: str, key: str, perform: Callable[[], T]) -> T:
        def refuse(kind: str) -> Exception | None:
            return StoreRefusedError(kind) if kind in ("throttled", "denied") else None

        return self._network.request(what, key, perform, lost=StoreUnavailableError, refuse=refuse)

    def _apply(self, effects: Sequence[Effect]) -> None:
        orders = [str(effect.key["id"]) for effect in effects if isinstance(effect, Update)]
        if len(orders) < len(effects):
            raise EffectsRejectedError("that is no effect")
        for order in orders:
            self._charges[order] = self._charges.get(order, 0) + 1

    def records(self) -> dict[str, Record]:
        """Return every record."""
        return dict(self._store._records)  # noqa: SLF001 - it can only be asked for one key

    def effects(self) -> dict[str, int]:
        """Return how often the effect on each order took place."""
        return dict(self._charges)
