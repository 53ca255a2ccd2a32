"""Predicts what a consumer does with an event: its own code decides, on copies of its records."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from carride.consumer import wired
from carride.events import RideEvent
from carride_idempotency import Consumer, IdempotencyError, Operation
from carride_idempotency.clock import epoch_ms
from carride_idempotency.observation import Observation
from carride_idempotency.policy import DAY
from carride_idempotency.record import Record
from carride_idempotency.stores.memory import MemoryStore
from carride_idempotency.testing import DeadLetterBox, Invocation
from ops.audit.evidence import AuditedConsumer
from ops.policies import POLICIES
from ops.stack import StackRef


class Predictor:
    """Gives events to a deployed consumer's code.

    One that would take effect is remembered until `start`.
    """

    def __init__(self, stack: StackRef, consumer: AuditedConsumer) -> None:
        name = stack.outputs[f"{consumer.resources}FunctionName"]
        function = stack.client("lambda").get_function_configuration(FunctionName=name)
        variables = function["Environment"]["Variables"]
        window = int(variables["IDEMPOTENCY_WINDOW_DAYS"]) * DAY
        policy = POLICIES[consumer.name]
        self._invocation = partial(Invocation, epoch_ms, timeout_s=function["Timeout"])
        self._name = consumer.name
        self._region = stack.region
        self._policy = replace(policy, window=window, busy="raise", warm_cache=0)
        self.start()

    def start(self, *records: Record) -> None:
        """Forget all that was, and know these records."""
        # A clock that stands at 0: the table may still have records whose window has ended, and so
        # has this store.
        self.store = MemoryStore(capacity=sys.maxsize, apply=lambda _effects: None, clock=lambda: 0)
        for record in records:
            self.store.put_if_absent(record)
        self._observed: list[Observation] = []
        wiring = wired(self._policy, DeadLetterBox(), self._observed.append)
        consumer = Consumer(self._name, self.store, region=self._region, **wiring)
        self._handle = consumer.event_handler(_work)

    def observe(self, event: Mapping[str, Any]) -> Observation:
        """Return what becomes of a delivery.

        Whether the work of a run succeeds is not predicted.
        """
        with suppress(IdempotencyError):  # what it raises was observed
            self._handle(dict(event), self._invocation())
        return self._observed.pop()


def _work(event: RideEvent, operation: Operation) -> None:
    """Do nothing: the prediction ends where the consumer's own work begins."""
