"""Functions that read a queue, at the pace of a laptop.

AWS: a message whose batch ended with an error, or that the function reported as failed, stays hidden until the queue's
visibility timeout is over, which is to be six times the function's timeout: minutes. MiniStack does the same, and like
AWS it runs as many batches at once as the mapping allows.

Here a failed message comes back after the delays of asynchronous retries, as scaled down as they are, and then after
twice as long each time, up to 10 s: one that waits for the lease of a killed run, which is shorter than the visibility
timeout but not scaled down, may not use its receives up meanwhile. While a batch is in hand, its messages stay hidden
for as long as the queue says; and no more batches are in hand than the engine gives a function processes. Lies over
`lambda_svc._run_sqs_batch` and `lambda_svc._sqs_esm_concurrency`.
"""

import threading
import time
from typing import Any

from ministack.services import lambda_svc, sqs

from local.engine.settings import Settings

_LONGEST_SECONDS = 10.0

type _Message = dict[str, Any]


def apply(settings: Settings) -> None:
    """Bring failed messages back soon, and start no more processes than there are to be."""
    delays = settings.retry_delays
    run_batch, concurrency = lambda_svc._run_sqs_batch, lambda_svc._sqs_esm_concurrency

    def run(mapping: Any, function: Any, event: dict[str, Any], batch: list[_Message], *queue: str) -> None:
        try:
            run_batch(mapping, function, event, batch, *queue)
        finally:  # what has succeeded was deleted from the queue, where its time no longer matters
            _hide(batch, {record["receiptHandle"] for record in event["Records"]}, delays)

    def fewer(*mapping: Any) -> int:
        allowed: int = concurrency(*mapping)
        return min(allowed, settings.workers)

    lambda_svc._run_sqs_batch = run
    lambda_svc._sqs_esm_concurrency = fewer
    lambda_svc._ESM_BACKOFF_SECONDS = min(delays[0], lambda_svc._ESM_BACKOFF_SECONDS)


def _hide(batch: list[_Message], receipts: set[str], delays: tuple[float, ...]) -> None:
    """Hide messages, unless they were received by others meanwhile, for no longer than their next retry is away."""
    with sqs._queues_lock:
        for message in batch:
            if message["receipt_handle"] in receipts:
                delay = _delay(message["receive_count"], delays)
                message["visible_at"] = min(message["visible_at"], time.time() + delay)
                _wake_after(delay)


def _delay(received: int, delays: tuple[float, ...]) -> float:
    """Seconds until a message comes back that was received so often."""
    beyond = max(0, received - len(delays))
    return min(delays[min(received, len(delays)) - 1] * 2.0**beyond, _LONGEST_SECONDS)


def _wake_after(delay: float) -> None:
    """Have the queues polled then: the poller itself looks once a second."""
    timer = threading.Timer(delay, lambda_svc._esm_wake.set)
    timer.daemon = True
    timer.start()
