"""Lambda functions: their handlers, sandboxes, retries and failures."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any, Final
from unittest.mock import patch

from carride.events import parse_event
from carride.settings import from_environment
from carride_idempotency.testing import Invocation
from stripe_gateway import StripeGateway
from tests.world.cloud import Cloud, Invoked
from tests.world.gateway import Gateway
from tests.world.queues import Queues
from tests.world.wiring import REGION, FunctionSpec
from virtual_time.scheduler import Killed, Machine, Simulation

RETRIED_AFTER_S: Final = (60.0, 120.0)
"""https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html"""
_SKEW_MS: Final = 800
_INVOKED_TWICE: Final = 0.05
_ENDED: Final = 0.05
"""The share of invocations before which Lambda ends an idle sandbox."""
_LONGEST_PAUSE_S: Final = 300.0

type Handler = Callable[[Any, Any], Any]
type Done = Callable[[bool, Any], None]
"""Is told whether an invocation succeeded, and its answer or why not."""


def handler_of(spec: FunctionSpec, cloud: Cloud, gateway: Gateway) -> Handler:
    """Start a process of a function, as its module does, with the environment of its template."""
    module: Any = import_module(spec.module)
    clock = cloud.simulation

    def now() -> datetime:
        return datetime.fromtimestamp(clock() / 1000, UTC)

    settings = getattr(module, "Settings", None) or module.ConsumerSettings
    given = from_environment(settings, spec.environment)
    handler: Handler
    match spec.module:
        case "payment":
            client = StripeGateway(given.payment_gateway_url, connection=gateway)
            handler = module.make_handler(given, client, now=now)
        case "dispatch" | "carride_api":
            handler = module.make_handler(given, now=now)
        case "reconciler":
            handler = module.make_handler(given, clock=clock)
        case _:
            handler = module.make_handler(given)
    return handler


class Function:
    """A function with its sandboxes.

    Attributes:
        busy: how many of its sandboxes work.
    """

    def __init__(self, spec: FunctionSpec, cloud: Cloud, queues: Queues, gateway: Gateway) -> None:
        self.spec = spec
        self._cloud = cloud
        self._simulation: Simulation = cloud.simulation
        self._queues = queues
        self._gateway = gateway
        self.is_off = False
        """Whether its reserved concurrency is 0."""
        first = cloud.wiring.region == REGION
        self._prefix = "" if first else f"{cloud.wiring.region} "
        self._idle: list[tuple[Machine, Handler]] = []
        self._dones: dict[Machine, Done] = {}
        self._machines = 0
        self.busy = 0

    # ── One invocation ────────────────────────────────────────────────────────────────────────────

    def invoke(self, event: Any, invoked: Invoked, request_id: str, done: Done) -> None:
        """Invoke the function; ``done`` is called when that has ended."""
        if self._cloud.window(self.spec.name, invoked.name):
            self._simulation.after(0.01, partial(done, False, "it fails at once"))
            return
        if self._idle and self._cloud.happens(
            "a sandbox that is ended while idle", _ENDED, invoked.name
        ):
            self._idle.pop()
        machine, handler = self._idle.pop() if self._idle else self._sandbox(invoked)
        self.busy += 1
        self._cloud.counts["invocations"] += 1
        self._cloud.running[machine] = invoked
        self._dones[machine] = done
        self._cloud.say(f"begins {invoked.name}", machine.name)
        context = Invocation(
            lambda: self._simulation.now_ms,
            request_id=request_id,
            timeout_s=self.spec.timeout_s,
            function_name=self.spec.name,
        )
        self._simulation.spawn(machine, partial(self._run, machine, handler, event, context))
        self._simulation.after(self.spec.timeout_s, partial(self._time_out, machine, invoked))

    def _sandbox(self, invoked: Invoked) -> tuple[Machine, Handler]:
        self._machines += 1
        ahead_ms = round((self._cloud.roll(f"skew {invoked.name}") - 0.5) * _SKEW_MS)
        self._cloud.use("a clock that is wrong")
        machine = Machine(f"{self._prefix}{self.spec.name}-{self._machines}", ahead_ms)
        machine.on_death = partial(self._died, machine)
        return machine, self._build()

    def _build(self) -> Handler:
        """Start a process in its region."""
        if not self._prefix:
            return handler_of(self.spec, self._cloud, self._gateway)
        region = {"AWS_REGION": self._cloud.wiring.region}
        with patch.dict(os.environ, region), self._cloud.installed():
            return handler_of(self.spec, self._cloud, self._gateway)

    def _run(self, machine: Machine, handler: Handler, event: Any, context: Invocation) -> None:
        try:
            answer = handler(event, context)
            ok = True
        except Exception as error:  # noqa: BLE001 - so does Lambda
            answer = f"{type(error).__name__}: {error}"
            ok = False
        if not machine.alive:
            raise Killed
        self._idle.append((machine, handler))
        self._end(machine, ok, answer)

    def _time_out(self, machine: Machine, invoked: Invoked) -> None:
        if self._cloud.running.get(machine) is invoked:
            self._cloud.counts["timed out"] += 1
            self._simulation.kill(machine, "timed out")

    def _died(self, machine: Machine, why: str) -> None:
        self._end(machine, False, why)

    def _end(self, machine: Machine, ok: bool, answer: Any) -> None:
        invoked = self._cloud.running.pop(machine)
        self.busy -= 1
        self._cloud.say(f"{'ends' if ok else 'FAILS'} {invoked.name}: {answer}", machine.name)
        self._simulation.after(0.001, partial(self._dones.pop(machine), ok, answer))

    # ── Asynchronous invocations ──────────────────────────────────────────────────────────────────

    def send(self, event: Mapping[str, Any], name: str) -> None:
        """Invoke it asynchronously, at least once."""
        text = json.dumps(event)
        request_id = f"{int(self._cloud.roll(f'request {name}') * 16**12):012x}"
        times = 1 + self._cloud.happens("an event invoked twice", _INVOKED_TWICE, name)
        for number in range(times):
            delivery = Delivery(self, text, f"{name} {number}", request_id)
            self._simulation.after(
                self._cloud.delay_s("an invocation", delivery.name), delivery.attempt
            )

    def give_up(self, text: str, why: str, answer: Any) -> None:
        """Send an event that failed to the function's destination."""
        self._cloud.say(f"gives up: {why}", self.spec.name)
        dlq = self.spec.attempts.dlq
        if not dlq:
            self._cloud.counts["lost by Lambda"] += 1
            return
        letter = {
            "version": "1.0",
            "timestamp": datetime.now(UTC).isoformat(),
            "requestContext": {"requestId": "1", "condition": why, "functionArn": self.spec.name},
            "requestPayload": json.loads(text),
            "responsePayload": {"errorType": "Error", "errorMessage": str(answer)[:200]},
        }
        self._queues.send(dlq, json.dumps(letter))


class Delivery:
    """An event in a function's queue of asynchronous invocations."""

    def __init__(self, function: Function, text: str, name: str, request_id: str) -> None:
        self.name = name
        self._function = function
        self._text = text
        self._request_id = request_id
        self._cloud = function._cloud  # noqa: SLF001 - one thing in two classes
        self._began_s = self._cloud.now_s
        self._attempts = 0
        self._throttled = 0

    def attempt(self) -> None:
        if self._function.is_off:
            self._function.give_up(self._text, "ZeroReservedConcurrency", "")
            return
        attempts = self._function.spec.attempts
        if self._cloud.now_s - self._began_s > attempts.oldest_s:
            self._function.give_up(self._text, "EventAgeExceeded", "")
            return
        if not self._cloud.healed and self._cloud.happens(
            "an invocation throttled", self._cloud.story.share / 2, self.name
        ):
            self._throttled += 1
            pause_s = min(_LONGEST_PAUSE_S, 2.0**self._throttled)
            self._cloud.simulation.after(pause_s, self.attempt)
            return
        self._attempts += 1
        event = json.loads(self._text)
        name = f"{self.name} attempt {self._attempts}"
        invoked = Invoked(self._function.spec.name, name, facts_in(event))
        self._function.invoke(event, invoked, self._request_id, self._done)

    def _done(self, ok: bool, answer: Any) -> None:
        if ok:
            return
        if self._attempts > self._function.spec.attempts.retries:
            self._function.give_up(self._text, "RetriesExhausted", answer)
            return
        self._cloud.simulation.after(RETRIED_AFTER_S[self._attempts - 1], self.attempt)


def facts_in(event: Mapping[str, Any]) -> list[str]:
    """Return what an event is about: its idempotency id, or the time of a tick."""
    if "detail" in event:
        return [id_in(event["detail"])]
    return [str(event.get("time"))]


def id_in(detail: Mapping[str, Any]) -> str:
    """Return the idempotency id of an event, in whichever envelope it is."""
    if "attributes" in detail:
        return parse_event({"detail": detail}).idempotencyid
    return str(detail.get("idempotencyid"))
