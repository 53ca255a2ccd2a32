"""Keeps the index of a stack current.

Polls its logs and queues from where it left off, and audits it now and then.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from ops import records, replay
from ops.audit import DEFAULT_GRACE, Report, collect_evidence, judge
from ops.audit.queues import waiting
from ops.audit.reading import BUS, Tail, enabled
from ops.desk.index import Index
from ops.desk.standing import Known, Standing, standing
from ops.finding import is_running, work_left
from ops.stack import FAILURES, StackRef, reason

_logger: Final = logging.getLogger(__name__)
_GRACE: Final = timedelta(seconds=90)
"""Longer than the lease of a killed run, after which a local stack tries again."""
_REST: Final = 4
"""A feed pauses for this many times as long as its last look took."""
ENDED: Final = (
    "The local stack does not answer. If it has ended, start it with `make demo ARGS=--keep`."
)


_PAUSES: Final = {"local": (0.4, 1.0, 2.0), "AWS": (3.0, 15.0, 1.0)}
"""Seconds between two looks at the logs, at the queues, and at what the audit needs."""
_OVERLAP: Final = {"local": timedelta(seconds=2), "AWS": timedelta(minutes=1)}
"""How late a log line may appear. Lines of this time are read again."""
_HISTORY: Final = {"local": timedelta(days=7), "AWS": timedelta(hours=1)}
"""How far back the first look goes."""


class Feed:
    """Polls a stack from threads of its own, from `start` to `stop`.

    Hold ``lock`` while you read ``index``. Whatever it and the pages read of dead letters is a
    glance.
    """

    def __init__(self, stack: StackRef) -> None:
        self.stack = stack.glancing()
        self.consumers = enabled(self.stack)
        self.index = Index(self.consumers)
        self.lock = threading.RLock()
        self.queues: Mapping[str, int] = {}
        """Messages by the logical id of their queue; those that a reader has taken count too."""
        self.replays: tuple[str, ...] | None = None
        """Names of the replays that EventBridge delivers now; None until it was asked."""
        self.work: int | None = None
        """What a local engine has in work; None on AWS, which does not tell."""
        self.report: Report | None = None
        self.audited_at: float | None = None
        """When the audit of ``report`` began, in seconds since the epoch."""
        self.troubles: dict[Callable[[], object], str | None] = {}
        """Why polling or the audit fails now, in sentences; None if it does not."""
        self.answered_at = time.time()
        """When the stack answered last."""
        self.quarantined: int | None = None
        """Keys that wait for an operator; None until they are counted."""
        self.audits_by_itself = stack.local is not None
        """Whether the audit is repeated; on AWS it waits until somebody asks, because it reads
        whole tables."""
        self.audit_wanted = threading.Event()
        self.is_filling = False
        """Whether the logs are read for the first time: most outcomes are not known then."""
        self._is_answering = False
        """Whether the audit that runs was asked for."""
        self._stopping = threading.Event()
        self._audited_version = -1
        where = "local" if stack.local else "AWS"
        adds = {BUS: self.index.add_published} | {
            each.resources: self.index.add_line for each in self.consumers
        }
        since = datetime.now(UTC) - _HISTORY[where]
        self._tails = [
            (add, Tail(stack, name, since, _OVERLAP[where])) for name, add in adds.items()
        ]
        work = zip((self._read_logs, self._count_queues, self._audit), _PAUSES[where], strict=True)
        self._threads = [
            threading.Thread(target=self._repeat, args=each, daemon=True) for each in work
        ]

    def start(self) -> None:
        """Begin to poll."""
        self.is_filling = True
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End polling."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5.0)

    def _repeat(self, work: Callable[[], object], pause: float) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            sentence = None
            try:
                work()
            except (*FAILURES, LookupError) as error:
                local = self.stack.local
                has_ended = local is not None and not is_running(local)
                if isinstance(error, LookupError) and not has_ended:
                    _logger.exception(
                        "a bug of the desk, or an engine that is ending gave an empty answer"
                    )
                sentence = (
                    ENDED if has_ended else f"{self.stack.name} cannot be asked: {reason(error)}."
                )
            else:
                self.answered_at = time.time()
            with self.lock:
                self.troubles = self.troubles | {work: sentence}
            self._stopping.wait(max(pause, _REST * (time.monotonic() - began)))

    def _read_logs(self) -> None:
        for add, tail in self._tails:
            for line in tail.lines():
                with self.lock:
                    add(line)
        if self.is_filling:
            with self.lock:
                self.is_filling = False
                self.index.version += 1

    def _count_queues(self) -> None:
        sqs = self.stack.client("sqs")
        urls = {
            name: url
            for name, url in self.stack.outputs.items()
            if name.endswith(("DlqUrl", "QueueUrl"))
        }
        found = {
            name.removesuffix("Url"): waiting(sqs, url, visible=True) for name, url in urls.items()
        }
        quarantined = len(records.explained(self.stack))
        replays = tuple(replay.unfinished(self.stack))
        work = work_left(self.stack)
        with self.lock:
            self.replays = replays
            self.work = work
            if (found, quarantined) != (self.queues, self.quarantined):
                self.queues = found
                self.quarantined = quarantined
                self.index.version += 1

    def standing(self) -> Standing:
        """Return what the status bar says now."""
        silent_since_ms = None
        if self.troubles.get(self._read_logs):
            silent_since_ms = self.answered_at * 1000
        audited_ms = None
        if self.audited_at is not None:
            audited_ms = self.audited_at * 1000
        return standing(
            Known(
                report=self.report,
                audited_ms=audited_ms,
                audits_by_itself=self.audits_by_itself,
                is_awaited=self.is_audit_awaited,
                has_changed=self.index.version != self._audited_version,
                now_ms=time.time() * 1000,
                letters=self.letters(),
                failing=self.index.outages.now(time.time() * 1000),
                silent_since_ms=silent_since_ms,
            )
        )

    @property
    def is_audit_awaited(self) -> bool:
        """Whether somebody has asked for an audit that has not ended."""
        return self.audit_wanted.is_set() or self._is_answering

    def letters(self) -> int | None:
        """Return how many messages are in the dead-letter queues; None until they are counted."""
        if not self.queues:
            return None
        return sum(count for name, count in self.queues.items() if name.endswith("Dlq"))

    def _audit(self) -> None:
        """Audit the stack if somebody asked for it, or if something has happened since."""
        wanted = self.audit_wanted.is_set()
        version = self.index.version
        if not wanted and (not self.audits_by_itself or version == self._audited_version):
            return
        self._is_answering = wanted
        self.audit_wanted.clear()
        try:
            self._judge_now(version)
        finally:
            self._is_answering = False

    def _judge_now(self, version: int) -> None:
        began = time.time()
        evidence = collect_evidence(self.stack, grace=_GRACE if self.stack.local else DEFAULT_GRACE)
        report = judge(evidence)
        with self.lock:
            accounts = report.ledger.consumers
            self.index.add_lost({name: each.lost_events for name, each in accounts.items()})
            self.index.add_letters(evidence.dead_letters)
            self.report = report
            self.audited_at = began
            # A message that nobody could read, or an event in flight, calls for another look.
            settled = not report.ledger.unread and not report.ledger.in_flight
            self._audited_version = (
                version + 1 if settled and version + 1 == self.index.version else -1
            )
