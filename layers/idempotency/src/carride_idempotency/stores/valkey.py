"""Records in Valkey or Redis: one hash for each key, one Lua script for each step.

The server runs a script atomically and uses its own clock. So neither a race nor a difference
between two clients' clocks can let both hold one key. Clients use their own clock: a record is
stored with its writer's times, and with ``shift``, by which the server's clock was ahead when the
write arrived::

    writer's clock   ──┬───────────────────┬────▶        stored: lease_ms, shift = server - writer
                     sends              lease_ms
    server's clock   ────┬───────────────────┬──▶        holds:  lease_ms + shift
                      arrives
    reader's clock   ──────────┬─────────────────┬▶      shown:  lease_ms + shift - server + reader
                           has the answer

The network delay of each direction makes a lease seem longer. Nothing makes it seem shorter.
"""

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.effects import Effect
from carride_idempotency.errors import (
    ConfigurationError,
    StoreRefusedError,
    StoreUnavailableError,
)
from carride_idempotency.record import (
    IN_PROGRESS,
    Record,
    compared_where_damaged,
    damaged,
    is_note_of_calls,
    status_of,
    whole_number,
)
from carride_idempotency.stores.retries import Retries, Verdict

# ReadOnlyError: the server has become a replica, and the next connection may reach the new primary.
_PASSING: Final = frozenset(
    {"BusyLoadingError", "ClusterDownError", "ReadOnlyError", "TryAgainError"}
)
_REFUSING: Final = frozenset({"AuthenticationError", "AuthorizationError", "ResponseError"})


_ANYTHING: Final = ""
_NEVER: Final = ""


def _exactly(value: object) -> str:
    """Return what a script compares a stored field with; for None it must be absent."""
    return "=" if value is None else f"={value}"


class _Expected(NamedTuple):
    """What a step expects of the stored record, in a script's words.

    All fields but ``latest_lease_ms`` are made by `_exactly`, unless anything will do.
    """

    status: str = _ANYTHING
    owner: str = _ANYTHING
    attempt: str = _ANYTHING
    lease_ms: str = _ANYTHING
    shift_ms: str = _ANYTHING
    latest_lease_ms: str = _ANYTHING
    """The latest end of the stored lease, by the owner's clock."""
    externals: str = _ANYTHING
    """The external calls of a record whose lease may end later than that."""


class _Script:
    """A Lua script, and the hash that names it on a server.

    ``ARGV`` begins with two times by the caller's clock: now, and when the key expires, or
    `_NEVER`. The fields of an `_Expected` follow, then names and values to write. The answer is
    the server's time, the key and, if the write was refused, the stored fields.
    """

    def __init__(self, step: str) -> None:
        self.text = _TIME + step
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_TIME: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_READ: Final = _Script("return {now, KEYS[1], redis.call('HGETALL', KEYS[1])}")
_WRITE: Final = """
local ANYTHING = ''
local NEVER = ''
local sent = ARGV[1]
local expires = ARGV[2]
local expected = {
  status = ARGV[3],
  owner = ARGV[4],
  attempt = ARGV[5],
  lease_ms = ARGV[6],
  shift = ARGV[7],
}
local latest_lease = ARGV[8]
local externals = ARGV[9]
local FIRST_FIELD = 10

local function stored(field)
  return redis.call('HGET', KEYS[1], field)
end
local function is(field, wanted)
  local value = stored(field)
  return wanted == '=' .. (value or '')
end
local function is_as_expected()
  for field, wanted in pairs(expected) do
    if wanted ~= ANYTHING and not is(field, wanted) then
      return false
    end
  end
  return true
end
local function ends_in_time()
  if latest_lease == ANYTHING then
    return true
  end
  local held = stored('lease_ms')
  if not held then
    return false
  end
  if tonumber(held) <= tonumber(latest_lease) then -- by the owner's clock
    return true
  end
  -- By the server's clock, if the owner's was set back. A heartbeat from before an intent may only
  -- seem to end later, so the external calls must be the same.
  return held + stored('shift') <= latest_lease + now - sent and is('externals', externals)
end

if not (%s) then
  return {now, KEYS[1], redis.call('HGETALL', KEYS[1])}
end
local shift = now - sent
-- A full server refuses a script whose first write takes memory: it refuses new keys, and lets its
-- claims end.
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'shift', string.format('%%.0f', shift), unpack(ARGV, FIRST_FIELD))
if expires ~= NEVER then
  redis.call('PEXPIREAT', KEYS[1], string.format('%%.0f', expires + shift))
end
return {now, KEYS[1]}
"""
_PUT: Final = _Script(_WRITE % "redis.call('EXISTS', KEYS[1]) == 0")
_REPLACE: Final = _Script(_WRITE % "is_as_expected() and ends_in_time()")


class ValkeyStore:
    """Idempotency records in Valkey or Redis (6.2 or later), without effects.

    An operation completes *once without a failover, at least once across one*: replication is
    asynchronous. The server must not evict keys: see `check_eviction`. A key expires when its
    window ends; a quarantined record does not expire.

    Args:
        client: a client of valkey-py or redis-py, with ``socket_timeout=`` and without retries of
            its own (``retry=Retry(NoBackoff(), 0)``, for a cluster
            ``cluster_error_retry_attempts=0``): the store retries, because it knows the time left.
            Behind an endpoint that a failover moves to another server, give it
            ``retry_on_error=[ReadOnlyError]``: it then drops the connection to a server that has
            become a replica.
        prefix: goes before every key, because servers are often shared.
        checks_eviction: every step calls `check_eviction` until the check has passed once.
        clock, sleep, jitter: epoch milliseconds, waiting in seconds, a number from 0 to 1 for each
            pause.

    Raises:
        ConfigurationError: the client has no timeout, retries by itself, or is of another package.
    """

    transactional = False

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "idempotency:",
        checks_eviction: bool = False,
        clock: Clock = epoch_ms,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if not hasattr(client, "execute_command"):
            raise ConfigurationError(
                f"ValkeyStore takes a client, not a {type(client).__name__}: give one of valkey-py "
                'or redis-py, or write open_store("valkey://<host>")'
            )
        self._client = client
        self._prefix = prefix
        self._checks_eviction = checks_eviction
        self._clock = clock
        self._retries = Retries(clock, sleep, jitter)
        self._longest_try_s = _longest_try_s(client)
        if not _names(type(client)):
            raise ConfigurationError(
                f"{type(client).__qualname__} is not a client: give one of valkey-py or redis-py"
            )

    def put_if_absent(
        self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record:
        """Write ``record`` if its key is absent: the first claim."""
        found = self._write(_PUT, record, effects, _Expected(), until_ms)
        assert found is not None  # noqa: S101 - what refuses a first claim is a record
        return found

    def compare_and_swap(
        self,
        seen: Record,
        record: Record,
        effects: Sequence[Effect] = (),
        *,
        until_ms: int | None = None,
    ) -> Record | None:
        """Write ``record`` if the record under its key is still as ``seen``."""
        return self._write(_REPLACE, record, effects, _as_seen(seen), until_ms)

    def update_if_owner(
        self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if its owner still holds the key, with no later lease."""
        expected = _Expected(
            status=_exactly(IN_PROGRESS),
            owner=_exactly(record.owner),
            latest_lease_ms=_ANYTHING if record.lease_ms is None else str(record.lease_ms),
            externals=_exactly(record.externals),
        )
        return self._write(_REPLACE, record, effects, expected, until_ms)

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Read the record under ``key``, from the primary."""
        server_ms, fields = self._run(_READ, key, (), until_ms)
        return _record_of(key, fields, server_ms, self._clock())

    def check_eviction(self, *, until_ms: int | None = None) -> None:
        """Check that the server does not evict keys, which would forget claims.

        A server that reports no policy passes. The store sends ``INFO``, because managed services
        forbid ``CONFIG``.

        Raises:
            ConfigurationError: its ``maxmemory-policy`` is another than ``noeviction``.
            StoreUnavailableError, StoreRefusedError: it gave no answer.
        """
        try:
            report = self._send("INFO", lambda: self._client.info("memory"), until_ms)
        except StoreRefusedError as refused:
            if "ResponseError" in _names(type(refused.__cause__)):
                return
            raise
        is_of_a_cluster = all(isinstance(part, dict) for part in report.values())
        reports = report.values() if is_of_a_cluster else [report]
        for each in reports:
            policy = each.get("maxmemory_policy", "noeviction")
            if policy != "noeviction":
                raise ConfigurationError(
                    f"maxmemory-policy is {policy}: short of memory, the server would forget "
                    "records, and operations would run twice; set it to noeviction"
                )

    def _write(
        self,
        script: _Script,
        record: Record,
        effects: Sequence[Effect],
        expected: _Expected,
        until_ms: int | None,
    ) -> Record | None:
        """Return what is now under the key: ``record``, or what refused it."""
        if effects:
            raise ConfigurationError(
                "ValkeyStore has no transactions and takes no effects: use DynamoDBStore"
            )
        expires = _NEVER if record.expiry is None else str(record.expiry * 1000)
        arguments = (expires, *expected, *_fields_of(record))
        server_ms, *refused = self._run(script, record.key, arguments, until_ms)
        if not refused:
            return record
        return _record_of(record.key, refused[0], server_ms, self._clock())

    def _run(
        self, script: _Script, key: str, arguments: tuple[str, ...], until_ms: int | None
    ) -> Any:
        """Run a script, and return its answer without the key.

        A step may be sent again when its answer was lost: its owner recognises its own record.
        """
        if self._checks_eviction:
            self.check_eviction(until_ms=until_ms)
            self._checks_eviction = False
        server_ms, answered, *refused = self._send(
            f"a step on {key}", lambda: self._evaluate(script, key, arguments), until_ms
        )
        if _text(answered) != self._prefix + key:
            raise StoreUnavailableError(f"the answer is not about {key}: it is another request's")
        return server_ms, *refused

    def _send(self, what: str, request: Callable[[], Any], until_ms: int | None) -> Any:
        return self._retries.send(
            what, request, _judge, longest_try_s=self._longest_try_s, until_ms=until_ms
        )

    def _evaluate(self, script: _Script, key: str, arguments: tuple[str, ...]) -> Any:
        arguments = (self._prefix + key, str(self._clock()), *arguments)
        try:
            return self._client.evalsha(script.sha, 1, *arguments)
        except Exception as error:
            if "NoScriptError" not in _names(type(error)):
                raise
        return self._client.eval(script.text, 1, *arguments)


def _names(kind: type) -> set[str]:
    """Return the names of a class and its bases, as far as valkey-py or redis-py defines them.

    Neither package is a dependency, so classes are told by their names.
    """
    names = set()
    for each in kind.__mro__:
        package, _, _ = each.__module__.partition(".")
        if package in {"valkey", "redis"}:
            names.add(each.__name__)
    return names


def _judge(error: Exception) -> Verdict | None:
    """Return what an error says about a step; None if it is not an error of the client.

    An error that the server answered is definite. After any other, the step may have taken place.
    """
    names = _names(type(error))
    if names & _PASSING:
        return Verdict.PASSING
    if names & _REFUSING:
        return Verdict.REFUSED
    if names:
        return Verdict.UNANSWERED
    return None


def _longest_try_s(client: Any) -> float:
    """Return how long one try of a step can take; refuse a client without a limit of its own."""
    settings = client.get_connection_kwargs()
    timeout_s = settings.get("socket_timeout")
    if timeout_s is None:
        raise ConfigurationError(
            "give the client a socket_timeout=: without one, a hanging server blocks its caller"
        )
    if _retries_by_itself(client, settings):
        raise ConfigurationError(
            "give the client retry=Retry(NoBackoff(), 0), and a cluster's "
            "cluster_error_retry_attempts=0: the store retries, because it knows the time left"
        )
    connect_timeout_s = settings.get("socket_connect_timeout") or timeout_s
    request_s = float(connect_timeout_s + timeout_s)
    if hasattr(client, "get_nodes"):
        # A cluster's client may also ask for its nodes and its commands, each in its own request.
        return 3 * request_s
    return request_s


def _retries_by_itself(client: Any, settings: Mapping[str, Any]) -> bool:
    if getattr(client, "cluster_error_retry_attempts", 0):
        return True
    return bool(_retries(settings.get("retry")) or _retries(getattr(client, "retry", None)))


def _retries(retry: Any) -> int:
    """Return how often a retry object of valkey-py or redis-py tries again.

    The object of redis-py has a method for it, that of valkey-py only an attribute.
    """
    if hasattr(retry, "get_retries"):
        return int(retry.get_retries())
    return int(getattr(retry, "_retries", 0))


def _as_seen(seen: Record) -> _Expected:
    """Return what is expected of a record that is still as it was seen."""
    compared = compared_where_damaged(seen)
    if compared is not None:
        return _Expected(*map(_exactly, compared))
    stored = _stored_lease(seen)
    return _Expected(
        status=_exactly(seen.status),
        owner=_exactly(seen.owner),
        attempt=_exactly(seen.attempt),
        lease_ms=_exactly(stored.lease_ms),
        shift_ms=_ANYTHING if stored.shift_ms is None else _exactly(stored.shift_ms),
    )


class _StoredLease(NamedTuple):
    """A lease as it is stored."""

    lease_ms: int | None
    """Its end, by its writer's clock."""
    shift_ms: int | None
    """By how much the server's clock was ahead of the writer's; None if that is not known here."""


def _stored_lease(seen: Record) -> _StoredLease:
    """Return the lease of a record as it is stored.

    A record that was read has it in its revision. One that was written here has no revision. A copy
    with another lease has its original's: only the owner can have changed the lease since.
    """
    if seen.revision is not None:
        shown_ms, lease_ms, shift_ms = map(int, seen.revision.split())
        if shown_ms == seen.lease_ms:
            return _StoredLease(lease_ms, shift_ms)
    return _StoredLease(seen.lease_ms, shift_ms=None)


_TEXTS: Final = (
    "status",
    "owner",
    "fingerprint",
    "delivery",
    "region",
    "result",
    "error",
    "event",
    "externals",
)
_NUMBERS: Final = ("attempt", "lease_ms", "expiry", "created_ms", "updated_ms", "retry_ms")
_COMPARED: Final = ("status", "owner", "attempt", "lease_ms", "shift")
"""The fields of an `_Expected` that a damaged record is compared by."""
_ABSENT: Final = {"status": "", "attempt": 0, "created_ms": 0, "updated_ms": 0}
"""What a field is read as where it is absent; the others are None."""


def _fields_of(record: Record) -> list[str]:
    """Return the names and values to store, one after the other."""
    fields: list[str] = []
    for name in (*_TEXTS, *_NUMBERS):
        value = getattr(record, name)
        if value is not None:
            fields += (name, str(value))
    if record.dead_lettered:
        fields += ("dead_lettered", "1")
    return fields


def _record_of(
    key: str, flat: Sequence[bytes | str], server_ms: int, reader_ms: int
) -> Record | None:
    """Return the stored names and values as a record in the reader's clock; None if there are none.

    A number that cannot be read makes the record corrupt.
    """
    if not flat:
        return None
    texts = [*map(_text, flat)]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    values: dict[str, Any] = {name: fields.get(name, _ABSENT.get(name)) for name in _TEXTS}
    values["status"] = status_of(values["status"])
    for name in _NUMBERS:
        number = whole_number(fields.get(name))
        values[name] = _ABSENT.get(name) if number is None else number
    stored_lease_ms = values["lease_ms"]
    shift_ms = _shift_in(fields) or 0
    later_ms = shift_ms - server_ms + reader_ms
    for name in ("lease_ms", "retry_ms"):
        if values[name] is not None:
            values[name] += later_ms
    if values["expiry"] is not None:
        values["expiry"] = _seconds_rounded_up(values["expiry"] * 1000 + later_ms)
    revision = None
    if stored_lease_ms is not None:
        revision = f"{values['lease_ms']} {stored_lease_ms} {shift_ms}"
    record = Record(
        key, dead_lettered=fields.get("dead_lettered") == "1", revision=revision, **values
    )
    damage = _damage_in(fields)
    if not damage:
        return record
    return damaged(record, damage, [fields.get(name) for name in _COMPARED])


def _damage_in(fields: Mapping[str, str]) -> dict[str, object]:
    """Return the fields that cannot be read. A hash without an attempt is not a record."""
    damage: dict[str, object] = {
        name: fields[name]
        for name in _NUMBERS
        if name in fields and whole_number(fields[name]) is None
    }
    if "attempt" not in fields:
        damage["attempt"] = "which is absent"
    if _shift_in(fields) is None:
        damage["shift"] = fields["shift"]
    if not is_note_of_calls(fields.get("externals")):
        damage["externals"] = fields["externals"]
    return damage


def _shift_in(fields: Mapping[str, str]) -> int | None:
    """Return by how much the server's clock was ahead; None if that cannot be read."""
    text = fields.get("shift", "0")
    magnitude = whole_number(text.removeprefix("-"))
    if magnitude is None:
        return None
    return -magnitude if text.startswith("-") else magnitude


def _text(part: bytes | str) -> str:
    return part.decode() if isinstance(part, bytes) else part


def _seconds_rounded_up(time_ms: int) -> int:
    return -(-time_ms // 1000)
