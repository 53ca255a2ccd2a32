"""What calls the handlers, by AWS's documented rules.

Sandboxes, a queue and asynchronous invokes.
"""

import json
import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from carride_idempotency.testing import Invocation, eventbridge_event, sqs_event
from tests.world.engine.scheduler import Killed, Machine
from tests.world.shop.handlers import Handler, Shop
from tests.world.shop.network import Call, Entry, Network

_RETRY_ASYNC_AFTER_S: Final = (60.0, 120.0)
_ASYNC_LASTS_MS: Final = 6 * 3_600_000
_BODIES: Final[Mapping[str, str]] = {
    "nested": "[" * 20_000,
    "keyless": '{"about": "order-%d"}',
    "typo": '{"order": {"order-%d": 1}}',
    "overflow": '{"order": "order-%d", "occurred": 1e18}',
}


def body(entry: Entry) -> str:
    message = entry.message
    text = _BODIES.get(message.behaviour, f'{{"order": "order-%d", "occurred": {message.at_s}}}')
    return text.replace("%d", str(message.number))


class Function:
    """A Lambda function with its sandboxes."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._simulation = network.simulation
        self._shop = Shop(network)
        self.idle: list[tuple[Machine, Handler]] = []
        """Its sandboxes that work on nothing."""
        self._machines = self._calls = 0

    def is_free(self) -> bool:
        return self._network.healed or len(self._network.calls) < self._network.plan.sandboxes

    def invoke(
        self,
        entries: list[Entry],
        event: Any,
        done: Callable[[bool, Any], None],
        request_id: str | None = None,
    ) -> None:
        """Start a call; ``done`` gets whether it succeeded, and its response."""
        self._calls += 1
        call = Call(f"call-{self._calls}", entries, done)
        timeout_s = self._network.plan.timeout_s
        machine, handler = self.idle.pop(0) if self.idle else self._sandbox()
        self._network.calls[machine] = call
        self._network.counts["deliveries"] += len(entries)
        for entry in entries:
            entry.calls.append(call)
            self._network.say(
                f"{call.id} delivers {entry.id}, received {entry.receives}", machine.name
            )
        request_id = request_id or self._simulation.hexadecimal("request id")
        context = Invocation(
            lambda: self._simulation.now_ms, request_id=request_id, timeout_s=timeout_s
        )
        self._simulation.spawn(machine, partial(self._run, machine, handler, event, context))
        self._simulation.after(timeout_s, partial(self._time_out, machine, call))

    def _sandbox(self) -> tuple[Machine, Handler]:
        self._machines += 1
        machine = Machine(
            f"sandbox-{self._machines}", round((self._simulation.roll("skew") - 0.5) * 800)
        )
        machine.on_death = partial(self._died, machine)
        return machine, self._shop.handler()

    def _run(self, machine: Machine, handler: Handler, event: Any, context: Invocation) -> None:
        try:
            response = handler(event, context)
            ok = True
        except Exception as error:  # noqa: BLE001 - so does Lambda
            response = error
            ok = False
        if not machine.alive:
            raise Killed
        self.idle.append((machine, handler))
        self._ended(
            machine,
            f"returns {reprlib.repr(response)}" if ok else f"fails: {response!r}",
            ok,
            response,
        )

    def _time_out(self, machine: Machine, call: Call) -> None:
        if self._network.calls.get(machine) is not call:
            return
        if call.touched:
            self._network.excuse_all(call)
        elif machine in self._network.measured:
            words = "it was started without time enough to end, and timed out"
            self._network.broken.extend((entry.message.number, words) for entry in call.entries)
        self._simulation.kill(machine, "timed out")

    def _died(self, machine: Machine, why: str) -> None:
        self._network.counts[f"killed: {why}"] += 1
        self._network.killed |= {
            entry.message.number for entry in self._network.calls[machine].entries
        }
        self._ended(machine, f"DIES: {why}", False, why)

    def _ended(self, machine: Machine, words: str, ok: bool, response: Any) -> None:
        call = self._network.calls.pop(machine)
        for entry in call.entries:
            self._network.say(f"{call.id} of {entry.id} {words}", machine.name)
        self._simulation.after(0.001, partial(call.done, ok, response))


class Transport:
    """Holds messages until their handler has had them."""

    def __init__(self, network: Network, function: Function) -> None:
        self._network = network
        self._simulation = network.simulation
        self._function = function

    def send(self, entry: Entry) -> None:
        raise NotImplementedError

    def _give_up(self, entry: Entry, words: str) -> None:
        self._network.undelivered.append((entry, words))
        self._network.say(f"gives {entry.id} up: {words}", "transport")


class Queue(Transport):
    """An SQS queue, its mapping and its dead-letter queue.

    A received message is hidden for six timeouts of the function. After maxReceiveCount receives it
    goes to the dead-letter queue.
    """

    def __init__(self, network: Network, function: Function) -> None:
        super().__init__(network, function)
        self._hidden_s = network.plan.timeout_s * 6
        self._entries: list[Entry] = []

    def send(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._simulation.after(0.2 * self._simulation.roll("poll"), self._poll)

    def _poll(self) -> None:
        while self._function.is_free() and (batch := self._receive()):
            event = {"Records": [self._record(entry) for entry in batch]}
            self._function.invoke(batch, event, partial(self._done, batch))
            self._simulation.after(self._hidden_s + 0.001, self._poll)

    def _receive(self) -> list[Entry]:
        now_ms = self._simulation.now_ms
        size = self._network.plan.batch
        most = min(size, 1 + int(size * self._simulation.roll("sample") ** 0.5))
        batch: list[Entry] = []
        for entry in list(self._entries):
            if entry.visible_ms > now_ms or len(batch) == most:
                continue
            entry.receives += 1
            if entry.receives > self._network.plan.receives:
                self._entries.remove(entry)
                self._give_up(entry, "received too often")
                continue
            entry.visible_ms = now_ms + self._hidden_s * 1000
            batch.append(entry)
        return batch

    def _record(self, entry: Entry) -> Any:
        batch = sqs_event(body(entry), clock=lambda: entry.sent_ms, received=entry.receives)
        return batch["Records"][0] | {"messageId": entry.id}

    def _done(self, batch: list[Entry], ok: bool, response: Any) -> None:
        reported = response["batchItemFailures"] if ok and self._network.plan.reports else []
        ids = {failure["itemIdentifier"] for failure in reported}
        if ok:
            self._entries = [
                entry for entry in self._entries if entry not in batch or entry.id in ids
            ]
        self._poll()


class Invokes(Transport):
    """Asynchronous invokes with two retries; throttled ones retry for six hours.

    An operator's are synchronous.
    """

    def send(self, entry: Entry) -> None:
        if entry.kind != "invoked":
            self._invoke(entry, self._simulation.hexadecimal("request id"), 0)
        elif self._function.is_free():
            self._function.invoke([entry], self._event(entry), lambda ok, response: None)

    def _invoke(self, entry: Entry, request_id: str, throttled: int) -> None:
        if self._function.is_free():
            entry.receives += 1
            self._function.invoke(
                [entry], self._event(entry), partial(self._done, entry, request_id), request_id
            )
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
        event = eventbridge_event(detail, event_id=entry.id, clock=lambda: entry.sent_ms)
        if entry.kind == "invoked":  # with all fields it would count as EventBridge's
            del event["account"]
        return event | ({"replay-name": "again"} if entry.kind == "replayed" else {})


TRANSPORTS: Final[Mapping[str, type[Transport]]] = {"queue": Queue, "rule": Invokes}
