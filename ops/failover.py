"""Moves the processing of events from the primary region to the secondary, and back.

The health check of the global endpoint reports latency: the primary is late, not dead. It will
deliver the events that it has accepted, and neither region's consumers see at once what the others
have done. The secondary therefore receives the events of the lost window only when the primary is
stopped, its running work has ended, and everything that it wrote has arrived in the secondary.
"""

import time
from collections.abc import Callable
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


class Started(NamedTuple):
    """How many of each kind of its parts a region has started again."""

    rules: int
    schedules: int
    mappings: int
    pipes: int
    functions: int


class RegionState(NamedTuple):
    """What one region does; with a problem, fence and unfinished replays are not known."""

    region: str
    role: str
    fenced_since: datetime | None = None
    replays: tuple[str, ...] = ()
    problem: str | None = None


def states(primary: StackRef, secondary: StackRef) -> tuple[RegionState, RegionState]:
    """Return what both regions of a stack do. A region that cannot be asked says why."""
    return _state(primary, "primary"), _state(secondary, "secondary")


def _state(stack: StackRef, role: str) -> RegionState:
    try:
        put_up = fence.fenced(stack)
        running = tuple(replay.unfinished(stack))
    except FAILURES as error:
        return RegionState(stack.region, role, problem=reason(error))
    since = put_up.since if put_up else None
    return RegionState(stack.region, role, since, running)


class _Drained(NamedTuple):
    """How the primary stopped."""

    fully: bool
    """Whether it is fenced and drained, so that nothing is processed twice."""
    compared: int
    schedules: tuple[str, ...]
    """Those that the secondary starts instead, by logical id."""


@dataclass(frozen=True)
class Failover:
    """A failover between a stack's regions. An interrupted one continues when it is run again."""

    primary: StackRef
    secondary: StackRef
    report: Callable[[str], None] = print
    sleep: Callable[[float], None] = time.sleep

    def plan(self, since: datetime, until: datetime | None = None) -> list[str]:
        """Return the steps of a failover, in words."""
        here = self.primary.region
        there = self.secondary.region
        end = until or "the end of the drain"
        window = f"from {since:%Y-%m-%d %H:%M:%S %Z} until {end}"
        steer = "the endpoint's health check is forced to unhealthy, so that all producers use"
        stop = "rules, schedule, event source mappings and pipe stop; no function has concurrency"
        drain = "running work ends, leases expire, every item of every table arrives in"
        return [
            f"steer: {steer} {there}",
            f"fence {here}: {stop}",
            f"drain {here}: {drain} {there}",
            f"republish in {there} what was written to the outbox in {here} {window}",
            f"replay the archive of {there} for that time; consumers recognise what took effect",
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
        """Fail over.

        If the primary cannot be fenced or drained, go on only with ``accept_duplicates``. By
        default the lost window ends with the drain, because some producers learn late that they are
        steered away.
        """
        try:
            drained = self._stop_primary(since, patience)
        except FAILURES as error:
            if not accept_duplicates:
                raise self._not_drained(error) from error
            drained = self._without_drain(error)
        until = until or datetime.now(UTC)
        _check_no_replay(self.secondary)
        republished = outbox.republish(
            self.secondary, self.primary.region, since, until, self.report
        )
        self._wait_for_archive(until + patience.archived_in)
        name = self._replay(since, until)
        self.report(f"starting the reconciler's schedule in {self.secondary.region}")
        fence.switch_schedules(self.secondary, drained.schedules, on=True)
        return Outcome(drained.fully, drained.compared, republished, name)

    def _stop_primary(self, since: datetime, patience: Patience) -> _Drained:
        """Steer producers away, fence the primary, and drain it."""
        self.report(
            f"steering producers to {self.secondary.region}, then fencing {self.primary.region}"
        )
        self._steer(away=True)
        put_up = fence.put_up(self.primary, datetime.now(UTC))
        compared = self.drain(put_up, since, patience)
        return _Drained(fully=True, compared=compared, schedules=put_up.schedules)

    def _without_drain(self, error: Exception) -> _Drained:
        """Go on although the primary may still work: the secondary starts all of its schedules."""
        self.report(
            f"{self.primary.region} is not fenced and drained ({reason(error)}); duplicates are "
            "accepted"
        )
        schedules = fence.schedules(self.secondary)
        return _Drained(fully=False, compared=0, schedules=schedules)

    def _not_drained(self, error: Exception) -> OperatorError:
        here = self.primary.region
        return OperatorError(
            f"{here} could not be fenced and drained, and nothing was republished or replayed: "
            f"{reason(error)}. Wait for {here}: that loses nothing and doubles nothing. "
            f"--accept-duplicates continues now, and events that {here} processes as well take "
            "effect twice"
        )

    def _wait_for_archive(self, archived: datetime) -> None:
        """Wait until the archive has the events of the lost window."""
        left = (archived - datetime.now(UTC)).total_seconds()
        if left > 0:
            self.report(
                f"waiting until {archived:%H:%M:%S}, when the archive has the window's last events"
            )
            self.sleep(left)

    def _replay(self, since: datetime, until: datetime) -> str:
        """Replay the secondary's archive to its end, and return the replay's name."""
        region = self.secondary.region
        name = replay.name_for(region, datetime.now(UTC))
        self.report(f"replaying the archive of {region}: {name}")
        replay.start(self.secondary, name, since, until, [])
        replay.handed_over(self.secondary, name, sleep=self.sleep)
        return name

    def drain(self, put_up: Fence, since: datetime, patience: Patience) -> int:
        """Wait until the primary's work has ended and its writes since then have arrived.

        Returns:
            The number of items that were compared.
        """
        self._wait_for_runs(put_up, patience.runs_end_in)
        deadline = time.monotonic() + patience.catches_up_in.total_seconds()
        self.report("waiting for pipe and mappings to stop, and for leases to end")
        while running := self._running(put_up):
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"{self.primary.region} is still at work: {', '.join(running)}; run the "
                    "command again, or give a longer --catches-up-in"
                )
            self.sleep(_POLL_SECONDS)
        self.report(
            f"waiting until {self.secondary.region} has everything that {self.primary.region} wrote"
        )
        left = max(deadline - time.monotonic(), 0)
        return self._catch_up(self.primary, self.secondary, since, left)

    def _wait_for_runs(self, put_up: Fence, given: timedelta | None) -> None:
        """Wait as long as a running invocation may take.

        It is counted from now: an interrupted fence stops everything only when it is put up again.
        """
        longest = self._longest_run(put_up, given)
        if longest > 0:
            self.report(f"waiting {longest:.0f} s for running invocations")
            self.sleep(longest)

    def _longest_run(self, put_up: Fence, given: timedelta | None) -> float:
        """Return for how many seconds an invocation may run: as given, or by the timeouts."""
        if given is not None:
            return given.total_seconds()
        return fence.longest_run(self.primary, put_up)

    def _catch_up(
        self, source: StackRef, target: StackRef, since: datetime, patience: float
    ) -> int:
        return replicas.wait_until_caught_up(
            source, target, since=since, patience=patience, report=self.report, sleep=self.sleep
        )

    def check_undo(self) -> Fence | None:
        """Return the fence that `undo` would take down, or None if its former state is lost."""
        put_up = fence.fenced(self.primary)
        if put_up is None and not fence.is_unstored(self.primary):
            raise OperatorError(
                f"{self.primary.region} is not fenced: there is nothing to take down"
            )
        _check_no_replay(self.secondary)
        return put_up

    def undo(self, catching_up: timedelta = PATIENCE.catches_up_in) -> Started:
        """Start the primary as it was, with what the secondary wrote, and give it the producers."""
        here = self.primary.region
        there = self.secondary.region
        put_up = self.check_undo() or self._everything()
        self.report(f"stopping the reconciler's schedule in {there}")
        fence.switch_schedules(self.secondary, put_up.schedules, on=False)
        self.report(f"waiting until {here} has everything that {there} wrote")
        # Before the fence the endpoint may already have sent events to the secondary.
        since = put_up.since - LOST_WINDOW
        self._catch_up(self.secondary, self.primary, since, catching_up.total_seconds())
        self.report(f"starting {here} again")
        fence.take_down(self.primary, put_up)
        self.report(f"steering producers back to {here}")
        self._steer(away=False)
        fence.forget(self.primary)  # last, so that an interrupted command can continue
        return Started(
            rules=len(put_up.rules),
            schedules=len(put_up.schedules),
            mappings=len(put_up.mappings),
            pipes=len(put_up.pipes),
            functions=len(put_up.functions),
        )

    def _everything(self) -> Fence:
        """Store and return a fence of everything, in place of one whose former state is lost."""
        self.report(
            f"the former state of {self.primary.region} is lost, so everything starts "
            "(ops/docs/runbooks/failover.md)"
        )
        every = fence.everything(self.primary, datetime.now(UTC))
        return fence.remember(self.primary, every)

    def _running(self, put_up: Fence) -> list[str]:
        """Return what still works in the primary: pipe or mappings, or else claimed keys."""
        if not fence.is_still(self.primary, put_up):
            return ["pipe or mappings have not stopped"]
        now_ms = int((time.time() - Policy().clock_skew) * 1000)
        claimed = tables.scan(  # ride_history makes no claims
            self.primary.client("dynamodb"),
            self.primary.outputs["IdempotencyTableName"],
            "#status = :claimed AND #region = :here AND leaseExpiry >= :now",
            claimed=IN_PROGRESS,
            here=self.primary.region,
            now=now_ms,
        )
        return [item["idempotencyKey"]["S"] for item in claimed]

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
            f"{stack.region} has a replay running: wait until {running[0]} has ended, or end it "
            f"with `./carride replay cancel {running[0]} --yes`"
        )
