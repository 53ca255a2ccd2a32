"""Logs and metrics: one structured line, and one count, for every delivery to a consumer."""

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from aws_lambda_powertools import Logger

if TYPE_CHECKING:
    from carride.events import RideEvent

DELIVERY: Final = "delivery"
"""The message of the line about one delivery."""

NAMESPACE: Final = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "CarRide")
"""Of the metrics, in CloudWatch."""

logger: Final = Logger()
"""Writes JSON with the function's service name; configured by POWERTOOLS_SERVICE_NAME and LOG_LEVEL."""

_xray_header: Final = re.compile(
    r"Root=1-([0-9a-f]{8})-([0-9a-f]{24});Parent=([0-9a-f]{16});Sampled=([01])(?:;.*)?"
).fullmatch


def current_trace() -> str | None:
    """Return X-Ray's trace of this invocation, as W3C Trace Context writes it; None where there is none.

    Lambda puts it into the environment anew for each invocation.
    """
    match = _xray_header(os.environ.get("_X_AMZN_TRACE_ID", ""))
    if match is None:
        return None
    epoch, unique, parent, sampled = match.groups()
    return f"00-{epoch}{unique}-{parent}-0{sampled}"


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

    @property
    def labels(self) -> Mapping[str, str]:
        """What else there is to say of the event."""


def labels(event: "RideEvent") -> Mapping[str, str]:
    """Return what the line of a delivery says of its event, besides its idempotency id: nothing that names a person."""
    return {"type": event.type, "correlationid": event.correlationid}


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
            "idempotencyid": None if observation.key is None else observation.key.partition("#")[2],
            "attempt": observation.attempt,
            "delivery": observation.delivery,
            "reason": observation.reason,
            **observation.labels,
        },
    )
    count(observation.consumer, **{observation.outcome: 1})


def count(service: str, **metrics: int) -> None:
    """Add to the metrics of a service: of a consumer, its outcomes; of a producer, ``Published`` and ``Rejected``."""
    definition = {
        "Namespace": NAMESPACE,
        "Dimensions": [["service"]],
        "Metrics": [{"Name": name, "Unit": "Count"} for name in metrics],
    }
    metric = {
        "_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [definition]},
        "service": service,
        **metrics,
    }
    # A batch observes from several threads: line and line break in one write, so that no other line comes between.
    sys.stdout.write(f"{json.dumps(metric, separators=(',', ':'))}\n")
