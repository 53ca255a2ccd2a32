"""What carries events and requests: pipe, bus and rules, the queue's mapping, schedule, API."""

import base64
import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from greenlet import getcurrent

from carride_idempotency.testing import http_event, sqs_event
from carride_idempotency.testing.expressions import Item
from ops.fence import LOG_RULE
from tests.world.cloud import Cloud, Invoked
from tests.world.functions import Function, facts_in, id_in
from tests.world.patterns import matches
from tests.world.queues import Message, Queues, Reader
from tests.world.wiring import (
    ACCOUNT,
    Attempts,
    MappingSpec,
    PipeSpec,
    ScheduleSpec,
    Target,
)

_TWICE: Final = 0.1
_FAILS: Final = 0.1
"""The share of deliveries that fail at first, in light and heavy stories."""
_LONGEST_PAUSE_S: Final = 900.0
_PLACE: Final = re.compile(r"<(\$[\w.]+)>")
_SCHEDULED: Final = "<aws.scheduler.scheduled-time>"


class Retried:
    """One delivery that a service tries until it succeeds, or for as long as it may.

    Args:
        attempts: how often and how long.
        try_once: returns whether it succeeded.
        give_up: is told why, in the end.
    """

    def __init__(
        self,
        cloud: Cloud,
        name: str,
        attempts: Attempts,
        try_once: Callable[[], bool],
        give_up: Callable[[str], object],
    ) -> None:
        self._cloud = cloud
        self._name = name
        self._attempts = attempts
        self._try_once = try_once
        self._give_up = give_up
        self._began_s = cloud.now_s
        self._tries = 0

    def start(self) -> None:
        if self._try_once():
            return
        self._tries += 1
        pause_s = min(_LONGEST_PAUSE_S, 2.0**self._tries) * (
            0.5 + self._cloud.roll(f"pause {self._name}")
        )
        if self._tries > self._attempts.retries:
            self._give_up("the retries are exhausted")
        elif self._cloud.now_s + pause_s - self._began_s > self._attempts.oldest_s:
            self._give_up("the event is too old")
        else:
            self._cloud.simulation.after(pause_s, self.start)


class Bus:
    """The event bus and its rules.

    Attributes:
        published: every event that it accepted.
        accepted: is called with each of them.
    """

    def __init__(self, cloud: Cloud, queues: Queues, functions: Mapping[str, Function]) -> None:
        self._cloud = cloud
        self._queues = queues
        self._functions = functions
        self.published: list[dict[str, Any]] = []
        self.accepted: Callable[[Mapping[str, Any]], object] = lambda _: None
        self.copied: Callable[[Mapping[str, Any]], object] = lambda _: None
        """Is called with each event that the endpoint copies to the other region."""
        self.is_fenced = False

    def put(self, detail: Mapping[str, Any], source: str, detail_type: str, time: str) -> None:
        """Accept an event, and deliver it to the targets of the rules that it matches."""
        name = id_in(detail)
        number = int(self._cloud.roll(f"event {name}") * 16**12)
        event = {
            "version": "0",
            "id": f"00000000-0000-4000-8000-{number:012x}",
            "detail-type": detail_type,
            "source": source,
            "account": ACCOUNT,
            "time": time,
            "region": self._cloud.wiring.region,
            "resources": [],
            "detail": dict(detail),
        }
        self.published.append(event)
        self.copied(event)
        about = detail.get("attributes", detail)["type"]
        ride = detail.get("subject") or detail["data"]["orderID"]
        self._cloud.say(f"{about} of {ride}: {name}", "bus")
        self.take(event)

    def take(self, event: Mapping[str, Any]) -> None:
        """Archive an event that was published here or copied from the other region; deliver it."""
        self.accepted(event)
        self._route(event, self._cloud.wiring.rules)

    def _route(self, event: Mapping[str, Any], rules: Container[str]) -> None:
        """Deliver an event to the targets of those of some rules that it matches."""
        for rule in self._cloud.wiring.rules.values():
            is_on = rule.enabled and not (self.is_fenced and rule.name != LOG_RULE)
            if rule.name in rules and is_on and matches(rule.pattern, event):
                for target in rule.targets:
                    self._deliver(event, rule.name, target)

    def replay(self, event: Mapping[str, Any], name: str, rules: Container[str]) -> None:
        """Deliver an archived event once more, to those of some rules that it matches."""
        self._route({**event, "replay-name": name}, rules)

    def _deliver(self, event: Mapping[str, Any], rule: str, target: Target) -> None:
        unique = event["id"][-6:]
        if event["region"] != self._cloud.wiring.region:
            unique += f" {self._cloud.wiring.region}"
        if "replay-name" in event:  # draws of its own, so that it disturbs no first delivery
            unique += f" {event['replay-name']}"
        name = f"{id_in(event['detail'])} {unique} to {target.to}"
        times = 1 + self._cloud.happens("an event delivered twice", _TWICE, name)
        for copy in range(times):
            delivery = Retried(
                self._cloud,
                name,
                target.attempts,
                partial(self._hand_over, event, f"{name} copy {copy}", target.to),
                partial(self._dead_letter, event, rule, target),
            )
            self._cloud.simulation.after(self._cloud.delay_s("an event", name), delivery.start)

    def _hand_over(self, event: Mapping[str, Any], name: str, to: str) -> bool:
        """Hand an event to a target, and return whether that took it."""
        cloud = self._cloud
        if cloud.window("deliveries", name):
            return False
        fails = 0.0 if cloud.healed else _FAILS
        if cloud.happens("a target that refuses", fails, name):
            return False
        match cloud.wiring.resources.get(to):
            case "AWS::Lambda::Function":
                self._functions[to].send(event, name)
            case "AWS::SQS::Queue":
                self._queues.send(to, json.dumps(event))
            case "AWS::Logs::LogGroup":
                cloud.log("CarRideEvents", event)
            case _:
                cloud.counts[f"sent to {to}"] += 1
        return True

    def _dead_letter(self, event: Mapping[str, Any], rule: str, target: Target, why: str) -> None:
        if not target.attempts.dlq:
            self._cloud.counts[f"lost by {rule}"] += 1
            return
        said = {"DataType": "String", "StringValue": "THROTTLING"}
        told = {"DataType": "String", "StringValue": why}
        attributes = {"ERROR_CODE": said, "ERROR_MESSAGE": told}
        self._queues.send(target.attempts.dlq, json.dumps(event), attributes)


type Publish = Callable[[Mapping[str, Any], str, str, str], object]
"""Takes the detail of an event, its source, its detail type and its time."""


class Pipe:
    """Publishes the new items of a table, as its filter and its template say."""

    def __init__(self, cloud: Cloud, spec: PipeSpec, bus: Bus, queues: Queues) -> None:
        self._cloud = cloud
        self._spec = spec
        self.publish: Publish = lambda *event: bus.put(*event)  # noqa: PLW0108 - a saboteur replaces it
        self._is_stopped = False
        self._waiting: list[tuple[Mapping[str, Any], str]] = []
        """The records that came to their turn while the pipe was stopped."""
        self._queues = queues
        self._table = cloud.wiring.tables[spec.table].name

    def written(self, table: str, before: Item | None, after: Item | None) -> None:
        """Take a write of a table, as its stream shows it."""
        if table != self._table:
            return
        record = _record(before, after)
        if not any(matches(each, record) for each in self._spec.filters):
            return
        image = record["dynamodb"]["NewImage"]
        name = f"pipe {image['id']['S']}"
        times = 1 + self._cloud.happens("a record piped twice", _TWICE, name)
        for copy in range(times):
            self._pipe(record, f"{name} copy {copy}", self._cloud.delay_s("a record", name))

    def _pipe(self, record: Mapping[str, Any], name: str, after_s: float) -> None:
        delivery = Retried(
            self._cloud,
            name,
            self._spec.attempts,
            partial(self._put, record, name),
            partial(self._dead_letter, record),
        )
        self._cloud.simulation.after(after_s, delivery.start)

    def switch(self, *, on: bool) -> None:
        """Stop or start the pipe. Meanwhile the stream keeps its records."""
        self._is_stopped = not on
        waiting = self._waiting
        self._waiting = []
        for record, name in waiting:
            self._pipe(record, f"{name} again", self._cloud.delay_s("a record", name))

    def _put(self, record: Mapping[str, Any], name: str) -> bool:
        if self._is_stopped:
            self._waiting.append((record, name))
            return True
        if self._cloud.window("pipe", name):
            return False
        fails = 0.0 if self._cloud.healed else _FAILS
        if self._cloud.happens("a bus that refuses", fails, name):
            return False
        spec = self._spec
        filled = _PLACE.sub(lambda place: json.dumps(_value(record, place[1])), spec.template)
        source, detail_type, time = (
            str(_value(record, each)) for each in (spec.source, spec.detail_type, spec.time)
        )
        self.publish(json.loads(filled), source, detail_type, time)
        return True

    def _dead_letter(self, record: Mapping[str, Any], why: str) -> None:
        place = {"streamArn": "arn:aws:dynamodb:stream", "batchSize": 1}
        note = {
            "context": {"condition": why},
            "DDBStreamBatchInfo": place,
            "record": record["eventName"],
        }
        self._queues.send(self._spec.attempts.dlq, json.dumps(note))


def _record(before: Item | None, after: Item | None) -> dict[str, Any]:
    """Return a write as a stream's record: binary in base64."""
    kind = "MODIFY"
    if before is None:
        kind = "INSERT"
    if after is None:
        kind = "REMOVE"
    image = {
        name: {"B": base64.b64encode(value["B"]).decode()} if "B" in value else value
        for name, value in (after or {}).items()
    }
    return {"eventName": kind, "dynamodb": {"NewImage": image}}


def _value(record: Any, place: str) -> Any:
    """Return what is at a path like ``$.dynamodb.NewImage.type.S``; other texts are themselves."""
    if not place.startswith("$."):
        return place
    for name in place.removeprefix("$.").split("."):
        record = record.get(name) if isinstance(record, Mapping) else None
    return record


class QueueMapping:
    """Polls a queue for its function."""

    def __init__(self, cloud: Cloud, spec: MappingSpec, queues: Queues, function: Function) -> None:
        self._cloud = cloud
        self._spec = spec
        self._queues = queues
        self._queue = queues.by_name[spec.queue]
        self._queue.told = self.poll
        self._function = function
        self.is_off = False

    def poll(self) -> None:
        if self.is_off:
            return
        while self._function.busy < self._spec.concurrency:
            most = 1 + int(self._spec.batch * self._cloud.roll("batch") ** 0.5)
            most = min(most, self._spec.batch)
            if most < self._spec.batch:
                self._cloud.use("a batch that is not full")
            visible_s = self._queue.spec.visible_s
            reader = Reader(self._spec.function, _facts_of)
            batch = self._queues.receive(self._queue, most, visible_s, reader)
            if not batch:
                return
            self._cloud.simulation.after(visible_s + 0.01, self.poll)
            self._invoke(batch)

    def _invoke(self, batch: Sequence[Message]) -> None:
        records = []
        facts: list[str] = []
        for message in batch:
            made = sqs_event(message.body, clock=lambda: 0, received=message.receives)
            record = made["Records"][0]
            record["messageId"] = message.id
            record["attributes"]["SentTimestamp"] = str(message.sent_ms)
            records.append(record)
            facts += _facts_of(message)
        name = f"{self._spec.function} {facts[0]} of {len(facts)} receive {batch[0].receives}"
        invoked = Invoked(self._spec.function, name, facts)
        done = partial(self._done, batch)
        self._function.invoke({"Records": records}, invoked, name, done)

    def _done(self, batch: Sequence[Message], ok: bool, answer: Any) -> None:
        """Delete what succeeded; the rest becomes visible again in its time."""
        failed = set[str]()
        if ok and self._spec.reports:
            failed = {each["itemIdentifier"] for each in answer["batchItemFailures"]}
        if not ok:
            failed = {each.id for each in batch}
        deleted = {each.id for each in batch} - failed
        if deleted and self._cloud.happens("a delete that is lost", 0.02, min(deleted)):
            return
        self._queue.messages = [each for each in self._queue.messages if each.id not in deleted]


def _facts_of(message: Message) -> list[str]:
    return facts_in(json.loads(message.body))


class Schedule:
    """Invokes its function at its rate, until it is stopped."""

    def __init__(
        self, cloud: Cloud, spec: ScheduleSpec, function: Function, queues: Queues
    ) -> None:
        self._cloud = cloud
        self._spec = spec
        self._function = function
        self._queues = queues
        self.until_s = 0.0

    def start(self, until_s: float) -> None:
        """Run from now on until a time."""
        runs = self.until_s > self._cloud.now_s
        self.until_s = until_s
        if not runs and self._spec.enabled:
            self._tick()

    def _tick(self) -> None:
        if self._cloud.now_s >= self.until_s:
            return
        every_s = self._spec.every_s * self._cloud.story.ticks
        self._cloud.simulation.after(every_s, self._tick)
        time = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        event = json.loads(self._spec.input.replace(_SCHEDULED, time))
        name = f"tick {time}"
        delivery = Retried(
            self._cloud,
            name,
            self._spec.attempts,
            partial(self._run, event, name),
            lambda why: self._queues.send(self._spec.attempts.dlq, json.dumps(event)),
        )
        delivery.start()

    def _run(self, event: Mapping[str, Any], name: str) -> bool:
        if self._cloud.window("schedule", name):
            return False
        times = 1 + self._cloud.happens("a tick sent twice", _TWICE, name)
        for copy in range(times):
            self._function.send(event, f"{name} copy {copy}")
        return True


class Api:
    """The HTTP API: its routes, its timeout, and what its callers get."""

    def __init__(self, cloud: Cloud, function: Function) -> None:
        self._cloud = cloud
        self._function = function
        self._routes = {
            route: re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route))
            for route in cloud.wiring.routes
        }

    def ask(
        self, method: str, path: str, body: object, key: str, claims: Mapping[str, str]
    ) -> tuple[int, Any]:
        """Send one request and wait for its answer: a status and a body."""
        event = http_event(method, path, body, key=key)
        exact = [each for each in self._routes if each == f"{method} {path}"]
        found = exact or [
            route for route, each in self._routes.items() if each.fullmatch(f"{method} {path}")
        ]
        if not found:
            return 404, {}
        event["routeKey"] = found[0]
        given = self._routes[found[0]].fullmatch(f"{method} {path}")
        if given is not None and given.groupdict():
            event["pathParameters"] = given.groupdict()
        event["requestContext"]["authorizer"] = {"jwt": {"claims": dict(claims)}}
        number = int(self._cloud.roll(f"tries {key}") * 16**6)
        invoked = Invoked(self._function.spec.name, f"{key} {number:06x}", [key])
        task = getcurrent()
        answers: list[tuple[bool, Any]] = []

        def done(ok: bool, answer: Any) -> None:
            answers.append((ok, answer))
            task.resume()

        if self._is_lost("a request lost on its way from the client", invoked.name):
            return 503, {}
        self._function.invoke(event, invoked, invoked.name, done)
        self._cloud.simulation.sleep(None)
        ok, answer = answers[0]
        if not ok:
            return 500, {}
        if self._is_lost("an answer lost on its way to the client", invoked.name):
            return 503, {}
        return answer["statusCode"], json.loads(answer["body"])

    def _is_lost(self, what: str, name: str) -> bool:
        return not self._cloud.healed and self._cloud.happens(what, self._cloud.story.share, name)
