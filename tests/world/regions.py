"""Two regions of one stack: replicas, the endpoint, and a failover that an operator steers.

The commands of a failover are tested elsewhere (`tests/regions`). Here their steps are taken in
their order, while rides are driven: the endpoint is switched, the primary is fenced and drained,
its outbox is published again in the secondary, whose archive is then replayed. The way back is
taken when the rides have ended, and the secondary's letters are redriven.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from carride.region_fence import KNOWN_FOR, mark
from carride_idempotency.record import IN_PROGRESS
from ops import fence, outbox, replay
from ops.stack import FAILURES
from tests.world.aws import stack_of
from virtual_time.scheduler import Machine

if TYPE_CHECKING:
    from carride_idempotency.testing.expressions import Item
    from tests.world.run import World

_LATE: Final = 0.03
_LATEST_S: Final = 60.0
_POLL_S: Final = 30.0
_POLLS: Final = 100
_TRIES: Final = 40
_AGAIN_S: Final = 900.0
_ARCHIVED_IN_S: Final = replay.ARCHIVED_IN.total_seconds()


class Parameters:
    """A client of the Parameter Store, as fences use it."""

    class ParameterNotFoundError(Exception):
        """There is no such parameter."""

    exceptions = SimpleNamespace(ParameterNotFound=ParameterNotFoundError)

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def get_parameter(self, *, Name: str) -> dict[str, Any]:  # noqa: N803 - boto3's names
        if Name not in self._texts:
            raise self.ParameterNotFoundError
        return {"Parameter": {"Value": self._texts[Name]}}

    def put_parameter(self, *, Name: str, Value: str, **_: object) -> None:  # noqa: N803
        self._texts[Name] = Value

    def delete_parameter(self, *, Name: str) -> None:  # noqa: N803
        del self._texts[Name]


class Replication:
    """Carries the writes of each region to the other one. Of two writes to an item the later wins.

    Attributes:
        on_the_way: how many writes are.
    """

    def __init__(self, primary: "World", secondary: "World") -> None:
        self.on_the_way = 0
        self._cloud = primary.cloud
        self._stamps: dict[tuple[str, str, Any], tuple[int, int]] = {}
        self._number = 0
        self._applies = False
        for source, target in ((primary, secondary), (secondary, primary)):
            tables = source.cloud.dynamodb
            tables.written = partial(self._written, tables.written, source, target)

    def _written(
        self,
        tell: Any,
        source: "World",
        target: "World",
        table: str,
        before: "Item | None",
        after: "Item | None",
    ) -> None:
        tell(table, before, after)
        if self._applies:
            return
        self._number += 1
        stamp = (self._cloud.simulation.now_ms, self._number)
        item: Any = after or before
        key = source.cloud.dynamodb.key({"TableName": table, "Item": item})
        self._stamps[source.cloud.wiring.region, table, key] = stamp
        label = f"{source.cloud.wiring.region} {table} {key}"
        after_s = 0.2 + 1.5 * self._cloud.roll(f"replication {label}") ** 3
        if self._cloud.happens("a write that reaches the other region late", _LATE, label):
            after_s = _LATEST_S * self._cloud.roll(f"late replication {label}")
        self.on_the_way += 1
        arrive = partial(self._arrive, target, table, key, stamp, item, after is None)
        self._cloud.simulation.after(after_s, arrive)

    def _arrive(
        self,
        target: "World",
        table: str,
        key: Any,
        stamp: tuple[int, int],
        item: "Item",
        is_gone: bool,
    ) -> None:
        self.on_the_way -= 1
        name = (target.cloud.wiring.region, table, key)
        if self._stamps.get(name, (0, 0)) > stamp:
            self._cloud.use("a write that arrives after a later one")
            return
        self._stamps[name] = stamp
        with self._applying():
            target.cloud.dynamodb.replicate(table, item, is_gone=is_gone)

    @contextmanager
    def _applying(self) -> Iterator[None]:
        self._applies = True
        try:
            yield
        finally:
            self._applies = False


class Pair:
    """The primary, the secondary, and what is between them."""

    def __init__(self, primary: "World", secondary: "World") -> None:
        self.primary = primary
        self.secondary = secondary
        self.active = primary
        """Where producers publish, and people ask."""
        self._cloud = primary.cloud
        self._replication = Replication(primary, secondary)
        for source, target in ((primary, secondary), (secondary, primary)):
            source.bus.copied = partial(self._copy, target)
            for pipe in source.pipes:
                pipe.publish = self._publish

    # ── The endpoint ──────────────────────────────────────────────────────────────────────────────

    def _publish(self, detail: Mapping[str, Any], source: str, detail_type: str, time: str) -> None:
        self.active.bus.put(detail, source, detail_type, time)

    def _copy(self, target: "World", event: Mapping[str, Any]) -> None:
        """Copy an event to the other region's bus; no rule but that of the log takes it there."""
        self._cloud.use("an event copied to the other region")
        delay_s = self._cloud.delay_s("an event", f"copy {event['id']}")
        self._cloud.simulation.after(delay_s, partial(target.bus.take, event))

    def ask(self, *request: Any) -> tuple[int, Any]:
        """Send a request to the API of the region whose API people use."""
        return self.active.api.ask(*request)

    # ── The failover ──────────────────────────────────────────────────────────────────────────────

    def fail_over(self) -> None:
        """Move the processing to the secondary, as `./carride failover run` does."""
        simulation = self._cloud.simulation
        since = datetime.now(UTC) - timedelta(days=1)
        machine = Machine("operator-failover")
        simulation.spawn(machine, partial(self._fail_over, since))

    def _fail_over(self, since: datetime) -> None:
        self._cloud.say("fails over", "operator-failover")
        # The endpoint moves first, and its API when the secondary may work.
        for world in (self.primary, self.secondary):
            for pipe in world.pipes:
                pipe.publish = self.secondary.bus.put
        self._patiently(self._put_up_the_fence)
        self._drain()
        self._cloud.use("a failover")
        until = datetime.now(UTC)
        self.active = self.secondary
        stack = stack_of(self.secondary)
        region = self.primary.cloud.wiring.region
        self._patiently(lambda: outbox.republish(stack, region, since, until, _silent))
        for schedule in self.secondary.schedules:
            schedule.start(self.primary.schedules[0].until_s)
        self.primary.stop_schedules()
        self._cloud.simulation.sleep(_ARCHIVED_IN_S)
        replay.check(stack)
        name = replay.name_for(stack.region, datetime.now(UTC))
        replay.start(stack, name, since, until, replay.receivers(stack))
        pause = partial(self._cloud.simulation.sleep, _POLL_S)
        replay.handed_over(stack, name, sleep=lambda _: pause())

    def _patiently(self, step: Callable[[], object]) -> None:
        """Take a step; again after a while if a service is out of order."""
        for _ in range(_TRIES):
            with suppress(*FAILURES):
                step()
                return
            self._cloud.simulation.sleep(_AGAIN_S)
        self.primary.found.append("the failover did not come to its end")

    def _put_up_the_fence(self) -> None:
        primary = self.primary
        stack = stack_of(primary)
        if fence.fenced(stack) is None:
            fence.remember(stack, fence.Fence(since=datetime.now(UTC)))
        table = stack.outputs["OperatorTableName"]
        stack.client("dynamodb").put_item(TableName=table, Item=mark(stack.region))
        primary.switch(on=False)

    def _drain(self) -> None:
        """Wait until nothing runs in the primary, no lease holds, and its writes are replicated."""
        specs = self._cloud.wiring.functions.values()
        longest_s = max(spec.timeout_s for spec in specs) + KNOWN_FOR.total_seconds()
        self._cloud.simulation.sleep(longest_s)
        for _ in range(_POLLS):
            self._cloud.simulation.sleep(_POLL_S)
            if not (self._is_busy() or self._replication.on_the_way or self._is_held()):
                return
        self.primary.found.append("the primary is not drained")

    def _is_busy(self) -> bool:
        """Return whether a function of the primary runs."""
        return any(each.busy for each in self.primary.functions.values())

    def _is_held(self) -> bool:
        """Return whether a lease of the primary has not ended."""
        now_ms = self._cloud.simulation.now_ms
        for table in ("IdempotencyTable", "RideHistoryTable"):
            found: list[dict[str, Any]] = self.primary.table(table)
            for record in found:
                is_claimed = record.get("status") == IN_PROGRESS
                if is_claimed and record.get("leaseExpiry", 0) > now_ms:
                    return True
        return False

    @property
    def has_failed_over(self) -> bool:
        """Return whether the primary is fenced."""
        return fence.fenced(stack_of(self.primary)) is not None

    def go_back(self) -> None:
        """Have the primary work again in a world at rest, as `./carride failover back` does."""
        self.secondary.stop_schedules()
        stack = stack_of(self.primary)
        table = stack.outputs["OperatorTableName"]
        stack.client("dynamodb").delete_item(TableName=table, Key=mark(stack.region))
        self.primary.switch(on=True)
        self.active = self.primary
        for world in (self.primary, self.secondary):
            for pipe in world.pipes:
                pipe.publish = self._publish
        fence.forget(stack)

    # ── In the end ────────────────────────────────────────────────────────────────────────────────

    def differences(self) -> Iterator[str]:
        """Yield each table whose replicas differ."""
        for name, spec in self._cloud.wiring.tables.items():
            here, there = (
                {tables.key({"TableName": spec.name, "Item": item}): item for item in found}
                for tables in (self.primary.cloud.dynamodb, self.secondary.cloud.dynamodb)
                for found in (tables.all(spec.name),)
            )
            if here != there:
                keys = {key for key in here | there if here.get(key) != there.get(key)}
                yield f"the replicas of {name} differ in {sorted(keys)}"


def _silent(_: str) -> None:
    """Say nothing."""
