"""Moves the processing of events from the primary region to the secondary, and back.

The health check of the global endpoint reports latency: the primary is late, not dead. It will
deliver the events that it has accepted, and neither region's consumers see at once what the others
have done. The secondary therefore receives the events of the lost window only when the primary is
stopped, its running work has ended, and everything that it wrote has arrived in the secondary.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from carride_idempotency import Policy
from carride_idempotency.record import IN_PROGRESS
from ops import fence, outbox, replay, replicas, tables
from ops.fence import Fence
from ops.replay import ARCHIVED_IN
from ops.stack import FAILURES, OperatorError, StackRef, reason
from ops.verbs import Span

LOST_WINDOW: Final = timedelta(hours=24)
"""EventBridge retries for that long: an older event has been delivered, or lies in a dead-letter
queue."""

_POLL_SECONDS: Final = 1.0
_NO_HEALTH_CHECK: Final = "none"


class Patience(NamedTuple):
    """How long a failover waits."""

    runs_end_in: Span | None = None
    """How long running invocations may take; by default the longest timeout of the functions."""
    archived_in: Span = ARCHIVED_IN
    """How long archiving an event may take."""
    catches_up_in: Span = timedelta(minutes=30)
    """How long leases may take to end, and both regions' tables to be compared."""


PATIENCE: Final = Patience()


class Outcome(NamedTuple):
    """What a failover has done."""

    drained: bool
    """False if the primary could not be fenced and drained, and duplicates were accepted."""
    compared: int
    """Items of tables that were the same in both regions."""
    outbox: outbox.Republished
    replay: str
    """Name of the replay of the secondary's archive."""


class RegionState(NamedTuple):
    """What one region does; with a problem, fence and unfinished replays are not known."""

    region: str
    role: str
    fenced_since: datetime | None = None
    replays: tuple[str, ...] = ()
    problem: str | None = None


def states(primary: StackRef, secondary: StackRef) -> tuple[RegionState, RegionState]:
    """Return what both regions of a stack do. A region that cannot be asked says why."""

    def state(stack: StackRef, role: str) -> RegionState:
        try:
            put_up = fence.fenced(stack)
            since = put_up.since if put_up else None
            return RegionState(stack.region, role, since, tuple(replay.unfinished(stack)))
        except FAILURES as error:
            return RegionState(stack.region, role, problem=reason(error))

    return state(primary, "primary"), state(secondary, "secondary")


@dataclass(frozen=True)
class Failover:
    """A failover between the regions of a stack. An interrupted one continues when it is run again."""

    primary: StackRef
    secondary: StackRef
    report: Callable[[str], None] = print
    sleep: Callable[[float], None] = time.sleep

    def plan(self, since: datetime, until: datetime | None = None) -> list[str]:
        """Return the steps of a failover, in words."""
        here, there = self.primary.region, self.secondary.region
        window = f"from {since:%Y-%m-%d %H:%M:%S %Z} until {until or 'the end of the drain'}"
        return [
            f"steer: the endpoint's health check is forced to unhealthy, so that all producers use {there}",
            f"fence {here}: rules, schedule, event source mappings and pipe stop; no function has concurrency",
            f"drain {here}: running work ends, leases expire, every item of every table arrives in {there}",
            f"republish in {there} what was written to the outbox in {here} {window}",
            f"replay the archive of {there} for the same time; consumers recognise what has taken effect",
            f"start the reconciler's schedule in {there}",
        ]

    def run(
        self,
        since: datetime,
        until: datetime | None = None,
        patience: Patience = PATIENCE,
        *,
        accept_duplicates: bool = False,
    ) -> Outcome:
        """Fail over. If the primary cannot be fenced or drained, go on only with ``accept_duplicates``.

        By default the lost window ends with the drain, because some producers learn late that they
        are steered away.
        """
        here, there = self.primary.region, self.secondary.region
        compared, drained, schedules = 0, False, tuple(self.secondary.named(fence.SCHEDULE))
        try:
            self.report(f"steering producers to {there}, then fencing {here}")
            self._steer(away=True)
            put_up = fence.put_up(self.primary, datetime.now(UTC))
            compared, drained, schedules = (
                self.drain(put_up, since, patience),
                True,
                put_up.schedules,
            )
        except FAILURES as error:
            if not accept_duplicates:
                raise OperatorError(
                    f"{here} could not be fenced and drained, and nothing was republished or replayed: "
                    f"{reason(error)}. Wait for {here}: that loses nothing and doubles nothing. --accept-duplicates "
                    f"continues now, and events that {here} processes as well take effect twice"
                ) from error
            self.report(
                f"{here} is not fenced and drained ({reason(error)}); duplicates are accepted"
            )
        until = until or datetime.now(UTC)
        _check_no_replay(self.secondary)
        republished = outbox.republish(self.secondary, here, since, until, self.report)
        archived = until + patience.archived_in
        if (left := (archived - datetime.now(UTC)).total_seconds()) > 0:
            self.report(
                f"waiting until {archived:%H:%M:%S}, when the archive has the window's last events"
            )
            self.sleep(left)
        name = replay.name_for(there, datetime.now(UTC))
        self.report(f"replaying the archive of {there}: {name}")
        replay.start(self.secondary, name, since, until, [])
        replay.handed_over(self.secondary, name, sleep=self.sleep)
        self.report(f"starting the reconciler's schedule in {there}")
        fence.switch_schedules(self.secondary, schedules, on=True)
        return Outcome(drained, compared, republished, name)

    def drain(self, put_up: Fence, since: datetime, patience: Patience) -> int:
        """Wait until the primary's work has ended and what it wrote since the trouble began has arrived."""
        given = patience.runs_end_in
        longest = (
            fence.longest_run(self.primary, put_up) if given is None else given.total_seconds()
        )
        # Counted from now: an interrupted fence stops everything only when it is put up again.
        if longest > 0:
            self.report(f"waiting {longest:.0f} s for running invocations")
            self.sleep(longest)
        deadline = time.monotonic() + patience.catches_up_in.total_seconds()
        self.report("waiting for pipe and mappings to stop, and for leases to end")
        while running := self._running(put_up):
            if time.monotonic() > deadline:
                raise OperatorError(f"{self.primary.region} is still at work: {', '.join(running)}")
            self.sleep(_POLL_SECONDS)
        self.report(
            f"waiting until {self.secondary.region} has everything that {self.primary.region} wrote"
        )
        left = max(deadline - time.monotonic(), 0)
        return self._catch_up(self.primary, self.secondary, since, left)

    def _catch_up(
        self, source: StackRef, target: StackRef, since: datetime, patience: float
    ) -> int:
        return replicas.wait_until_caught_up(
            source, target, since=since, patience=patience, report=self.report, sleep=self.sleep
        )

    def check_undo(self) -> Fence | None:
        """Return the fence that `undo` would take down, or None if its former state is lost."""
        put_up = fence.fenced(self.primary)
        if put_up is None and not fence.is_forgotten(self.primary):
            raise OperatorError(
                f"{self.primary.region} is not fenced: there is nothing to take down"
            )
        _check_no_replay(self.secondary)
        return put_up

    def undo(self, catching_up: timedelta = PATIENCE.catches_up_in) -> Mapping[str, int]:
        """Start the primary as it was, with what the secondary wrote, and give it the producers; count its parts."""
        here, there = self.primary.region, self.secondary.region
        put_up = self.check_undo()
        if put_up is None:
            self.report(
                f"the former state of {here} is lost, so everything starts (docs/runbooks/failover.md)"
            )
            put_up = fence.remember(self.primary, fence.everything(self.primary, datetime.now(UTC)))
        self.report(f"stopping the reconciler's schedule in {there}")
        fence.switch_schedules(self.secondary, put_up.schedules, on=False)
        self.report(f"waiting until {here} has everything that {there} wrote")
        # Before the fence the endpoint may already have sent events to the secondary.
        self._catch_up(
            self.secondary, self.primary, put_up.since - LOST_WINDOW, catching_up.total_seconds()
        )
        self.report(f"starting {here} again")
        fence.take_down(self.primary, put_up)
        self.report(f"steering producers back to {here}")
        self._steer(away=False)
        fence.forget(self.primary)  # last, so that an interrupted command can continue
        return {
            kind: len(getattr(put_up, kind)) for kind in Fence.__struct_fields__ if kind != "since"
        }

    def _running(self, put_up: Fence) -> list[str]:
        """Return what has not stopped in the primary: pipe or mappings, or the keys that a claim holds."""
        if not fence.is_still(self.primary, put_up):
            return ["pipe or mappings have not stopped"]
        held = tables.scan(
            self.primary.client("dynamodb"),
            self.primary.outputs["IdempotencyTableName"],
            "#status = :held AND #region = :here AND leaseExpiry >= :now",
            held=IN_PROGRESS, here=self.primary.region, now=int((time.time() - Policy().clock_skew) * 1000),
        )  # fmt: skip
        return [item["idempotencyKey"]["S"] for item in held]

    def _steer(self, *, away: bool) -> None:
        """Force the endpoint's health check to unhealthy, or let it follow its alarm again."""
        check = self.primary.outputs.get("CarRideHealthCheckId", _NO_HEALTH_CHECK)
        # Disabled means healthy, and inverted as well means unhealthy.
        if check != _NO_HEALTH_CHECK:
            self.primary.client("route53").update_health_check(
                HealthCheckId=check, Disabled=away, Inverted=away
            )


def _check_no_replay(stack: StackRef) -> None:
    if running := replay.unfinished(stack):
        raise OperatorError(
            f"{stack.region} has a replay running: wait until {running[0]} has ended"
        )
