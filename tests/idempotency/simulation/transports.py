"""What calls the handlers, by AWS's documented rules: sandboxes, a queue and asynchronous invokes."""

import json
import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from idempotency.testing import Invocation, eventbridge_event, sqs_event
from tests.idempotency.simulation.engine import EPOCH_MS, Killed, Machine
from tests.idempotency.simulation.handlers import Handler, Shop
from tests.idempotency.simulation.network import Call, Entry, Network, Part

_RETRY_ASYNC_AFTER_S: Final = (60.0, 120.0)
_ASYNC_LASTS_MS: Final = 6 * 3_600_000.0
_BODIES: Final[Mapping[str, str]] = {
    "nested": "[" * 20_000,
    "keyless": '{"about": "order-%d"}',
    "typo": '{"order": {"order-%d": 1}}',
    "overflow": '{"order": "order-%d", "occurred": 1e18}',
}


def body(entry: Entry) -> str:
    message = entry.message
    if message.behaviour in _BODIES:
        return _BODIES[message.behaviour].replace("%d", str(message.number))
    return json.dumps({"order": f"order-{message.number}", "occurred": message.at_s})


class Function(Part):
    """A Lambda function with its sandboxes."""

    def __init__(self, network: Network, shop: Shop) -> None:
        super().__init__(network)
        self._shop = shop
        self.idle: list[tuple[Machine, Handler]] = []
        """Its sandboxes that work on nothing."""
        self._machines = self._calls = 0

    def is_free(self) -> bool:
        return self._network.healed or len(self._network.calls) < self._plan.sandboxes

    def invoke(
        self, entries: list[Entry], event: Any, done: Callable[[bool, Any], None], request_id: str | None = None
    ) -> None:
        """Start a call; ``done`` gets whether it succeeded, and its response."""
        self._calls += 1
        call = Call(f"call-{self._calls}", entries, done)
        sandbox = self._sandbox()
        machine = sandbox[0]
        self._network.calls[machine] = call
        self._notes.counts["deliveries"] += len(entries)
        for entry in entries:
            entry.calls.append(call)
            text = f"{call.id} delivers {entry.id}, received {entry.receives}"
            self._simulation.say(machine.name, entry.message.number, text)
        context = Invocation(
            lambda: int(self._simulation.now_ms),
            request_id=request_id or self._simulation.hexadecimal("request id"),
            timeout_s=self._plan.timeout_s,
        )
        self._simulation.spawn(machine, partial(self._run, sandbox, event, context))
        self._simulation.after(self._plan.timeout_s, partial(self._time_out, machine, call))

    def _sandbox(self) -> tuple[Machine, Handler]:
        if self.idle:
            return self.idle.pop(0)
        self._machines += 1
        machine = Machine(f"sandbox-{self._machines}", (self._simulation.roll("skew") - 0.5) * 800)
        machine.on_death = partial(self._died, machine)
        return machine, self._shop.handler()

    def _run(self, sandbox: tuple[Machine, Handler], event: Any, context: Invocation) -> None:
        try:
            response, ok = sandbox[1](event, context), True
        except Exception as error:  # noqa: BLE001 - so does Lambda
            response, ok = error, False
        if not sandbox[0].alive:
            raise Killed
        self.idle.append(sandbox)
        self._ended(sandbox[0], f"returns {reprlib.repr(response)}" if ok else f"fails: {response!r}", ok, response)

    def _time_out(self, machine: Machine, call: Call) -> None:
        if self._network.calls.get(machine) is not call:
            return
        if call.touched or len({entry.message.work_s for entry in call.entries}) > 1:
            self._notes.excuse_all(call)
        else:
            words = "it was started without time enough to end, and timed out"
            self._notes.broken.extend((entry.message.number, words) for entry in call.entries)
        self._simulation.kill(machine, "timed out")

    def _died(self, machine: Machine, why: str) -> None:
        self._notes.counts[f"killed: {why}"] += 1
        self._notes.killed |= {entry.message.number for entry in self._network.calls[machine].entries}
        self._ended(machine, f"DIES: {why}", False, why)

    def _ended(self, machine: Machine, words: str, ok: bool, response: Any) -> None:
        call = self._network.calls.pop(machine)
        for entry in call.entries:
            self._simulation.say(machine.name, entry.message.number, f"{call.id} {words}")
        self._simulation.after(0.001, partial(call.done, ok, response))


class Transport(Part):
    """Holds messages until their handler has had them."""

    def __init__(self, network: Network, function: Function) -> None:
        super().__init__(network)
        self._function = function
        self._entries: list[Entry] = []

    def send(self, entry: Entry) -> None:
        raise NotImplementedError

    def _give_up(self, entry: Entry, words: str) -> None:
        self._notes.undelivered.append((entry, words))
        self._simulation.say("transport", entry.message.number, f"gives {entry.id} up: {words}")


class Queue(Transport):
    """An SQS queue, its mapping and its dead-letter queue.

    A received message is hidden for six timeouts of the function. After maxReceiveCount receives it goes to the
    dead-letter queue.
    """

    def send(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._simulation.after(0.2 * self._simulation.roll("poll"), self._poll)

    def _poll(self) -> None:
        while self._function.is_free() and (batch := self._receive()):
            event = {"Records": [self._record(entry) for entry in batch]}
            self._function.invoke(batch, event, partial(self._done, batch))
            self._simulation.after(self._plan.timeout_s * 6 + 0.001, self._poll)

    def _receive(self) -> list[Entry]:
        now_ms = self._simulation.now_ms
        most = min(self._plan.batch, 1 + int(self._plan.batch * self._simulation.roll("sample") ** 0.5))
        batch: list[Entry] = []
        for entry in list(self._entries):
            if entry.visible_ms > now_ms or len(batch) == most:
                continue
            entry.receives += 1
            if entry.receives > self._plan.receives:
                self._entries.remove(entry)
                self._give_up(entry, "received too often")
                continue
            entry.visible_ms = now_ms + self._plan.timeout_s * 6000
            batch.append(entry)
        return batch

    def _record(self, entry: Entry) -> Any:
        clock, received = partial(int, EPOCH_MS + entry.sent_ms), entry.receives
        return sqs_event(body(entry), clock=clock, received=received)["Records"][0] | {"messageId": entry.id}

    def _done(self, batch: list[Entry], ok: bool, response: Any) -> None:
        reported = response["batchItemFailures"] if ok and self._plan.reports else []
        ids = {failure["itemIdentifier"] for failure in reported}
        if ok:
            self._entries = [entry for entry in self._entries if entry not in batch or entry.id in ids]
        self._poll()


class Invokes(Transport):
    """Asynchronous invokes with two retries; throttled ones retry for six hours. An operator's are synchronous."""

    def send(self, entry: Entry) -> None:
        if entry.kind != "invoked":
            self._invoke(entry, self._simulation.hexadecimal("request id"), 0)
        elif self._function.is_free():
            self._function.invoke([entry], self._event(entry), lambda ok, response: None)

    def _invoke(self, entry: Entry, request_id: str, throttled: int) -> None:
        if self._function.is_free():
            entry.receives += 1
            self._function.invoke([entry], self._event(entry), partial(self._done, entry, request_id), request_id)
        elif self._simulation.now_ms - entry.sent_ms > _ASYNC_LASTS_MS:
            self._give_up(entry, "throttled too long")
        else:
            wait_s = min(300.0, 2.0**throttled) * (0.5 + self._simulation.roll("throttled"))
            self._simulation.after(wait_s, partial(self._invoke, entry, request_id, throttled + 1))

    def _done(self, entry: Entry, request_id: str, ok: bool, response: Any) -> None:
        if not ok and entry.receives > len(_RETRY_ASYNC_AFTER_S):
            self._give_up(entry, f"{response}")
        elif not ok:
            wait_s = _RETRY_ASYNC_AFTER_S[entry.receives - 1]
            self._simulation.after(wait_s, partial(self._invoke, entry, request_id, 0))

    def _event(self, entry: Entry) -> dict[str, Any]:
        detail = {"data": json.loads(body(entry))}
        event = eventbridge_event(detail, event_id=entry.id, clock=partial(int, EPOCH_MS + entry.sent_ms))
        if entry.kind == "invoked":  # with all fields it would count as EventBridge's
            del event["account"]
        return event | ({"replay-name": "again"} if entry.kind == "replayed" else {})


TRANSPORTS: Final[Mapping[str, type[Transport]]] = {"queue": Queue, "rule": Invokes}
