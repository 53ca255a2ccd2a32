"""Functions that read a queue: shorter waits and fewer processes than on AWS.

On AWS and MiniStack a message that failed stays hidden until the queue's visibility timeout is
over, which takes minutes. Here it comes back after the delays of asynchronous retries, and then
after twice as long each time, up to ten seconds. The delays grow because a message may have to wait
for the lease of a killed run, which is not scaled down, and must not use up its receives meanwhile.
The engine's number of workers bounds the batches in hand.
"""

import time
from typing import Any

from ministack.services import lambda_svc, sqs

from engine.clock import later
from engine.settings import Settings

_LONGEST_SECONDS = 10.0


def apply(settings: Settings) -> None:
    """Bring failed messages back soon, and bound the processes."""
    stock_run_batch = lambda_svc._run_sqs_batch
    stock_concurrency = lambda_svc._sqs_esm_concurrency

    def delay_after(receives: int) -> float:
        beyond = max(0, receives - len(settings.retry_delays))
        return min(settings.delay(receives) * 2.0**beyond, _LONGEST_SECONDS)

    def run(
        mapping: Any, function: Any, event: dict[str, Any], batch: list[dict[str, Any]], *queue: str
    ) -> None:
        try:
            stock_run_batch(mapping, function, event, batch, *queue)
        finally:  # messages that succeeded are no longer in the queue
            receipts = {record["receiptHandle"] for record in event["Records"]}
            with sqs._queues_lock:
                for message in batch:
                    if message["receipt_handle"] in receipts:  # no other receiver has it meanwhile
                        delay = delay_after(message["receive_count"])
                        message["visible_at"] = min(message["visible_at"], time.time() + delay)
                        # The poller itself looks once a second.
                        later(delay, lambda_svc._esm_wake.set)

    def fewer(mapping: Any, *more: Any) -> int:
        # MiniStack keeps a number that a parameter of the template sets as text.
        limits = {name: int(limit) for name, limit in (mapping.get("ScalingConfig") or {}).items()}
        wanted = int(stock_concurrency(mapping | {"ScalingConfig": limits}, *more))
        return min(wanted, settings.workers)

    lambda_svc._run_sqs_batch = run
    lambda_svc._sqs_esm_concurrency = fewer
    lambda_svc._ESM_BACKOFF_SECONDS = min(settings.delay(1), lambda_svc._ESM_BACKOFF_SECONDS)
