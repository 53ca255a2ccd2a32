"""A failover from the primary region to the secondary, and back: fence, drain, replay.

A health check fires on latency: the primary is late, not dead. What it has accepted it will deliver some day, and its
consumers cannot see at once what the secondary's have done, nor these what they have. So before the secondary is handed
the events of the lost window, the primary has been stopped, has ended what it had begun, and everything that it wrote
has arrived in the secondary.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from carride.publisher import Outcome as Published
from carride.publisher import Publisher, PublishError
from idempotency import Policy
from ops import fence, outbox, replay, replicas
from ops.fence import Fence
from ops.site import OperatorError, Site

LOST_WINDOW: Final = timedelta(hours=24)
"""EventBridge tries to deliver for that long: what is older has been delivered, or lies in a dead-letter queue."""
ARCHIVED_IN: Final = timedelta(minutes=10)
"""How long an event may take until it is in the archive."""
PATIENCE: Final = timedelta(minutes=30)

_POLL_SECONDS: Final = 1.0
_NONE: Final = "none"
_NO_DEADLINE_MS: Final = 3_600_000.0

type Report = Callable[[str], None]
"""Called with what is going on."""


class Window(NamedTuple):
    """What is handed over again."""

    since: datetime
    until: datetime | None = None
    """Left out, when the primary has been drained: some producers learn late that they are steered away."""


class Patience(NamedTuple):
    """How long a failover waits for what."""

    runs: timedelta | None = None
    """For invocations that had begun; left out, the longest timeout of the functions."""
    archive: timedelta = ARCHIVED_IN
    """For the last events of the window to be in the archive."""
    catching_up: timedelta = PATIENCE
    """For leases to end and replicas to catch up, at most."""


class Outcome(NamedTuple):
    """What a failover has done."""

    drained: bool
    """False where the primary could not be fenced and drained, and duplicates were accepted."""
    compared: int
    """Items of tables that were seen to be the same in both regions."""
    republished: int
    """Events out of the primary's outbox that the secondary's bus has accepted."""
    refused: int
    """Events out of it that lie in the secondary's ProducerDlq instead."""
    replay: str
    """Name of the replay of the secondary's archive."""


def plan(primary: Site, secondary: Site, window: Window) -> list[str]:
    """Return the steps of a failover, in words."""
    here, there = primary.region, secondary.region
    until = window.until or "the end of the drain"
    since = f"{window.since:%Y-%m-%d %H:%M:%S %Z}"
    return [
        f"steer: the endpoint's health check is forced to unhealthy, so that all producers use {there}",
        f"fence {here}: rules, event source mappings and pipe stop, the concurrency of every function is 0",
        f"drain {here}: what had begun ends, leases run out, every item of every table is seen in {there}",
        f"republish in {there} what was written to the outbox in {here} from {since} until {until}",
        f"replay the archive of {there} for the same time; consumers recognise what has taken effect",
    ]


class Failover:
    """From one region to the other.

    Args:
        primary: the region to leave.
        secondary: the region to go to.
        report: called with what is going on.
        now, monotonic, sleep: the clocks; ``now`` with a time zone, the others in seconds.
    """

    def __init__(
        self,
        primary: Site,
        secondary: Site,
        *,
        report: Report = print,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._report = report
        self._now = now
        self._monotonic = monotonic
        self._sleep = sleep

    def run(self, window: Window, patience: Patience, *, accept_duplicates: bool = False) -> Outcome:
        """Fail over; run again, it goes on.

        Args:
            window: what is handed over again.
            patience: how long to wait.
            accept_duplicates: go on where the primary cannot be fenced or drained.

        Raises:
            OperatorError: the primary cannot be fenced or drained. Nothing was handed over again.
        """
        compared, drained = 0, False
        try:
            put_up = self.fence()
            compared, drained = self.drain(put_up, patience), True
        except (BotoCoreError, ClientError, OperatorError) as error:
            if not accept_duplicates:
                raise OperatorError(
                    f"{self._primary.region} could not be fenced and drained, and nothing was handed over again: "
                    f"{error}. Wait for {self._primary.region}: that loses nothing and doubles nothing. To hand over "
                    "now, and have take effect twice what it works on as well, take --accept-duplicates"
                ) from error
            self._report(f"{self._primary.region} is not fenced and drained ({error}); duplicates are accepted")
        until = window.until or self._now()
        if going_on := replay.unfinished(self._secondary):
            raise OperatorError(f"{self._secondary.region} has a replay running: {going_on[0]}")
        republished, refused = self.republish(window.since, until)
        archived = until + patience.archive
        if (left := (archived - self._now()).total_seconds()) > 0:
            self._report(f"waiting until {archived:%H:%M:%S}, when the archive has the window's last events")
            self._sleep(left)
        name = replay.name_for(self._secondary.region, self._now())
        self._report(f"replaying the archive of {self._secondary.region}: {name}")
        replay.start(self._secondary, name, window.since, until)
        replay.wait(self._secondary, name, self._sleep)
        return Outcome(drained=drained, compared=compared, republished=republished, refused=refused, replay=name)

    def fence(self) -> Fence:
        """Steer producers away from the primary, and stop everything in it."""
        self._report(f"steering producers to {self._secondary.region}")
        steer(self._primary, away=True)
        self._report(f"fencing {self._primary.region}")
        return fence.put_up(self._primary, self._now())

    def drain(self, put_up: Fence, patience: Patience) -> int:
        """Wait until the primary does nothing any more and its tables have caught up.

        Returns:
            How many items were compared.

        Raises:
            OperatorError: it takes too long.
        """
        longest = fence.longest_run(self._primary, put_up) if patience.runs is None else patience.runs.total_seconds()
        if longest > 0:  # counted from now, since a fence that was put up half-way has only now stopped everything
            self._report(f"waiting {longest:.0f} s for invocations that had begun")
            self._sleep(longest)
        deadline = self._monotonic() + patience.catching_up.total_seconds()
        self._report("waiting for pipe and mappings to stop, and for leases to end")
        while going_on := self._going_on(put_up):
            if self._monotonic() > deadline:
                raise OperatorError(f"{self._primary.region} is still at work: {', '.join(going_on)}")
            self._sleep(_POLL_SECONDS)
        self._report(f"waiting until {self._secondary.region} has everything that {self._primary.region} wrote")
        return replicas.wait_until_caught_up(
            self._primary,
            self._secondary,
            patience=max(deadline - self._monotonic(), 0),
            monotonic=self._monotonic,
            sleep=self._sleep,
        )

    def republish(self, since: datetime, until: datetime) -> tuple[int, int]:
        """Publish on the secondary's bus what the primary's pipe may not have published.

        Returns:
            How many events the bus has accepted, and how many lie in the ProducerDlq instead.

        Raises:
            OperatorError: some are in neither.
        """
        entries = list(outbox.written(self._secondary, self._primary.region, since, until))
        self._report(f"republishing {len(entries)} events of the outbox")
        outputs = self._secondary.outputs
        publisher = Publisher(
            self._secondary.client("events"),
            self._secondary.client("sqs"),
            outputs["CarRideBusName"],
            outputs["ProducerDlqUrl"],
            sleep=self._sleep,
        )
        try:
            receipts = publisher.publish(entries, lambda: _NO_DEADLINE_MS)
        except PublishError as error:
            raise OperatorError(f"{error}. They are in the outbox still: fail over again") from error
        refused = [str(receipt.code) for receipt in receipts if receipt.outcome is not Published.PUBLISHED]
        if refused:
            self._report(f"{len(refused)} of them lie in the ProducerDlq: {', '.join(sorted(set(refused)))}")
        return len(receipts) - len(refused), len(refused)

    def _going_on(self, put_up: Fence) -> list[str]:
        """Return what has not stopped in the primary: pipe or mappings, or keys that a claim still holds."""
        if not fence.is_still(self._primary, put_up):
            return ["pipe or mappings have not stopped"]
        return list(self._leases())

    def _leases(self) -> Iterator[str]:
        """Yield the keys that are held by a claim of the primary."""
        pages = (
            self._primary.client("dynamodb")
            .get_paginator("scan")
            .paginate(
                TableName=self._primary.outputs["IdempotencyTableName"],
                ConsistentRead=True,
                FilterExpression="#status = :held AND #region = :here AND leaseExpiry >= :now",
                ExpressionAttributeNames={"#status": "status", "#region": "region"},
                ExpressionAttributeValues={
                    ":held": {"S": "IN_PROGRESS"},
                    ":here": {"S": self._primary.region},
                    ":now": {"N": str(int((self._now().timestamp() - Policy().clock_skew) * 1000))},
                },
            )
        )
        return (item["idempotencyKey"]["S"] for page in pages for item in page["Items"])


def unfence(
    primary: Site, secondary: Site, *, patience: timedelta = PATIENCE, report: Report = print
) -> Mapping[str, Any]:
    """Go back to the primary: it gets what the secondary wrote, starts again as it was, and then has the producers.

    Run again, it goes on: the fence is known until the last step is done.

    Returns:
        What was started, by kind.

    Raises:
        OperatorError: the primary is not fenced, has not caught up, or the secondary has a replay running.
    """
    put_up = fence.fenced(primary)
    if put_up is None:
        fence.check_remembered(primary)
        raise OperatorError(f"{primary.region} is not fenced: there is nothing to take down")
    if going_on := replay.unfinished(secondary):
        raise OperatorError(f"{secondary.region} has a replay running: wait until {going_on[0]} has ended")
    report(f"waiting until {primary.region} has everything that {secondary.region} wrote")
    replicas.wait_until_caught_up(secondary, primary, patience=patience.total_seconds())
    report(f"starting {primary.region} again")
    fence.take_down(primary, put_up)
    report(f"steering producers back to {primary.region}")
    steer(primary, away=False)
    fence.forget(primary)
    return {
        "rules": len(put_up.rules),
        "mappings": len(put_up.mappings),
        "pipes": len(put_up.pipes),
        "functions": len(put_up.functions),
    }


def steer(primary: Site, *, away: bool) -> None:
    """Force the endpoint's health check to unhealthy, or let it follow its alarm again.

    A health check that is disabled counts as healthy, and if it is inverted as well, as unhealthy.
    """
    check = primary.outputs.get("CarRideHealthCheckId", _NONE)
    if check != _NONE:
        primary.client("route53").update_health_check(HealthCheckId=check, Disabled=away, Inverted=away)
