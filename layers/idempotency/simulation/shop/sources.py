"""What calls the handlers, by AWS's documented rules.

Sandboxes, queues, asynchronous invokes, shards of streams, and clients of an API.
"""

import json
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from carride_idempotency.testing import (
    Invocation,
    dynamodb_stream_event,
    eventbridge_event,
    http_event,
    kinesis_event,
    sqs_event,
)
from shop.handlers import SESSION, Handler, Shop
from shop.network import COMPANY, Call, Entry, ShopNetwork
from shop.plan import ORDERED, PASSING
from virtual_time.scheduler import Killed, Machine

_RETRY_ASYNC_AFTER_S: Final = (60.0, 120.0)
_ASYNC_LASTS_MS: Final = 6 * 3_600_000
_SHARD_LASTS_MS: Final = 3_600_000
"""The oldest record that a shard's mapping without a limit of retries still sends."""
_LONGEST_PAUSE_S: Final = 60.0
_MOST_TRIES: Final = 8
"""Of a client of the API, who then gives up."""
_SLACK_S: Final = 3.0
_CREATED: Final = 201
_REFUSED: Final = 422
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

    def __init__(self, network: ShopNetwork) -> None:
        self._network = network
        self._simulation = network.simulation
        self.shop = Shop(network)
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
        request_id = request_id or self._simulation.hexadecimal(f"request of {entries[0].id}")
        context = Invocation(
            lambda: self._simulation.now_ms, request_id=request_id, timeout_s=timeout_s
        )
        self._simulation.spawn(machine, partial(self._run, machine, handler, event, context))
        self._simulation.after(timeout_s, partial(self._time_out, machine, call))

    def _sandbox(self) -> tuple[Machine, Handler]:
        self._machines += 1
        machine = Machine(
            f"sandbox-{self._machines}", round((self._network.roll("skew") - 0.5) * 800)
        )
        machine.on_death = partial(self._died, machine)
        return machine, self.shop.handler()

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
        network = self._network
        if call.touched:
            network.excuse_all(call)
        elif self._is_usual(machine):
            words = "it was started without time enough to end, and timed out"
            network.broken.extend((entry.message.number, words) for entry in call.entries)
        else:
            # Nothing told how long it takes. On its last attempt a message has the time.
            network.excuse_all(call, f"{COMPANY} in {call.id}")
        self._simulation.kill(machine, "timed out")

    def _is_usual(self, machine: Machine) -> bool:
        """Return whether nine of ten recent runs took as long as those that run now."""
        lately = sorted(self._network.lately[machine])
        if not lately:
            return False
        usual_s = lately[math.ceil(0.9 * len(lately)) - 1]
        return all(message.work_s <= usual_s for message in self.shop.running_on(machine))

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
        if machine.alive:
            self._judge_starvation(call)
        self._simulation.after(0.001, partial(call.done, ok, response))

    def _judge_starvation(self, call: Call) -> None:
        """Judge that a call that has ended left nothing undone for which it had the time."""
        network = self._network
        plan = network.plan
        longest_s = max(message.work_s for message in plan.messages)
        had_time = call.busy_s + longest_s + _SLACK_S < plan.timeout_s
        for entry in call.entries:
            message = entry.message
            number = message.number
            if number in call.started or message.behaviour not in PASSING:
                continue
            if call.starved:
                network.deliveries_excused[number].add(call.id)
            is_behind = plan.source in ORDERED and number in _held_back(network, call)
            if call.touched or call.starved or is_behind or number in network.killed:
                continue
            if had_time:
                words = f"it was not started, though runs took {call.busy_s:.1f} s only"
                network.broken.append((number, words))


def _held_back(network: ShopNetwork, call: Call) -> set[int]:
    """Return which messages of a call may wait for others of their group that are not done."""
    held: set[int] = set()
    groups: set[int] = set()
    for entry in call.entries:
        message = entry.message
        if message.group in groups:
            held.add(message.number)
        elif message.number not in call.committed:
            groups.add(message.group)
    return held


class Source:
    """Holds messages until their handler has had them."""

    def __init__(self, network: ShopNetwork, function: Function) -> None:
        self._network = network
        self._simulation = network.simulation
        self._function = function
        self._line: list[Entry] = []
        """The messages that are not done, in the order of their arrival."""
        function.shop.overtaken = self._overtaken

    def send(self, entry: Entry) -> None:
        raise NotImplementedError

    def _give_up(self, entry: Entry, words: str) -> None:
        self._network.undelivered.append((entry, words))
        self._network.say(f"gives {entry.id} up: {words}", "source")

    def _overtaken(self, call: Call, number: int) -> int | None:
        """Return the message that a message of an ordered source has overtaken, if there is one."""
        network = self._network
        if network.plan.source not in ORDERED:
            return None
        own = next(entry for entry in call.entries if entry.message.number == number)
        dead = network.dead()
        for entry in self._line:
            if entry is own:
                return None
            other = entry.message
            if other.group != own.message.group or other.number == number:
                continue
            if not network.charges(other.number) and other.number not in dead:
                return other.number
        return None

    def _left(self, batch: Sequence[Entry], ok: bool, response: Any) -> list[Entry]:
        """Return which entries of a batch are not done, and excuse those that had to wait."""
        network = self._network
        left: list[Entry] = []
        if not ok:
            left = list(batch)
        elif network.plan.reports:
            ids = {failure["itemIdentifier"] for failure in response["batchItemFailures"]}
            left = [entry for entry in batch if entry.id in ids]
        call = batch[0].calls[-1]
        self._excuse_behind(call, left)
        has_answered = ok or isinstance(response, Exception)
        are_told_apart = len({entry.id for entry in batch}) == len(batch)
        if has_answered and are_told_apart:
            acknowledged = {entry.message.number for entry in batch if entry not in left}
            for number in sorted(call.committed - acknowledged):
                if call.id not in network.deliveries_excused[number]:
                    words = "its effect was committed, and it is to come again"
                    network.broken.append((number, words))
        return left

    def _excuse_behind(self, call: Call, left: Sequence[Entry]) -> None:
        """Excuse the deliveries of those behind another message of their group."""
        if self._network.plan.source not in ORDERED:
            return
        groups: set[int] = set()
        for entry in left:
            if entry.message.group in groups:
                self._network.deliveries_excused[entry.message.number].add(call.id)
            groups.add(entry.message.group)


class Queue(Source):
    """An SQS queue, its mapping and its dead-letter queue.

    A received message is hidden for six timeouts of the function. After maxReceiveCount receives it
    goes to the dead-letter queue. In a FIFO queue a group waits for those of its messages that are
    hidden.
    """

    def __init__(self, network: ShopNetwork, function: Function) -> None:
        super().__init__(network, function)
        self._hidden_s = network.plan.timeout_s * 6
        self._is_fifo = network.plan.source == "fifo"

    def send(self, entry: Entry) -> None:
        self._line.append(entry)
        self._simulation.after(0.2 * self._network.roll(f"poll {entry.id}"), self._poll)

    def _poll(self) -> None:
        while self._function.is_free() and (batch := self._receive()):
            event = {"Records": [self._record(entry) for entry in batch]}
            self._function.invoke(batch, event, partial(self._done, batch))
            self._simulation.after(self._hidden_s + 0.001, self._poll)

    def _receive(self) -> list[Entry]:
        now_ms = self._simulation.now_ms
        size = self._network.plan.batch
        most = min(size, 1 + int(size * self._network.roll("sample") ** 0.5))
        hidden = set[int]()
        if self._is_fifo:
            hidden = {entry.message.group for entry in self._line if entry.visible_ms > now_ms}
        batch: list[Entry] = []
        for entry in list(self._line):
            if entry.visible_ms > now_ms or entry.message.group in hidden or len(batch) == most:
                continue
            entry.receives += 1
            if entry.receives > self._network.plan.receives:
                self._line.remove(entry)
                self._give_up(entry, "received too often")
                continue
            entry.visible_ms = now_ms + self._hidden_s * 1000
            batch.append(entry)
        return batch

    def _record(self, entry: Entry) -> Any:
        attributes: dict[str, Any] = {}
        if self._is_fifo:
            attributes["MessageGroupId"] = f"group-{entry.message.group}"
        batch = sqs_event(
            body(entry), clock=lambda: entry.sent_ms, received=entry.receives, **attributes
        )
        record = batch["Records"][0] | {"messageId": entry.id}
        if self._is_fifo:
            record["eventSourceARN"] += ".fifo"
        return record

    def _done(self, batch: list[Entry], ok: bool, response: Any) -> None:
        left = self._left(batch, ok, response)
        self._line = [entry for entry in self._line if entry not in batch or entry in left]
        self._poll()


class Invokes(Source):
    """Asynchronous invokes with two retries; throttled ones retry for six hours.

    An operator's are synchronous.
    """

    def send(self, entry: Entry) -> None:
        if entry.kind != "invoked":
            self._invoke(entry, self._simulation.hexadecimal(f"request of {entry.id}"), 0)
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
            wait_s = min(300.0, 2.0**throttled) * (
                0.5 + self._network.roll(f"throttled {entry.id}")
            )
            self._simulation.after(wait_s, partial(self._invoke, entry, request_id, throttled + 1))

    def _done(self, entry: Entry, request_id: str, ok: bool, response: Any) -> None:
        self._left([entry], ok, {"batchItemFailures": []} if ok else response)
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


class Part(NamedTuple):
    """Records that a shard's mapping sends as a batch."""

    entries: list[Entry]
    tries: int = 0
    """How often it was sent in vain."""


class Shard(Source):
    """A shard of a stream and its mapping.

    Several batches are on their way at once, each with groups of its own. After a failure the
    mapping goes on from the first record that failed, so others come again. It waits for a batch to
    succeed, until its retries are used up or its records too old. A batch whose invocation failed
    may be cut in two, which uses up no retry.
    """

    def __init__(self, network: ShopNetwork, function: Function) -> None:
        super().__init__(network, function)
        self._waiting: list[list[Entry]] = [[] for _ in range(network.plan.parallel)]
        self._parts: list[list[Part]] = [[] for _ in range(network.plan.parallel)]
        self._is_busy = [False] * network.plan.parallel

    def send(self, entry: Entry) -> None:
        lane = entry.message.group % self._network.plan.parallel
        self._line.append(entry)
        self._waiting[lane].append(entry)
        self._simulation.after(
            0.2 * self._network.roll(f"poll {entry.id}"), partial(self._poll, lane)
        )

    def _poll(self, lane: int) -> None:
        if self._is_busy[lane]:
            return
        parts = self._parts[lane]
        waiting = self._waiting[lane]
        if not parts and waiting:
            size = self._network.plan.batch
            parts.append(Part(waiting[:size]))
            del waiting[:size]
        if not parts:
            return
        self._is_busy[lane] = True
        self._send_part(lane, parts.pop(0))

    def _send_part(self, lane: int, part: Part) -> None:
        if not self._function.is_free():
            self._simulation.after(1.0, partial(self._send_part, lane, part))
            return
        for entry in part.entries:
            entry.receives += 1
        event = {"Records": [self._record(entry) for entry in part.entries]}
        self._function.invoke(part.entries, event, partial(self._done, lane, part))

    def _record(self, entry: Entry) -> Any:
        def clock() -> int:
            return entry.sent_ms

        group = f"group-{entry.message.group}"
        record: Any
        if self._network.plan.source == "kinesis":
            record = kinesis_event(body(entry), partition_key=group, clock=clock)["Records"][0]
            record["kinesis"]["sequenceNumber"] = entry.id
        else:
            item = {"group": group, "body": body(entry)}
            record = dynamodb_stream_event(item, key="group", clock=clock)["Records"][0]
            record["dynamodb"]["SequenceNumber"] = entry.id
        record["eventID"] = entry.id
        return record

    def _done(self, lane: int, part: Part, ok: bool, response: Any) -> None:
        self._is_busy[lane] = False
        left = self._left(part.entries, ok, response)
        pause_s = 0.0
        if left:
            rest = part.entries[part.entries.index(left[0]) :]
            pause_s = self._again(lane, Part(rest, part.tries), part, ok)
        remaining = {id(entry) for each in self._parts[lane] for entry in each.entries}
        gone = {id(entry) for entry in part.entries} - remaining
        self._line = [entry for entry in self._line if id(entry) not in gone]
        self._simulation.after(pause_s, partial(self._poll, lane))

    def _again(self, lane: int, rest: Part, sent: Part, ok: bool) -> float:
        """Have the rest of a batch come again, or give it up; return after how many seconds."""
        plan = self._network.plan
        parts = self._parts[lane]
        middle = len(rest.entries) // 2
        if not ok and plan.bisects and middle:
            halves = rest.entries[:middle], rest.entries[middle:]
            parts[:0] = [Part(half, rest.tries) for half in halves]
            return 0.0
        # A checkpoint inside of the batch begins another one.
        tries = 0 if len(rest.entries) < len(sent.entries) else sent.tries + 1
        oldest_ms = self._simulation.now_ms - min(entry.sent_ms for entry in rest.entries)
        if plan.forever and oldest_ms > _SHARD_LASTS_MS:
            self._drop(rest, "too old")
            return 0.0
        if not plan.forever and tries > plan.receives:
            self._drop(rest, "retried too often")
            return 0.0
        parts.insert(0, Part(rest.entries, tries))
        return min(_LONGEST_PAUSE_S, 2.0 ** min(tries, 9))

    def _drop(self, part: Part, why: str) -> None:
        for entry in part.entries:
            self._give_up(entry, why)


class Clients(Source):
    """Clients of an HTTP API, who repeat a request under its key until they have an answer."""

    def send(self, entry: Entry) -> None:
        number = entry.message.number
        name = f"client of order-{number}"
        self._simulation.spawn(Machine(name), partial(self._ask, entry))

    def _ask(self, entry: Entry) -> None:
        network = self._network
        number = entry.message.number
        pause_s = 0.5
        for _ in range(_MOST_TRIES):
            status, content = self._try(entry)
            if status in (_CREATED, _REFUSED):
                network.answers[number].append((status, content))
                network.gave_up.discard(number)
                return
            if "request-given-up" in content or "answer-not-stored" in content:
                break
            network.simulation.sleep(pause_s * (0.5 + network.roll(f"pause {entry.id}")))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
        network.say(f"has no answer: {content[:100]}", f"client-{number}")
        if number not in network.answers:
            network.gave_up.add(number)

    def _try(self, entry: Entry) -> tuple[int, str]:
        """Send a request; return the status and the content of its answer."""
        network = self._network
        if not self._function.is_free():
            return 503, "no concurrency left"
        entry.receives += 1
        wake = network.simulation.waker()
        answers: list[tuple[bool, Any]] = []

        def done(ok: bool, response: Any) -> None:
            answers.append((ok, response))
            wake()

        body_of_order = json.loads(body(entry))
        request = http_event("POST", "/orders", body_of_order, key=f"order-{entry.message.number}")
        self._function.invoke([entry], request, done)
        patience_s = network.plan.timeout_s * (0.5 + network.roll(f"patience {entry.id}"))
        network.simulation.after(patience_s, wake)
        network.simulation.sleep(None)
        if not answers:
            network.deliveries_excused[entry.message.number].add(entry.calls[-1].id)
            return 504, "no answer in time"
        ok, response = answers[0]
        if not ok:
            return 502, str(response)
        self._judge_cookies(entry, response)
        return response["statusCode"], response["body"]

    def _judge_cookies(self, entry: Entry, response: Any) -> None:
        is_replayed = "idempotency-replayed" in {name.lower() for name in response["headers"]}
        if is_replayed and SESSION in response.get("cookies", ()):
            self._network.broken.append((entry.message.number, "a replay has the first cookie"))


SOURCES: Final[Mapping[str, type[Source]]] = {
    "queue": Queue,
    "fifo": Queue,
    "rule": Invokes,
    "kinesis": Shard,
    "stream": Shard,
    "http": Clients,
}
