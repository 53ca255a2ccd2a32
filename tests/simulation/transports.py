"""What calls the handlers, by AWS's documented rules: sandboxes, queues, asynchronous invokes, streams and callers."""

import base64
import json
import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from idempotency.errors import ResultOmittedError
from tests.simulation.engine import EPOCH_MS, Killed, Machine, Simulation, current
from tests.simulation.handlers import Handler, Shop
from tests.simulation.network import Entry, Invocation, Network
from tests.simulation.plan import CALLS, PASSING, Plan, Version

_SIDE_BY_SIDE_S: Final = 120.0
_RETRY_ASYNC_AFTER_S: Final = (60.0, 120.0)
_ASYNC_LASTS_MS: Final = 6 * 3_600_000.0
_MOST_CALLS: Final = 4


class Context:
    """Lambda's context object: its own clock does not jump."""

    def __init__(self, simulation: Simulation, request_id: str, deadline_ms: float) -> None:
        self.aws_request_id = request_id
        self._simulation = simulation
        self._deadline_ms = deadline_ms

    def get_remaining_time_in_millis(self) -> int:
        """Return how much time is left."""
        return max(0, int(self._deadline_ms - self._simulation.now_ms))


class Function:
    """A Lambda function with its sandboxes; or, without a timeout, a service with its containers."""

    def __init__(self, plan: Plan, simulation: Simulation, network: Network, shop: Shop) -> None:
        self._plan = plan
        self._simulation = simulation
        self._network = network
        self._shop = shop
        self._idle: list[tuple[Machine, Version, Handler]] = []
        self._made = 0
        self._calls = 0

    def is_free(self) -> bool:
        """Whether its concurrency allows one more invocation."""
        return self._network.healed or len(self._network.invocations) < self._plan.sandboxes

    def invoke(
        self, entries: list[Entry], event: Any, done: Callable[[bool, Any], None], request_id: str | None = None
    ) -> None:
        """Start an invocation; ``done`` is told whether it succeeded, and its response."""
        simulation = self._simulation
        self._calls += 1
        sandbox = self._sandbox()
        machine = sandbox[0]
        timeout_s = self._plan.timeout_s or 86_400
        call = Invocation(f"call-{self._calls}", entries, done, simulation.now_ms + timeout_s * 1000)
        self._network.invocations[machine] = call
        for entry in entries:
            entry.invocations.append(call)
            self._network.notes.counts["deliveries"] += 1
            simulation.say(
                machine.name, entry.message.number, f"{call.id} delivers {entry.id}, received {entry.receives}"
            )
        if self._network.is_wild(machine):
            self._network.disturb(call)
        request_id = request_id or f"{int(simulation.roll('request id') * 16**8):08x}"
        simulation.spawn(machine, partial(self._run, sandbox, event, Context(simulation, request_id, call.deadline_ms)))
        if self._plan.timeout_s:
            simulation.after(timeout_s, partial(self._time_out, machine, call))

    def deploy_again(self) -> None:
        """Let no sandbox serve any longer that is idle now."""
        self._idle.clear()

    def _sandbox(self) -> tuple[Machine, Version, Handler]:
        now_s = self._simulation.now_ms / 1000
        deployed = [version for version in self._plan.versions if version.at_s <= now_s]
        version = deployed[-1]
        if len(deployed) > 1 and now_s < version.at_s + _SIDE_BY_SIDE_S and self._simulation.roll("version") < 0.5:
            version = deployed[-2]
        for sandbox in self._idle:
            if sandbox[1] is version:
                self._idle.remove(sandbox)
                return sandbox
        self._made += 1
        machine = Machine(f"sandbox-{self._made}", (self._simulation.roll("skew") - 0.5) * 800)
        machine.on_death = partial(self._died, machine)
        return machine, version, self._shop.handler(version)

    def _run(self, sandbox: tuple[Machine, Version, Handler], event: Any, context: Context) -> None:
        machine = sandbox[0]
        try:
            response = sandbox[2](event, context)
            ok = True
        except Exception as error:  # noqa: BLE001 - so does Lambda
            response, ok = error, False
        if not machine.alive:
            raise Killed
        self._idle.append(sandbox)
        self._ended(machine, ok=ok, response=response)

    def _time_out(self, machine: Machine, call: Invocation) -> None:
        if self._network.invocations.get(machine) is call:
            notes = self._network.notes
            waits = any(version.waits for version in self._plan.versions)  # with the time of the invocation
            if call.touched or waits or len({entry.message.work_s for entry in call.entries}) > 1:
                notes.excuse_all(call, f"fault in {call.id}")
            else:
                started = "it was started without time enough to end, and timed out"
                notes.broken.extend((entry.message.number, started) for entry in call.entries)
            self._simulation.kill(machine, "timed out")

    def _died(self, machine: Machine, why: str) -> None:
        call = self._network.invocations[machine]
        self._network.notes.counts[f"killed: {why}"] += 1
        for entry in call.entries:
            self._network.notes.killed.add(entry.message.number)
            self._simulation.say(machine.name, entry.message.number, f"DIES with {call.id}: {why}")
        self._ended(machine, ok=False, response=why)

    def _ended(self, machine: Machine, *, ok: bool, response: Any) -> None:
        call = self._network.invocations.pop(machine)
        for entry in call.entries:
            words = f"returns {reprlib.repr(response)}" if ok else f"fails: {response!r}"
            self._simulation.say(machine.name, entry.message.number, f"{call.id} {words}")
        self._simulation.after(0.001, partial(call.done, ok, response))


class Transport(Protocol):
    """Holds messages until their handler has had them."""

    def send(self, entry: Entry) -> None:
        """Accept a message."""
        ...


def open_transport(plan: Plan, simulation: Simulation, network: Network, function: Function) -> Transport:
    """Open the transport of a world."""
    kind = (
        Queue if plan.world in ("queue", "fifo") else Stream if plan.world in ("kinesis", "stream", "kafka") else None
    )
    return (kind or (Callers if plan.world in CALLS else Invokes))(plan, simulation, network, function)


class _Base:
    def __init__(self, plan: Plan, simulation: Simulation, network: Network, function: Function) -> None:
        self._plan = plan
        self._simulation = simulation
        self._network = network
        self._function = function

    def _give_up(self, entry: Entry, words: str) -> None:
        self._network.notes.undelivered.append((entry, words))
        self._simulation.say("transport", entry.message.number, f"gives {entry.id} up: {words}")

    def _failed(self, entries: list[Entry], ok: bool, response: Any) -> list[Entry]:
        """Return which entries of a batch are to be sent again."""
        self._excuse_held_back(entries)
        if not ok or not self._plan.reports:
            return [] if ok else entries
        ids = {failure["itemIdentifier"] for failure in response["batchItemFailures"]}
        return [entry for entry in entries if entry.id in ids]

    def _excuse_held_back(self, entries: list[Entry]) -> None:
        """Excuse each entry that has one before it, in its group, which may have failed: that one holds it back."""
        excused = self._network.notes.deliveries_excused
        held_back: set[object] = set()
        for entry in entries:
            group = 0 if self._plan.world == "kafka" else entry.message.group
            call = entry.invocations[-1]
            if self._plan.world != "queue" and group in held_back:
                self._network.notes.excuse(call, entry.message.number)
            if entry.message.behaviour not in PASSING or call.id in excused[entry.message.number]:
                held_back.add(group)


class Queue(_Base):
    """An SQS queue, its mapping and its dead-letter queue.

    A message is hidden for six timeouts of the function when it is received, and goes to the dead-letter queue instead
    of being received once more than maxReceiveCount. In a FIFO queue a group waits for those of its messages that are
    being worked on.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._entries: list[Entry] = []

    def send(self, entry: Entry) -> None:
        """Accept a message."""
        self._entries.append(entry)
        self._simulation.after(0.02 * self._simulation.roll("poll"), self._poll)

    def _poll(self) -> None:
        while self._function.is_free() and (batch := self._receive()):
            event = {"Records": [self._record(entry) for entry in batch]}
            self._function.invoke(batch, event, partial(self._done, batch))
            self._simulation.after(self._plan.timeout_s * 6 + 0.001, self._poll)

    def _receive(self) -> list[Entry]:
        now_ms = self._simulation.now_ms
        fifo = self._plan.world == "fifo"
        held = {entry.message.group for entry in self._entries if entry.visible_ms > now_ms} if fifo else set()
        batch: list[Entry] = []
        most = 1 + int(self._plan.batch * self._simulation.roll("sample") ** 0.5)
        for entry in list(self._entries):
            if entry.visible_ms > now_ms or entry.message.group in held or len(batch) == min(most, self._plan.batch):
                continue
            entry.receives += 1
            if entry.receives > self._plan.receives:
                self._entries.remove(entry)
                self._give_up(entry, "received too often")
                continue
            entry.visible_ms = now_ms + self._plan.timeout_s * 6000
            batch.append(entry)
        return batch

    def _record(self, entry: Entry) -> dict[str, Any]:
        attributes = {
            "ApproximateReceiveCount": str(entry.receives),
            "SentTimestamp": str(int(EPOCH_MS + entry.sent_ms)),
        }
        if self._plan.world == "fifo":
            attributes["MessageGroupId"] = str(entry.message.group)
        return {"messageId": entry.id, "body": body(entry), "attributes": attributes}

    def _done(self, batch: list[Entry], ok: bool, response: Any) -> None:
        failed = self._failed(batch, ok, response)
        self._entries = [entry for entry in self._entries if entry not in batch or entry in failed]
        self._poll()


class Invokes(_Base):
    """Asynchronous invokes, with two retries, and of throttled ones for six hours; EventBridge's rules make them.

    A rule that delivers an event twice makes a request of its own each time.
    """

    def send(self, entry: Entry) -> None:
        """Accept an event."""
        drawn = f"{int(self._simulation.roll('request id') * 16**8):08x}"
        self._invoke(entry, entry.id if self._plan.world == "async" else drawn, 0)

    def call(self, entry: Entry) -> None:
        """Have an operator invoke the function by hand, once."""
        if self._function.is_free():
            self._function.invoke([entry], self._event(entry), lambda ok, response: None)

    def _invoke(self, entry: Entry, request_id: str, throttled: int) -> None:
        if not self._function.is_free():
            if self._simulation.now_ms - entry.sent_ms > _ASYNC_LASTS_MS:
                self._give_up(entry, "throttled too long")
                return
            wait_s = min(300.0, 2.0**throttled) * (0.5 + self._simulation.roll("throttled"))
            self._simulation.after(wait_s, partial(self._invoke, entry, request_id, throttled + 1))
            return
        entry.receives += 1
        self._function.invoke([entry], self._event(entry), partial(self._done, entry, request_id), request_id)

    def _done(self, entry: Entry, request_id: str, ok: bool, response: Any) -> None:
        if ok:
            return
        if entry.receives > len(_RETRY_ASYNC_AFTER_S):
            self._give_up(entry, f"{response}")
        else:
            after_s = _RETRY_ASYNC_AFTER_S[entry.receives - 1]
            self._simulation.after(after_s, partial(self._invoke, entry, request_id, 0))

    def _event(self, entry: Entry) -> dict[str, Any]:
        event = {
            "version": "0",
            "id": entry.id,
            "detail-type": "Order",
            "source": "shop",
            "account": "123456789012",
            "time": f"2027-01-15T08:{int(entry.sent_ms / 60_000) % 60:02}:{int(entry.sent_ms / 1000) % 60:02}Z",
            "region": "eu-west-1",
            "resources": [],
            "detail": {"data": json.loads(body(entry))},
        }
        if entry.by_hand:  # EventBridge leaves no field out; whoever leaves none out either passes for EventBridge
            del event["account"]
        return event | ({"replay-name": "again"} if entry.replayed else {})


class Stream(_Base):
    """One shard of Kinesis or of a DynamoDB stream, or one partition of Kafka, read in order and batch by batch.

    A failed batch is sent again until its retries are used up, with longer and longer pauses, and then goes to the
    on-failure destination. With partial reports all that comes after the lowest failure is sent again. A batch that
    fails as a whole can be bisected, which costs no retry.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unread: list[Entry] = []
        self._batches: list[tuple[list[Entry], int]] = []
        self._busy = False

    def send(self, entry: Entry) -> None:
        """Accept a record."""
        self._unread.append(entry)
        self._simulation.after(0.2 * self._simulation.roll("poll"), self._poll)

    def _poll(self) -> None:
        if self._busy or not (self._batches or self._unread):
            return
        if not self._function.is_free():
            self._simulation.after(1.0, self._poll)
            return
        if not self._batches:
            self._batches.append((self._unread[: self._plan.batch], 0))
            del self._unread[: self._plan.batch]
        self._busy = True
        batch, tries = self._batches.pop(0)
        for entry in batch:
            entry.receives += 1
        records = [self._record(entry) for entry in batch]
        event = {"records": {"orders-0": records}} if self._plan.world == "kafka" else {"Records": records}
        self._function.invoke(batch, event, partial(self._done, batch, tries))

    def _record(self, entry: Entry) -> dict[str, Any]:
        text = body(entry)
        data = base64.b64encode(text.encode()).decode()
        at_ms = int(EPOCH_MS + entry.sent_ms)
        group = f"group-{entry.message.group}"
        if self._plan.world == "kafka":
            return {"topic": "orders", "partition": 0, "offset": entry.id, "timestamp": at_ms, "value": data}
        if self._plan.world == "kinesis":
            kinesis = {"data": data, "sequenceNumber": entry.id, "partitionKey": group}
            return {"eventID": entry.id, "kinesis": kinesis | {"approximateArrivalTimestamp": at_ms / 1000}}
        image = {"Keys": {"group": {"S": group}}, "NewImage": {"body": {"S": text}}, "SequenceNumber": entry.id}
        return {"eventID": entry.id, "dynamodb": image | {"ApproximateCreationDateTime": at_ms / 1000}}

    def _done(self, batch: list[Entry], tries: int, ok: bool, response: Any) -> None:
        self._busy = False
        failed = self._failed(batch, ok, response)
        pause_s = 0.0
        if failed:
            rest = batch[batch.index(failed[0]) :]
            for entry in rest:  # what was done is sent again, too
                if entry not in failed:
                    self._network.notes.excuse(entry.invocations[-1], entry.message.number)
            tries = 0 if len(rest) < len(batch) else tries + 1
            middle = len(rest) // 2
            if not ok and self._plan.bisects and middle:
                self._batches[:0] = [(rest[:middle], tries - 1), (rest[middle:], tries - 1)]
            elif tries > self._plan.receives:
                for entry in rest:
                    self._give_up(entry, "retries exhausted")
            else:
                self._batches.insert(0, (rest, tries))
                pause_s = min(60.0, 2.0**tries)
        self._simulation.after(pause_s, self._poll)


class Callers(_Base):
    """Synchronous callers: each waits for a while, calls again a few times, and gives up."""

    def send(self, entry: Entry) -> None:
        """Start calling."""
        self._simulation.spawn(Machine("caller"), partial(self._call, entry))

    def _call(self, entry: Entry) -> None:
        notes = self._network.notes
        usual_s = self._plan.timeout_s or 60.0
        for again in range(_MOST_CALLS):
            answers: list[tuple[bool, Any]] = []
            task = current()

            def done(ok: bool, response: Any, answers: list[tuple[bool, Any]] = answers, task: Any = task) -> None:
                answers.append((ok, response))
                if not task.dead:
                    self._simulation.wake(task)

            if self._function.is_free():
                entry.receives += 1
                self._function.invoke([entry], json.loads(body(entry)), done)
                self._simulation.sleep(usual_s * (0.3 + self._simulation.roll("patience")))
            ok, response = answers[0] if answers else (False, None)
            if ok or isinstance(response, ResultOmittedError):
                notes.results.extend((entry.message.number, result) for result in (response if ok else ()))
                notes.gave_up.discard(entry.message.number)
                return
            notes.gave_up.add(entry.message.number)
            self._simulation.sleep(usual_s * 0.5 * (again + 1))


_UNREADABLE: Final[Mapping[str, str]] = {
    "nested": "[" * 20_000,
    "typo": '{"order": {"order-%d": 1}}',
    "keyless": '{"about": "order-%d"}',
    "overflow": '{"order": "order-%d", "occurred": 1e18}',
}


def body(entry: Entry) -> str:
    """Return what the producer wrote."""
    message = entry.message
    if message.behaviour in _UNREADABLE:
        text = _UNREADABLE[message.behaviour]
        return text % message.number if "%" in text else text
    content = {"order": f"order-{message.number}", "occurred": message.at_s, "expires": message.expires_s}
    return json.dumps(content)
