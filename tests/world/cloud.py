"""The world of one story: time, machines, and the way of each request with its faults."""

import os
from collections import Counter
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any, Final
from unittest.mock import patch

import time_machine
from botocore.exceptions import ClientError, ReadTimeoutError

import carride.consumer
import carride_api
import dispatch
import payment
import reconciler
from carride.dynamodb import DynamoDB
from carride.telemetry import logger
from carride_idempotency.errors import ConfigurationError
from carride_idempotency.observation import Observation
from carride_idempotency.stores.transport import NoAnswerError, ServiceError
from carride_idempotency.testing import FakeDynamoDB
from carride_idempotency.testing.expressions import InvalidRequestError, Item, Request
from stripe_gateway import StripeGateway
from tests.world.freedoms import FREEDOMS
from tests.world.story import OUTBOX, Story, Tier
from tests.world.wiring import Wiring
from virtual_time.network import (
    ANSWER_LOST,
    FAILED_AFTER,
    KILLED_AFTER,
    KILLED_BEFORE,
    LATE,
    REQUEST_LOST,
    SLOW,
    Network,
)
from virtual_time.scheduler import OUTSIDE, Machine, here

MOST_FAULTS: Final = 2
"""That an event meets at a consumer in a light story: one less than its attempts."""
_SHARES: Final = {"ReconcilerFunction": 0.1}
"""Each of its runs looks into 144 partitions of indexes, most of them empty."""
_SQS_SHARE: Final = 3.0
"""Functions send few messages, so that more of them meet a fault."""
_STALE: Final = 0.1
"""The share of eventually consistent reads that miss the latest writes, if there are any."""
_STALEST_MS: Final = 2_000
_LATE: Final = 0.03
"""The share of deliveries that are on their way for minutes."""
_FAILED: Final = ServiceError("InternalServerError", 500, "Internal server error", {})
_REFUSALS: Final = {
    "throttled": ServiceError("ThrottlingException", 400, "Rate exceeded", {}),
    "conflict": ServiceError(
        "TransactionCanceledException",
        400,
        "cancelled",
        {"CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict"}]},
    ),
    "failed before": _FAILED,
    FAILED_AFTER: _FAILED,
}
"""How DynamoDB refuses a request, by the kind of the fault."""
_KINDS: Final = (
    KILLED_BEFORE,
    KILLED_AFTER,
    REQUEST_LOST,
    ANSWER_LOST,
    LATE,
    SLOW,
    "throttled",
)
"""What may happen to a request to DynamoDB or SQS."""
_KINDS_OF_DYNAMODB: Final = (*_KINDS, "failed before", FAILED_AFTER)


class Invoked:
    """One invocation of a function, while it runs."""

    def __init__(self, function: str, name: str, facts: Sequence[str]) -> None:
        self.function = function
        self.name = name
        """The same in every run of a story."""
        self.facts = facts
        """What it works on: idempotency ids, or a request's key."""


class Cloud(Network):
    """Carries the requests of all machines.

    Attributes:
        counts: how often each freedom was used, each fault met, each outcome observed.
        running: the invocation of each machine.
        logs: the lines of each log group, by the consumer's name or ``bus``: time and content.

    Args:
        wiring: what is connected with what.
        story: what happens.
        kept: the names of the only freedoms and faults that may happen. Default: all.
        first: the other region of the same story, whose time and chance are shared.
    """

    timed = (DynamoDB, StripeGateway)

    def __init__(
        self,
        wiring: Wiring,
        story: Story,
        kept: Container[str] | None = None,
        first: "Cloud | None" = None,
    ) -> None:
        super().__init__(story.seed, None, kept, first.simulation if first else None)
        self.wiring = wiring
        self.story = story
        self.dynamodb = Tables(self)
        self.running: dict[Machine, Invoked] = {}
        self.logs: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        self.healed = story.tier is Tier.CALM
        self._met: Counter[tuple[str, str]] = Counter()
        self.second: Cloud | None = None
        """The secondary region of a story of two."""
        if first is not None:
            first.second = self
            self.counts = first.counts
            self.running = first.running
            self.used = first.used
            self.timeline = first.timeline
            self._met = first._met  # noqa: SLF001 - its twin

    @contextmanager
    def living(self) -> Generator[None]:
        """Have everything inside live in this world: its time, its chance, its services."""
        level = logger.log_level
        with (
            time_machine.travel(self.began_ms / 1000, tick=False) as traveller,
            ExitStack() as stack,
        ):
            # Asked when a time is read: moving it each time that the simulation moves takes longer.
            stack.enter_context(patch.object(traveller, "time_ns", self._now_ns))
            stack.enter_context(patch.object(os, "urandom", self._draw))
            stack.enter_context(patch.object(carride.consumer, "observe", self._observed))
            stack.enter_context(patch.object(carride_api, "observe", self._observed))
            for module in (dispatch, payment, reconciler):
                stack.enter_context(patch.object(module, "count", self._count))
            stack.enter_context(self.threads())
            stack.enter_context(self.installed())
            logger.setLevel("CRITICAL")
            try:
                with self.simulation.patched():
                    yield
            finally:
                logger.setLevel(level)

    # ── Time, chance and what is seen ─────────────────────────────────────────────────────────────

    def _now_ns(self) -> int:
        return self.simulation.now_ms * 1_000_000

    def doing(self) -> str:
        """Return what the running task does: the same text in every run of a story."""
        return self._doing(here())

    def _doing(self, machine: Machine) -> str:
        invoked = self.running.get(machine)
        return machine.name if invoked is None else invoked.name

    def use(self, freedom: str) -> None:
        """Count that a freedom was used; it has a row in `freedoms`."""
        self.counts[FREEDOMS[freedom].what] += 1

    def delay_s(self, what: str, label: str) -> float:
        """Return how long something is on its way: mostly a moment, sometimes minutes.

        ``what`` is an event, a record or an invocation.
        """
        if self.happens(f"{what} late by minutes", _LATE, label):
            return 600 * self.roll(f"minutes {label}")
        return 0.05 + 2 * self.roll(f"delay {label}") ** 4

    def say(self, text: str, who: str = "") -> None:
        """Add a line to the timeline."""
        self.timeline.append(f"{self.now_s:12.3f} s  {who or here().name:22} {text:.200}")

    def log(self, group: str, line: Mapping[str, Any]) -> None:
        self.logs.setdefault(group, []).append((self.simulation.now_ms, line))

    def _draw(self, count: int) -> bytes:
        who = self.doing()
        text = f"{who} {self.roll(f'bytes {who}')}"
        return blake2b(text.encode(), digest_size=count).digest()

    def _observed(self, seen: Observation) -> None:
        """Log what a consumer has observed, in the region of its process."""
        second = self.second
        is_there = second is not None and here().name.startswith(second.wiring.region)
        (second if second is not None and is_there else self)._observe(seen)  # noqa: SLF001 - its twin

    def _observe(self, seen: Observation) -> None:
        self.counts[f"outcome: {seen.outcome}"] += 1
        fields = seen._asdict()
        fields |= fields.pop("labels")
        line = {name: value for name, value in fields.items() if value is not None}
        self.log(seen.consumer, {"message": "delivery", **line})
        self.say(f"{seen.consumer} {seen.outcome} {seen.key} {seen.reason or ''}")

    def _count(self, service: str, metrics: Mapping[str, int], *_: object, **__: object) -> None:
        for name, number in metrics.items():
            self.counts[f"metric: {service} {name}"] += number

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def window(self, what: str, label: str) -> bool:
        """Return whether something meets a fault that lasts."""
        if self.healed:
            return False
        now_s = self.now_s
        for each in self.story.windows:
            is_met = each.what == what and each.begins_s <= now_s < each.ends_s
            if is_met and self.roll(f"window {label}") < each.share:
                self.use(f"window: {what}")
                return True
        return False

    def fault(self, service: str, kinds: Sequence[str], what: str, share: float) -> str:
        """Return the kind of the fault that the running invocation's request meets, or nothing."""
        invoked = self.running.get(here())
        if self.healed or invoked is None:
            return ""
        share *= _SHARES.get(invoked.function, 1.0)
        drawn = self.roll(f"fault {invoked.name} {what}")
        if drawn >= share:
            return ""
        kind = kinds[int(drawn / share * len(kinds))]
        name = f"{kind}: {invoked.name}, {what} ({drawn:.9f})"
        if not self._may_meet(invoked, name):
            return ""
        self.use(f"{service}: {kind}")
        self.say(f"{what} meets: {kind.upper()}")
        return kind

    def _may_meet(self, invoked: Invoked, called: str) -> bool:
        """Return whether a fault is allowed, and note it: in a light story few are."""
        if self.have_met_enough(invoked.function, invoked.facts):
            return False
        if not self.may_happen(called):
            return False
        self.note_fault(invoked.function, invoked.facts)
        return True

    def have_met_enough(self, function: str, facts: Iterable[str]) -> bool:
        """Return whether one of some facts may meet no further fault at a function."""
        if self.story.tier is Tier.HEAVY:
            return False
        return any(self._met[function, fact] >= MOST_FAULTS for fact in facts)

    def note_fault(self, function: str, facts: Iterable[str]) -> None:
        """Note that a function met a fault while it worked on some facts."""
        self._met.update((function, fact) for fact in facts)

    def has_met(self, function: str, facts: Iterable[str]) -> bool:
        """Return whether a function met a fault while it worked on one of some facts."""
        return any(self._met[function, fact] for fact in facts)

    def request(
        self, operation: str, request: Request, send: Callable[[str, Request], Any]
    ) -> Mapping[str, Any]:
        """Send a request to DynamoDB."""
        what = _about(operation, request)
        kinds: Sequence[str] = _KINDS_OF_DYNAMODB
        if operation == "TransactWriteItems":
            kinds = (*kinds, "conflict")
        perform = partial(self._sent, operation, request, send)
        return self.travel("DynamoDB", what, kinds, perform, NoAnswerError, _REFUSALS)

    def _sent(
        self, operation: str, request: Request, send: Callable[[str, Request], Any]
    ) -> Mapping[str, Any]:
        self._meet_a_full_outbox(operation, request)
        try:
            answer: Mapping[str, Any] = send(operation, request)
        except ConfigurationError as error:
            code = "ResourceNotFoundException"
            raise ServiceError(code, 400, str(error), {}) from error
        except InvalidRequestError as error:
            raise ServiceError("ValidationException", 400, str(error), {}) from error
        return answer

    def _meet_a_full_outbox(self, operation: str, request: Request) -> None:
        """Refuse a transaction while a table in it takes no writes."""
        if operation != "TransactWriteItems":
            return
        outbox = self.wiring.tables["OutboxTable"].name
        actions = [action for each in request["TransactItems"] for action in each.values()]
        is_full = [action["TableName"] == outbox for action in actions]
        if any(is_full) and self.window(OUTBOX, f"{self.doing()} writes"):
            reasons = [{"Code": "ThrottlingError" if each else "None"} for each in is_full]
            body = {"CancellationReasons": reasons}
            raise ServiceError("TransactionCanceledException", 400, "cancelled", body)

    def travel[T](
        self,
        service: str,
        what: str,
        kinds: Sequence[str],
        perform: Callable[[], T],
        lost: Callable[[str], Exception],
        refusals: Mapping[str, Exception],
    ) -> T:
        """Have a request travel, take place, and its answer travel back."""
        machine = here()
        if machine is OUTSIDE:
            return perform()
        doing = self._doing(machine)
        self.simulation.sleep(0.002 + 0.03 * self.roll(f"way {doing}") ** 3)
        if self.healed:
            return perform()
        if self.window(service, f"{doing} {what}"):
            self.give_up(lost("it is out of order"))
        share = self.story.share
        if service == "SQS":
            share *= _SQS_SHARE
        kind = self.fault(service, kinds, what, share)
        return self.carry(kind, what, perform, lost, refusals)

    # ── SQS, as a function's client ───────────────────────────────────────────────────────────────

    def send_letter(self, send: Callable[[], object], url: str) -> None:
        """Send a message to a queue from a function."""
        what = f"SendMessage {url.rpartition('/')[2]}"
        answer: Any = {"Error": {"Code": "RequestThrottled"}}
        refusals = {"throttled": ClientError(answer, "SendMessage")}
        self.travel("SQS", what, _KINDS, send, _no_answer, refusals)


def _no_answer(_: str) -> Exception:
    return ReadTimeoutError(endpoint_url="sqs")


class Tables(FakeDynamoDB):
    """The stack's tables. Requests travel, reads lag, and each write is told.

    Attributes:
        written: is called after each write with the table and the item before and after it.
        committed: is called after each transaction with all of its writes.
    """

    def __init__(self, cloud: Cloud) -> None:
        specs = cloud.wiring.tables.values()
        indexes = {name: keys for spec in specs for name, keys in spec.indexes.items()}
        super().__init__(
            {spec.name: spec.keys for spec in specs}, cloud.simulation, indexes=indexes
        )
        self._cloud = cloud
        self._latest: list[tuple[int, str, Item | None, Item | None]] = []
        self._as_of_ms: int | None = None
        self._written_ms: dict[str, int] = {}
        """When each table was written to last."""
        self.written: Callable[[str, Item | None, Item | None], object] = lambda *_: None
        self.committed: Callable[[Sequence[Any]], object] = lambda _: None

    def __call__(self, operation: str, request: Request, /) -> Mapping[str, Any]:
        return self._cloud.request(operation, request, self._take_place)

    def _take_place(self, operation: str, request: Request) -> Mapping[str, Any]:
        if not self._may_be_stale(operation, request) or here() is OUTSIDE:
            return super().__call__(operation, request)
        label = f"{self._cloud.doing()} {request['TableName']}"
        if not self._cloud.happens("a stale read", _STALE, label):
            return super().__call__(operation, request)
        lag_ms = int(_STALEST_MS * self._cloud.roll(f"lag {label}"))
        self._as_of_ms = self._cloud.simulation.now_ms - lag_ms
        try:
            return super().__call__(operation, request)
        finally:
            self._as_of_ms = None

    def _may_be_stale(self, operation: str, request: Request) -> bool:
        """Return whether a read may miss a write.

        Every read of an index is eventually consistent.
        """
        if operation not in {"GetItem", "Query", "Scan"} or request.get("ConsistentRead", False):
            return False
        written_ms = self._written_ms.get(request["TableName"], 0)
        return self._cloud.simulation.now_ms - written_ms < _STALEST_MS

    def replicate(self, table: str, item: Item, *, is_gone: bool) -> None:
        """Have a write of the other region take place here: unconditionally, as replicas do."""
        request = {"TableName": table, "Item": item, "Key": item}
        self._commit([self._prepared("Delete" if is_gone else "Put", request)])

    def all(self, table: str) -> list[Item]:
        """Return every item; for a stale read, as they were a moment ago."""
        items = super().all(table)
        if self._as_of_ms is None:
            return items
        for at_ms, name, before, after in reversed(self._latest):
            if at_ms <= self._as_of_ms:
                break
            if name == table:
                items = [item for item in items if item is not after]
                items += [] if before is None else [before]
        return items

    def find(self, request: Request) -> Item | None:
        """Return the item under a request's key; for a stale read, as it was a moment ago."""
        if self._as_of_ms is None:
            return super().find(request)
        key = self.key(request)
        for item in self.all(request["TableName"]):
            if self.key({"TableName": request["TableName"], "Key": item}) == key:
                return item
        return None

    def _commit(self, writes: Sequence[Any]) -> None:
        super()._commit(writes)
        now_ms = self._cloud.simulation.now_ms
        self._latest = [each for each in self._latest if each[0] > now_ms - _STALEST_MS]
        for write in writes:
            self._latest.append((now_ms, write.table, write.before, write.after))
            self._written_ms[write.table] = now_ms
        for write in writes:
            self.written(write.table, write.before, write.after)
        self.committed(writes)


def _about(operation: str, request: Request) -> str:
    """Return what a request is about: the same text in every run of a story."""
    actions = [request]
    if "TransactItems" in request:
        actions = [action for each in request["TransactItems"] for action in each.values()]
    first = actions[0]
    about = [operation, first.get("TableName", "").removeprefix("carride-")]
    key = first.get("Item") or first.get("Key")
    if key is None:
        return " ".join(about)
    for name in ("idempotencyKey", "orderID", "carID", "id"):
        if name in key:
            about.append(str(key[name].get("S")))
            break
    return " ".join(about)
