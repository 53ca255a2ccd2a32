"""Keeps the index of a stack current: polls its logs and queues from where it left off, and audits it now and then."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from ops.audit import DEFAULT_GRACE, Report, judge, read
from ops.audit.queues import waiting
from ops.audit.reading import BUS, Tail, enabled
from ops.desk.index import Index
from ops.finding import is_running
from ops.stack import FAILURES, StackRef, reason

_logger: Final = logging.getLogger(__name__)
_GRACE: Final = timedelta(seconds=90)
"""Longer than the lease of a killed run, after which a local stack tries again."""
_REST: Final = 4
"""A feed pauses for this many times as long as its last look took."""
ENDED: Final = "The local stack does not answer. If it has ended, start it with `make demo ARGS=--keep`."


class Beat(NamedTuple):
    """How often a feed asks, in seconds, and what it reads."""

    logs: float
    queues: float
    audit: float | None
    """None: only when somebody asks, because the audit reads whole tables."""
    overlap: timedelta
    """How late a log line may appear. Lines of this time are read again."""
    history: timedelta
    """How far back the first look goes."""


LOCAL: Final = Beat(logs=0.4, queues=1.0, audit=2.0, overlap=timedelta(seconds=2), history=timedelta(days=7))
AWS: Final = Beat(logs=3.0, queues=15.0, audit=None, overlap=timedelta(minutes=1), history=timedelta(hours=1))


class Feed:
    """Polls a stack from threads of its own, from `start` to `stop`.

    Hold ``lock`` while you read ``index``.
    """

    def __init__(self, stack: StackRef) -> None:
        self.stack = stack
        self.consumers = enabled(stack)
        self.index = Index(self.consumers)
        self.lock = threading.RLock()
        self.queues: Mapping[str, int] = {}
        """Messages by the logical id of their queue; those that a reader has taken count too."""
        self.report: Report | None = None
        self.audited_at: float | None = None
        """When the audit of ``report`` began, in seconds since the epoch."""
        self.troubles: dict[str, str | None] = {}
        """Why polling or the audit fails now, in sentences; None if it does not."""
        self.answered_at = time.time()
        """When the stack answered last."""
        self._beat = LOCAL if stack.local else AWS
        self._stopping, self._audit_wanted = threading.Event(), threading.Event()
        self._audited_version = -1
        adds = {BUS: self.index.add_published} | {each.resources: self.index.add_line for each in self.consumers}
        since, overlap = datetime.now(UTC) - self._beat.history, self._beat.overlap
        self._tails = [(add, Tail(stack, name, since, overlap)) for name, add in adds.items()]
        jobs = {
            "logs": (self._read_logs, self._beat.logs),
            "queues": (self._count_queues, self._beat.queues),
            "audit": (self._audit, self._beat.audit or 1.0),
        }
        self._threads = [
            threading.Thread(target=self._repeat, args=(name, *job), name=f"desk-{name}", daemon=True)
            for name, job in jobs.items()
        ]

    def start(self) -> None:
        """Begin to poll."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End polling."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5.0)

    @property
    def audits_by_itself(self) -> bool:
        """Whether the audit is repeated without being asked for."""
        return self._beat.audit is not None

    def audit_soon(self) -> None:
        """Have the stack audited."""
        self._audit_wanted.set()

    def _repeat(self, name: str, work: Callable[[], object], pause: float) -> None:
        while not self._stopping.is_set():
            began, sentence = time.monotonic(), None
            try:
                work()
            except (*FAILURES, LookupError) as error:
                local = self.stack.local
                has_ended = local is not None and not is_running(local)
                if isinstance(error, LookupError) and not has_ended:
                    _logger.exception("a bug of the desk, or an answer without content from an engine that is ending")
                sentence = ENDED if has_ended else f"{self.stack.name} cannot be asked: {reason(error)}."
            else:
                self.answered_at = time.time()
            with self.lock:
                self.troubles = self.troubles | {name: sentence}
            self._stopping.wait(max(pause, _REST * (time.monotonic() - began)))

    def _read_logs(self) -> None:
        for add, tail in self._tails:
            for line in tail.lines():
                with self.lock:
                    add(line)

    def _count_queues(self) -> None:
        sqs = self.stack.client("sqs")
        urls = {name: url for name, url in self.stack.outputs.items() if name.endswith(("DlqUrl", "QueueUrl"))}
        found = {name.removesuffix("Url"): waiting(sqs, url, visible=True) for name, url in urls.items()}
        with self.lock:
            if found != self.queues:
                self.queues = found
                self.index.version += 1

    def _audit(self) -> None:
        """Audit the stack if somebody asked for it, or if something has happened since the last audit."""
        wanted = self._audit_wanted.is_set()
        version = self.index.version
        if not wanted and (not self.audits_by_itself or version == self._audited_version):
            return
        self._audit_wanted.clear()
        began = time.time()
        evidence = read(self.stack, grace=_GRACE if self.stack.local else DEFAULT_GRACE)
        report = judge(evidence)
        with self.lock:
            self.index.add_letters(evidence.dead_letters)
            self.report, self.audited_at = report, began
            # A message that nobody could read, or an event in flight, calls for another look.
            settled = not report.ledger.unread and not report.ledger.in_flight
            self._audited_version = version + 1 if settled and version + 1 == self.index.version else -1
