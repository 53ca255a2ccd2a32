"""Logs and metrics: one structured line, and one count, for every delivery to a consumer."""

import json
import os
import sys
import time
from typing import Final, Protocol

from aws_lambda_powertools import Logger

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
    a line of its own, in CloudWatch's embedded metric format, since it must not depend on the log level.
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
    definition = {
        "Namespace": NAMESPACE,
        "Dimensions": [["service"]],
        "Metrics": [{"Name": observation.outcome, "Unit": "Count"}],
    }
    metric = {
        "_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [definition]},
        "service": observation.consumer,
        observation.outcome: 1,
    }
    # A batch observes from several threads: line and line break in one write, so that no other line comes between.
    sys.stdout.write(f"{json.dumps(metric, separators=(',', ':'))}\n")
