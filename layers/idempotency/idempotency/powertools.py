"""For users of AWS Lambda Powertools: this layer's stores behind ``@idempotent``, and a way to move over.

`FencedPersistenceLayer` takes the place of Powertools' own persistence layers, and nothing else changes: its claims
have an owner, and only the owner completes or fails them. `PowertoolsHistory` has a `Consumer` honour what Powertools'
records remember. Neither writes to Powertools' records.

This module alone imports Powertools, which is no dependency of this package.
"""

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from aws_lambda_powertools.shared.constants import LAMBDA_FUNCTION_NAME_ENV
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
    IdempotencyKeyError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import STATUS_CONSTANTS, DataRecord

from idempotency import observation
from idempotency.clock import Clock, epoch_ms
from idempotency.errors import BusyError, ConfigurationError, LostLeaseError, PayloadMismatchError, QuarantinedError
from idempotency.handlers import require_plain
from idempotency.keys import check_name, record_key
from idempotency.observation import Observer
from idempotency.policy import Policy
from idempotency.record import COMPLETED, FAILED, QUARANTINED
from idempotency.runner import Answer, Delivery, Runner, Started
from idempotency.stores import Store

_LONGEST_INVOCATION_S: Final = 900.0
_SKEW_MS: Final = 1_000
_IN_PROGRESS: Final = STATUS_CONSTANTS["INPROGRESS"]
_EXPIRED: Final = STATUS_CONSTANTS["EXPIRED"]
_NO_STEPS: Final = "claims, completions and failures carry their owner: save_inprogress, save_success, delete_record"


class Remembered(NamedTuple):
    """What Powertools' record holds of a completed call."""

    result: object


# ── Powertools' rules ─────────────────────────────────────────────────────────────────────────────────────────────────


class _WholeCalls(BasePersistenceLayer):
    """A persistence layer without the four steps that Powertools would take for each part of a call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Powertools has no type for it

    def _get_record(self, idempotency_key: str) -> DataRecord:
        raise NotImplementedError(_NO_STEPS)

    def _put_record(self, data_record: DataRecord) -> NoReturn:
        raise NotImplementedError(_NO_STEPS)

    def _update_record(self, data_record: DataRecord) -> NoReturn:
        raise NotImplementedError(_NO_STEPS)

    def _delete_record(self, data_record: DataRecord) -> NoReturn:
        raise NotImplementedError(_NO_STEPS)


class _Rules(_WholeCalls):
    """How Powertools makes keys and payload hashes of data, by one configuration. Stores nothing."""

    def __init__(self, config: IdempotencyConfig) -> None:
        super().__init__()
        self.configure(config, key_prefix="-")
        compiled = self.event_key_compiled_jmespath
        self._is_composite = compiled is not None and _ends_in_selection(compiled.parsed)
        self._hash_name = config.hash_function

    def key_hash(self, data: Any) -> str | None:
        """Return the hash of the key, or None where there is none and the configuration allows that.

        Raises:
            IdempotencyKeyError: there is no key, or a part of a composite one is missing.
        """
        key = self._get_hashed_idempotency_key(data)
        return None if key is None else key.removeprefix("-#")

    def payload_hash(self, data: Any) -> str | None:
        """Return the hash of what is to be compared, or None where nothing is."""
        return self._get_hashed_payload(data) or None

    def fingerprint(self, data: Any) -> str | None:
        """Return the payload's hash as a record holds it: those of two hash functions are not compared."""
        payload_hash = self.payload_hash(data)
        return None if payload_hash is None else f"powertools-{self._hash_name}:{payload_hash}"

    def is_missing_idempotency_key(self, data: Any) -> bool:  # type: ignore[override] # static there; it needs the expression
        """Say whether there is no key at all; a key of which a part is missing would be shared by strangers."""
        missing = BasePersistenceLayer.is_missing_idempotency_key(data)
        if self._is_composite and not missing and None in (data.values() if isinstance(data, dict) else data):
            raise IdempotencyKeyError(f"A part of the idempotency key is missing: {self.event_key_jmespath}")
        return missing


def _ends_in_selection(node: dict[str, Any]) -> bool:
    """Say whether a JMESPath expression puts its result together itself, as ``[tenant, order]`` does."""
    if node["type"] in ("subexpression", "pipe"):
        return _ends_in_selection(node["children"][-1])
    return node["type"] in ("multi_select_list", "multi_select_dict")


def _prefix(function_name: str | None, key_prefix: str | None) -> str:
    """Return what stands before the ``#`` of Powertools' keys."""
    return key_prefix or f"{os.getenv(LAMBDA_FUNCTION_NAME_ENV, 'test-func')}.{function_name or ''}"


# ── The bridge ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Settings(NamedTuple):
    """What one configuration of Powertools comes to."""

    rules: _Rules
    runner: Runner


class _Configured(NamedTuple):
    """Which function, with which settings, the call that is being made in this context is about."""

    layer: BasePersistenceLayer
    settings: _Settings
    function: str
    prefix: str


class _Call(NamedTuple):
    """A call that is running in this context."""

    layer: BasePersistenceLayer
    data: Any
    runner: Runner
    started: Started | None
    """None where the call has no key, and so no record."""


_configured: ContextVar[_Configured | None] = ContextVar("idempotency_powertools_configured", default=None)
_calls: ContextVar[tuple[_Call, ...]] = ContextVar("idempotency_powertools_calls", default=())
"""The innermost call stands last. Powertools keeps such state on the persistence layer that all calls share."""


class FencedPersistenceLayer(_WholeCalls):
    """One of this package's stores, for Powertools' ``@idempotent`` and ``@idempotent_function``.

    What the decorators' configuration says is honoured: key, payload validation, window (``expires_after_seconds``),
    local cache. Configurations belong to their functions, not to the layer, so that functions may share it.

    Args:
        store: where the records are.
        consumer: put before every key, in place of the Lambda function's name: it outlives renaming and regions.
        replaces: the persistence layer that was used until now. Before a function runs, its record there is read: what
            it has completed is not run again. Give it up when its records have expired.
        window: how long records are remembered, in seconds; left out, what each configuration says. Powertools' default
            of an hour is shorter than any road by which an event can come back.
        max_attempts: how often one key is run before it is quarantined; left out, without limit, as in Powertools.
        observe: is told what became of every call.
        clock: epoch milliseconds.

    Raises:
        ConfigurationError: the settings cannot work together.
    """

    def __init__(
        self,
        store: Store,
        consumer: str,
        *,
        replaces: BasePersistenceLayer | None = None,
        window: int | None = None,
        max_attempts: int | None = None,
        observe: Observer = observation.ignore,
        clock: Clock = epoch_ms,
    ) -> None:
        super().__init__()
        check_name(consumer, "a consumer's name")
        self._store = store
        self._consumer = consumer
        self._replaces = replaces
        self._window = window
        self._max_attempts = max_attempts or sys.maxsize
        self._observe = observe
        self._clock = clock
        self._lock = threading.Lock()
        self._settings: WeakKeyDictionary[IdempotencyConfig, _Settings] = WeakKeyDictionary()

    def configure(
        self, config: IdempotencyConfig, function_name: str | None = None, key_prefix: str | None = None
    ) -> None:
        """Take note, for this context, of the function that is about to be called."""
        if not isinstance(config.response_hook, _Restored):
            config.response_hook = _Restored(config.response_hook)
        with self._lock:
            settings = self._settings.get(config)
            if settings is None:
                settings = self._settings[config] = _Settings(_Rules(config), self._runner(config))
        function = key_prefix or function_name or ""
        _configured.set(_Configured(self, settings, function, _prefix(function_name, key_prefix)))

    def save_inprogress(self, data: Any, remaining_time_in_millis: int | None = None) -> None:
        """Claim the key of ``data``.

        Raises:
            IdempotencyItemAlreadyExistsError: it is completed, or another call holds it.
            IdempotencyValidationError: it is known with another payload.
            IdempotencyKeyError: the key is missing, or a part of it.
        """
        (rules, runner), function, prefix = self._configuration()
        key_hash = rules.key_hash(data)
        if key_hash is None:
            _calls.set((*_calls.get(), _Call(self, data, runner, None)))
            return
        if remaining_time_in_millis is None:
            warnings.warn(
                f"no Lambda context is registered: a call that dies holds its key for {_LONGEST_INVOCATION_S:.0f} s",
                stacklevel=2,
            )
        delivery = Delivery(
            key=self._key(function, key_hash),
            fingerprint=rules.fingerprint(data),
            id=None,
            deadline_ms=None if remaining_time_in_millis is None else self._clock() + int(remaining_time_in_millis),
            acknowledges=False,
            event=data,
        )

        def begin() -> Started | Answer:
            begun = runner.begin(delivery)
            if self._replaces is None or isinstance(begun, Answer):
                return begun
            try:
                known = _look_up(self._replaces, f"{prefix}#{key_hash}", rules.payload_hash(data), self._clock())
            except Exception as error:  # noqa: BLE001 - the claim is given back, and the error raised when it is told
                return runner.fail(begun, error)
            return begun if known is None else runner.finish(begun, known.result)

        try:
            begun = runner.told(delivery, begin)
        except BusyError as busy:
            holder = DataRecord(delivery.key, status=_IN_PROGRESS)
            raise IdempotencyItemAlreadyExistsError(old_data_record=holder) from busy
        except PayloadMismatchError as mismatch:
            raise IdempotencyValidationError(str(mismatch)) from mismatch
        if isinstance(begun, Answer):
            raise IdempotencyItemAlreadyExistsError(old_data_record=_CompletedRecord(begun, delivery.key))
        _calls.set((*_calls.get(), _Call(self, data, runner, begun)))

    def save_success(self, data: Any, result: Any) -> None:
        """Complete the claim of ``data``.

        Raises:
            LostLeaseError: another call took over. The caller is to ask again, for the result of the call that counts.
        """
        _, _, runner, started = self._ended(data)
        if started is None:
            return
        answer = runner.told(started.delivery, runner.finish, started, result)
        if answer.outcome == observation.LOST_LEASE:
            raise LostLeaseError(started.delivery.key)

    def delete_record(self, data: Any, exception: Exception) -> None:
        """Record that the call of ``data`` raised. Nothing is deleted; a record that was taken over is left alone."""
        _, _, runner, started = self._ended(data)
        if started is None:
            return
        try:
            runner.told(started.delivery, runner.fail, started, exception)
        except Exception as raised:
            if raised is not exception:  # which Powertools raises by itself
                raise

    def get_record(self, data: Any) -> DataRecord | None:
        """Return the record of ``data`` as it is now.

        Raises:
            IdempotencyItemNotFoundError: there is none that would keep a call from being made.
            QuarantinedError: the key is quarantined.
        """
        (rules, _), function, _ = self._configuration()
        key_hash = rules.key_hash(data)
        return None if key_hash is None else self._get_record(f"{function}#{key_hash}")

    def _get_record(self, idempotency_key: str) -> DataRecord:
        key = self._key(*idempotency_key.rsplit("#", 1))
        found = self._store.read(key)
        if found is None or found.status == FAILED:
            raise IdempotencyItemNotFoundError
        if found.status == QUARANTINED:
            raise QuarantinedError(key, found.attempt, found.error)
        if found.status == COMPLETED:
            return _CompletedRecord(Answer(observation.DUPLICATE, found), key)
        return DataRecord(key, status=_IN_PROGRESS, in_progress_expiry_timestamp=found.lease_ms)

    def _key(self, function: str, key_hash: str) -> str:
        return record_key(self._consumer, (function, key_hash))

    def _runner(self, config: IdempotencyConfig) -> Runner:
        policy = Policy(
            window=self._window or config.expires_after_seconds,
            max_attempts=self._max_attempts,
            lease=_LONGEST_INVOCATION_S,  # as long as any invocation, so that none needs a heartbeat
            reserve=0.0,  # Powertools starts a function however little time is left
            warm_cache=config.local_cache_max_items if config.use_local_cache else 0,
        )
        return Runner(self._consumer, self._store, policy, observe=self._observe, clock=self._clock)

    def _configuration(self) -> tuple[_Settings, str, str]:
        configured = _configured.get()
        if configured is None or configured.layer is not self:
            raise ConfigurationError("configure() was not called in this context")
        return configured.settings, configured.function, configured.prefix

    def _ended(self, data: Any) -> _Call:
        """Take the innermost call of ``data`` from this context."""
        calls = _calls.get()
        for position in reversed(range(len(calls))):
            if calls[position].layer is self and calls[position].data is data:
                _calls.set(calls[:position])  # what is further in ended without a word
                return calls[position]
        raise ConfigurationError("no call was claimed in this context: durable functions' replays are not supported")


class _CompletedRecord(DataRecord):
    """A completed record, as Powertools takes it."""

    def __init__(self, answer: Answer, key: str) -> None:
        record = answer.record
        super().__init__(
            key,
            status=STATUS_CONSTANTS["COMPLETED"],
            expiry_timestamp=record and record.expiry,
            response_data=(record and record.result) or "",
            payload_hash=((record and record.fingerprint) or "").rpartition(":")[2],
        )
        self._answer = answer

    @property
    def is_expired(self) -> bool:
        """The store has judged that, by a clock that is allowed to differ from this one."""
        return False

    def response_json_as_dict(self) -> Any:
        """Return the result, of whatever type it was.

        Raises:
            ResultOmittedError: the call was completed without its value.
        """
        return self._answer.value()


class _Restored:
    """Stands before a configuration's response hook: Powertools makes None of an empty result, this undoes it."""

    def __init__(self, hook: Callable[[Any, DataRecord], Any] | None) -> None:
        self._hook = hook

    def __call__(self, response: Any, idempotent_data: DataRecord) -> Any:
        if response is None and isinstance(idempotent_data, _CompletedRecord):
            response = idempotent_data.response_json_as_dict()
        return response if self._hook is None else self._hook(response, idempotent_data)


# ── Moving over ───────────────────────────────────────────────────────────────────────────────────────────────────────


class PowertoolsHistory:
    """What Powertools' records remember, for a `Consumer` that takes over from Powertools.

    ::

        history = PowertoolsHistory(old_layer, old_config, prefix="payments.app.handler")

        @consumer.event_handler
        @history.first
        def handler(event, operation): ...

    The handler runs where Powertools has no completed record; where it has one, the consumer's own record is completed
    with its result. It is asked after the consumer's own claim, so that of two deliveries at once only one can ask.

    Args:
        layer: the persistence layer that was used until now, Powertools' own or the bridge; it is only read.
        config: its configuration.
        prefix: what its keys have before the ``#``: the ``key_prefix``, or
            ``<Lambda function>.<module>.<qualified name>`` of what was decorated; the bridge's begin with the module.
        data: makes what Powertools was given of what the handler is given; left out, the first argument is it. For a
            parsed event: what the configuration's expressions find in it is enough.
        clock: epoch milliseconds.
    """

    def __init__(
        self,
        layer: BasePersistenceLayer,
        config: IdempotencyConfig,
        *,
        prefix: str,
        data: Callable[..., Any] = lambda event, *_: event,
        clock: Clock = epoch_ms,
    ) -> None:
        self._layer = layer
        self._rules = _Rules(config)
        self._prefix = prefix
        self._data = data
        self._clock = clock

    def first[**P](self, work: Callable[P, object]) -> Callable[P, object]:
        """Decorate ``work``, so that it only runs where Powertools has not completed it.

        Calling it raises BusyError while Powertools' record is in progress: the version before this one is at it.
        """
        require_plain(work, "first")

        @functools.wraps(work)
        def ask_first(*args: P.args, **kwargs: P.kwargs) -> object:
            known = self.find(self._data(*args, **kwargs))
            return work(*args, **kwargs) if known is None else known.result

        return ask_first

    def find(self, data: Any) -> Remembered | None:
        """Return what Powertools has completed for ``data``, if it has.

        Raises:
            BusyError: its record is in progress.
            PayloadMismatchError: it knows the key with another payload.
        """
        key_hash = self._rules.key_hash(data)
        if key_hash is None:
            return None
        return _look_up(self._layer, f"{self._prefix}#{key_hash}", self._rules.payload_hash(data), self._clock())


def _look_up(layer: BasePersistenceLayer, key: str, payload_hash: str | None, now_ms: int) -> Remembered | None:
    try:
        record = layer._get_record(key)  # noqa: SLF001 - what every persistence layer implements; get_record shares state
    except IdempotencyItemNotFoundError:
        return None
    status = record.status
    if status == _EXPIRED:
        return None
    if status == _IN_PROGRESS:
        ends_ms = record.in_progress_expiry_timestamp
        if ends_ms is not None and ends_ms + _SKEW_MS < now_ms:
            return None  # whoever made it has died
        raise BusyError(key, int(_LONGEST_INVOCATION_S * 1000) if ends_ms is None else int(ends_ms) + _SKEW_MS - now_ms)
    if payload_hash is not None and record.payload_hash and record.payload_hash != payload_hash:
        raise PayloadMismatchError(key)
    return Remembered(record.response_json_as_dict())
