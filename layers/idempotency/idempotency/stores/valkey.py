"""Records in Valkey or Redis: one hash a key, one Lua script a step.

The server runs a script as one atomic step and knows the time, so that neither a race nor the difference between two
clients' clocks can let two of them hold one key. Callers speak in their own clock; a record is stored as its writer put
it, beside ``shift``, by which the server's clock was ahead when the write arrived::

    writer's clock   ──┬───────────────────┬────▶        stored: lease_ms as written, shift = server - writer
                     sends              lease_ms
    server's clock   ────┬───────────────────┬──▶        holds:  lease_ms + shift
                      arrives
    reader's clock   ──────────┬─────────────────┬▶      shown:  lease_ms + shift - server + reader
                           has the answer

Each way of the network makes a lease seem longer by its delay, and nothing makes it seem shorter.
"""

import hashlib
import importlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from idempotency.clock import Clock, epoch_ms
from idempotency.effects import Effect
from idempotency.errors import ConfigurationError, StoreRefusedError
from idempotency.record import IN_PROGRESS, Record
from idempotency.stores import EffectWriter
from idempotency.stores.retries import Retries, Verdict


class Client(Protocol):
    """The part of a client of valkey-py or redis-py that is used here; their cluster clients have it too."""

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script that the server knows."""
        ...

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script, and have the server know it from now on."""
        ...

    def info(self, section: str) -> Any:
        """Return what the server tells of itself."""
        ...

    def get_connection_kwargs(self) -> Any:
        """Return the settings of the client's connections."""
        ...


class _Script:
    """Lua, and the hash by which a server knows it.

    ``ARGV``: the caller's time; when the key expires by the caller's clock, or ''; the status, owner, attempt and lease
    that must be there, as '=value', or '' for none (to advance: the lease that the one there must not outlast, or '');
    the shift of that lease, or '' for any; the names and values of the fields to write. The answer is the server's time
    and, where that refuses the write, what is there.
    """

    def __init__(self, step: str) -> None:
        self.text = _TIME + step
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_TIME = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_READ = _Script("return {now, redis.call('HGETALL', KEYS[1])}")
_WRITE = """
local function is(field, expected)
  local value = redis.call('HGET', KEYS[1], field)
  return expected == (value and '=' .. value or '')
end
local function ends_by(lease) -- by the owner's clock, or by the server's where the owner's was set back
  local held = redis.call('HGET', KEYS[1], 'lease_ms')
  return held and (tonumber(held) <= tonumber(lease)
    or held + redis.call('HGET', KEYS[1], 'shift') <= lease + now - ARGV[1])
end
if not (%s) then
  return {now, redis.call('HGETALL', KEYS[1])}
end
local shift = now - ARGV[1]
-- A full server refuses the first write of a script if it is one that takes memory: so it refuses a new key, and lets
-- a claim that it has granted come to its end.
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'shift', string.format('%%.0f', shift), unpack(ARGV, 8))
if ARGV[2] ~= '' then
  redis.call('PEXPIREAT', KEYS[1], string.format('%%.0f', ARGV[2] + shift))
end
return {now}
"""
_INSERT = _Script(_WRITE % "redis.call('EXISTS', KEYS[1]) == 0")
_SWAP = _Script(
    _WRITE % "is('status', ARGV[3]) and is('owner', ARGV[4]) and is('attempt', ARGV[5]) and is('lease_ms', ARGV[6])"
    " and (ARGV[7] == '' or is('shift', ARGV[7]))"
)
_ADVANCE = _Script(_WRITE % "is('status', ARGV[3]) and is('owner', ARGV[4]) and (ARGV[6] == '' or ends_by(ARGV[6]))")


class _Found(NamedTuple):
    """What was in a write's way, or was read."""

    fields: Mapping[str, str]
    server_ms: int
    reader_ms: int


class ValkeyStore:
    """Idempotency records in Valkey or Redis (6.2 or later).

    Its guarantee is *once without failover, at least once across one*: replication is asynchronous, so that a replica
    which takes over may not have heard of the latest claims and completions. A durable service (MemoryDB) forgets
    nothing that it has acknowledged. Keys must not be evicted either: see `check_eviction`. Effects are not committed
    with the record but just before it, if there is an ``effect_writer``.

    A key expires when its window ends, never with its lease; that of a quarantined record does not expire.

    Args:
        client: a client of valkey-py or redis-py, with ``socket_timeout=`` set and without retries of its own
            (``retry=Retry(NoBackoff(), 0)``, for a cluster ``cluster_error_retry_attempts=0``), because only the store
            knows how much time is left, and an error after a hidden retry would not tell that the first try may have
            taken place. Give it ``retry_on_error=[ReadOnlyError]`` behind an endpoint that moves to another server in a
            failover: it then drops the connection to a server that has become a replica.
        prefix: put before every key, since a server is often shared.
        effect_writer: what commits effects just before the record that completes their operation. Left out, there can
            be no effects.
        checks_eviction: whether the first step calls `check_eviction`, and each one after it until the check passes.
        clock: epoch milliseconds: the clock of the consumer.
        sleep: waits between tries, in seconds.
        jitter: a number from 0 to 1 for each pause.

    Raises:
        ConfigurationError: the client can wait without end, or retries by itself.
    """

    transactional = False

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = "idempotency:",
        effect_writer: EffectWriter | None = None,
        checks_eviction: bool = False,
        clock: Clock = epoch_ms,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self.effect_writer = effect_writer
        self._checks_eviction = checks_eviction
        self._clock = clock
        self._retries = Retries(clock, sleep, jitter)
        self._longest_try_s = _longest_try_s(client)
        self._errors = _Errors(client)

    def put_if_absent(self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None) -> Record:
        """Write ``record`` if its key is absent."""
        found = self._write(_INSERT, record, effects, ("", "", "", "", ""), until_ms)
        return record if found is None else _record_of(record.key, found)

    def compare_and_swap(
        self, seen: Record, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if the one under its key is still as ``seen``."""
        lease, shift = _lease_as_stored(seen)
        expected = (_expect(seen.status), _expect(seen.owner), _expect(seen.attempt), _expect(lease), _expect(shift))
        found = self._write(_SWAP, record, effects, expected, until_ms)
        return record if found is None else _record_of(record.key, found) if found.fields else None

    def update_if_owner(
        self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if its owner still holds the key, and not for longer."""
        lease = "" if record.lease_ms is None else str(record.lease_ms)
        expected = (_expect(IN_PROGRESS), _expect(record.owner), "", lease, "")
        found = self._write(_ADVANCE, record, effects, expected, until_ms)
        return record if found is None else _record_of(record.key, found) if found.fields else None

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Read the record under ``key``, from the primary."""
        server_ms, fields = self._run(_READ, key, (), until_ms)
        found = _Found(_pairs(fields), server_ms, self._clock())
        return _record_of(key, found) if found.fields else None

    def check_eviction(self, *, until_ms: int | None = None) -> None:
        """Check that the server drops no key before its time, which would forget a claim. Call it when deploying.

        The answer comes from ``INFO``, because managed services forbid ``CONFIG``. A server that tells neither passes.

        Raises:
            ConfigurationError: its ``maxmemory-policy`` is another than ``noeviction``.
            StoreUnavailableError, StoreRefusedError: it gave no answer.
        """
        try:
            report = self._send("INFO", lambda: self._client.info("memory"), until_ms)
        except StoreRefusedError as refused:
            if isinstance(refused.__cause__, self._errors.reply):
                return
            raise
        nodes = report.values() if all(isinstance(part, dict) for part in report.values()) else (report,)
        for node in nodes:
            policy = node.get("maxmemory_policy", "noeviction")
            if policy != "noeviction":
                raise ConfigurationError(
                    f"maxmemory-policy is {policy}: under pressure the server would forget claims and completions, and "
                    "run operations twice; set it to noeviction"
                )

    def _write(
        self,
        script: _Script,
        record: Record,
        effects: Sequence[Effect],
        expected: tuple[str, ...],
        until_ms: int | None,
    ) -> _Found | None:
        """Return None where ``record`` was written."""
        if effects:
            raise ConfigurationError("ValkeyStore has no transactions and cannot take effects: use DynamoDBStore")
        expires = "" if record.expiry is None else str(record.expiry * 1000)
        server_ms, *refused = self._run(script, record.key, (expires, *expected, *_fields_of(record)), until_ms)
        return _Found(_pairs(refused[0]), server_ms, self._clock()) if refused else None

    def _run(self, script: _Script, key: str, arguments: tuple[str, ...], until_ms: int | None) -> Any:
        """Return the answer. A step whose answer was lost may be sent again: its owner knows its own."""
        if self._checks_eviction:
            self.check_eviction(until_ms=until_ms)
            self._checks_eviction = False
        return self._send(f"a step on {key}", lambda: self._evaluate(script, key, arguments), until_ms)

    def _send(self, what: str, request: Callable[[], Any], until_ms: int | None) -> Any:
        return self._retries.send(
            what, request, self._errors.judge, longest_try_s=self._longest_try_s, until_ms=until_ms
        )

    def _evaluate(self, script: _Script, key: str, arguments: tuple[str, ...]) -> Any:
        arguments = (self._prefix + key, str(self._clock()), *arguments)
        try:
            return self._client.evalsha(script.sha, 1, *arguments)
        except self._errors.unknown_script:
            return self._client.eval(script.text, 1, *arguments)


class _Errors:
    """The errors of the package that a client comes from; neither package is a dependency of this one."""

    def __init__(self, client: object) -> None:
        names = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
        package = next((name for name in names if name in ("valkey", "redis")), None)
        if package is None:
            raise ConfigurationError(f"{type(client).__qualname__} is no client of valkey-py or redis-py")
        errors: Any = importlib.import_module(f"{package}.exceptions")
        self.unknown_script: type[Exception] = errors.NoScriptError
        self.reply: type[Exception] = errors.ResponseError
        self._passing: tuple[type[Exception], ...] = (
            errors.BusyLoadingError,
            errors.ClusterDownError,
            errors.ReadOnlyError,  # a replica by now: the next connection may reach its successor
            errors.TryAgainError,
        )
        self._refusing: tuple[type[Exception], ...] = (
            errors.AuthenticationError,
            errors.AuthorizationError,
            errors.ResponseError,
        )
        # Any other error of the client says nothing of what the server did: the connection failed, or an answer broke.
        self._unanswered: tuple[type[Exception], ...] = (
            getattr(errors, f"{package.capitalize()}Error"),
            getattr(errors, f"{package.capitalize()}ClusterException"),
        )

    def judge(self, error: Exception) -> Verdict | None:
        """Say whether the server has refused a step: an error that it answers with is definite."""
        if isinstance(error, self._passing):
            return Verdict.PASSING
        if isinstance(error, self._refusing):
            return Verdict.REFUSED
        return Verdict.UNANSWERED if isinstance(error, self._unanswered) else None


def connect(
    host: str,
    port: int,
    *,
    tls: bool = False,
    username: str | None = None,
    password: str | None = None,
    database: int = 0,
    cluster: bool = False,
    connect_timeout_s: float = 0.7,
    read_timeout_s: float = 0.8,
) -> Client:
    """Make a client of one endpoint; it connects when it is first used, and again when a connection was lost.

    For all threads of a process, which share its pools. Without ``cluster`` it speaks to one endpoint, which is a
    server or, with ElastiCache Serverless, the proxy that finds the key's shard: every script has one key, so that none
    crosses shards. With ``cluster`` the endpoint is asked for the nodes of a cluster, and each step goes to its key's.

    Raises:
        ConfigurationError: valkey-py is not installed.
    """
    try:
        import valkey  # noqa: PLC0415 - who keeps records elsewhere does not pay for it
        from valkey.backoff import NoBackoff  # noqa: PLC0415 - as above
        from valkey.exceptions import ReadOnlyError  # noqa: PLC0415 - as above
        from valkey.retry import Retry  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ConfigurationError("records in Valkey need the package valkey: add it to what is deployed") from error
    settings: dict[str, Any] = {
        "username": username,
        "password": password,
        "socket_connect_timeout": connect_timeout_s,
        "socket_timeout": read_timeout_s,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
    }
    if cluster:
        from idempotency.stores.valkey_cluster import Cluster  # noqa: PLC0415 - as above

        return Cluster(host, port, tls=tls, settings=settings)
    return valkey.Valkey(
        host=host,
        port=port,
        db=database,
        retry_on_error=[ReadOnlyError],
        ssl=tls,
        ssl_check_hostname=tls,  # valkey-py checks the certificate, but not by itself whose it is
        **settings,
    )


def _longest_try_s(client: Client) -> float:
    settings = client.get_connection_kwargs()
    timeout_s = settings.get("socket_timeout")
    if timeout_s is None:
        raise ConfigurationError(
            "give the client a socket_timeout=: without one, a hung server holds its caller forever"
        )
    of_connections, of_cluster = settings.get("retry"), getattr(client, "retry", None)
    attempts: int = getattr(client, "cluster_error_retry_attempts", 0)
    if attempts or _retries(of_connections) or _retries(of_cluster):
        raise ConfigurationError(
            "give the client retry=Retry(NoBackoff(), 0), and that of a cluster cluster_error_retry_attempts=0: the "
            "store retries, and knows until when"
        )
    one_s = float((settings.get("socket_connect_timeout") or timeout_s) + timeout_s)
    # A call of a client of a cluster may also ask for its nodes and commands, each in a request of its own.
    return 3 * one_s if hasattr(client, "get_nodes") else one_s


def _retries(retry: Any) -> int:
    """How often a retry object of valkey-py or of redis-py tries again; only the latter tells."""
    tries: int = retry.get_retries() if hasattr(retry, "get_retries") else getattr(retry, "_retries", 0)
    return tries


def _expect(value: object) -> str:
    return "" if value is None else f"={value}"


def _lease_as_stored(seen: Record) -> tuple[int | None, int | None]:
    """The lease of ``seen`` as its writer put it, and the shift that makes it one of the server's.

    A record that was read carries both as its revision. One that was written here carries neither, or, as a copy with
    another lease, those of the record that it was made from; only its owner can have changed its lease since.
    """
    if seen.revision is not None:
        shown, lease, shift = map(int, seen.revision.split())
        if shown == seen.lease_ms:
            return lease, shift
    return seen.lease_ms, None


_TEXTS: Final = ("status", "owner", "fingerprint", "delivery", "region", "result", "error", "event")
_NUMBERS: Final = ("attempt", "lease_ms", "expiry", "created_ms", "updated_ms", "retry_ms")


def _fields_of(record: Record) -> list[str]:
    fields = []
    for name in (*_TEXTS, *_NUMBERS):
        value = getattr(record, name)
        if value is not None:
            fields += [name, str(value)]
    if record.dead_lettered:
        fields += ["dead_lettered", "1"]
    return fields


def _pairs(flat: Sequence[bytes | str]) -> dict[str, str]:
    texts = [part.decode() if isinstance(part, bytes) else part for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _record_of(key: str, found: _Found) -> Record:
    """What was found as a record in the reader's clock; what makes no sense is left to the decision."""
    fields, server_ms, reader_ms = found
    numbers = {name: int(fields[name]) for name in _NUMBERS if fields.get(name, "").isdecimal()}
    lease_ms, expiry, retry_ms = (numbers.get(name) for name in ("lease_ms", "expiry", "retry_ms"))
    shift_ms = int(fields.get("shift", "0"))
    later_ms = shift_ms - server_ms + reader_ms
    return Record(
        key=key,
        status=fields.get("status", ""),
        owner=fields.get("owner"),
        attempt=numbers.get("attempt", 0),
        lease_ms=None if lease_ms is None else lease_ms + later_ms,
        expiry=None if expiry is None else -(-(expiry * 1000 + later_ms) // 1000),
        fingerprint=fields.get("fingerprint"),
        delivery=fields.get("delivery"),
        region=fields.get("region"),
        created_ms=numbers.get("created_ms", 0),
        updated_ms=numbers.get("updated_ms", 0),
        result=fields.get("result"),
        error=fields.get("error"),
        retry_ms=None if retry_ms is None else retry_ms + later_ms,
        dead_lettered=fields.get("dead_lettered") == "1",
        event=fields.get("event"),
        revision=None if lease_ms is None else f"{lease_ms + later_ms} {lease_ms} {shift_ms}",
    )
