"""Logs and metrics: one structured line, and one count, for every delivery to a consumer."""

import os
from typing import Final, Protocol

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import MetricUnit, single_metric

DELIVERY: Final = "delivery"
"""The message of the line that tells what became of a delivery."""

NAMESPACE: Final = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "CarRide")
"""Of the metrics, in CloudWatch."""

logger: Final = Logger()
"""Writes JSON with the function's service name; configured by POWERTOOLS_SERVICE_NAME and LOG_LEVEL."""


class Observed(Protocol):
    """What became of one delivery, as an idempotent consumer reports it."""

    @property
    def consumer(self) -> str:
        """Who took the delivery."""

    @property
    def outcome(self) -> str:
        """What became of it: New, Duplicate and so on."""

    @property
    def key(self) -> str | None:
        """The record's key; None where the event yielded none."""

    @property
    def attempt(self) -> int:
        """Which attempt at the key it was."""

    @property
    def delivery(self) -> str | None:
        """The transport's id of the delivery."""

    @property
    def reason(self) -> str | None:
        """Why, where there is something to say."""


def observe(observation: Observed) -> None:
    """Log a delivery and count it.

    The metric is named after the outcome and has one dimension, the consumer: CloudWatch bills each combination. It is
    written at once, not when the invocation ends, since a batch observes from several threads.
    """
    logger.info(
        DELIVERY,
        extra={
            "consumer": observation.consumer,
            "outcome": observation.outcome,
            "key": observation.key,
            "attempt": observation.attempt,
            "delivery": observation.delivery,
            "reason": observation.reason,
        },
    )
    with single_metric(observation.outcome, MetricUnit.Count, 1, namespace=NAMESPACE) as metric:
        metric.add_dimension("service", observation.consumer)
