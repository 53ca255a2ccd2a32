"""Logs and metrics: one structured log line and one metric for every delivery to a consumer."""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from aws_lambda_powertools import Logger

if TYPE_CHECKING:
    from carride.events import RideEvent
    from idempotency.observation import Observation

DELIVERY: Final = "delivery"
"""The message of a delivery's log line."""

NAMESPACE: Final = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "CarRide")
"""The namespace of the metrics in CloudWatch."""

logger: Final = Logger()
"""Writes JSON with the service's name; POWERTOOLS_SERVICE_NAME and LOG_LEVEL configure it."""

# What no line shows, and each would cost: https://docs.python.org/3/howto/logging.html#optimization
logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False

_xray_header: Final = re.compile(
    r"Root=1-([0-9a-f]{8})-([0-9a-f]{24});Parent=([0-9a-f]{16});Sampled=([01])(?:;.*)?"
).fullmatch


def current_trace() -> str | None:
    """Return X-Ray's trace of this invocation in the format of W3C Trace Context; None without a trace.

    Lambda sets the environment variable for each invocation.
    """
    match = _xray_header(os.environ.get("_X_AMZN_TRACE_ID", ""))
    if match is None:
        return None
    epoch, unique, parent, sampled = match.groups()
    return f"00-{epoch}{unique}-{parent}-0{sampled}"


def labels(event: "RideEvent") -> Mapping[str, str]:
    """Return the labels of an event for its delivery's log line. They identify no person."""
    return {"type": event.type, "correlationid": event.correlationid}


def observe(observation: "Observation") -> None:
    """Log a delivery, and count it in a metric that is named after its outcome.

    The consumer is the metric's only dimension, because CloudWatch bills each combination of dimensions. The metric has
    its own line, in CloudWatch's embedded metric format, so that it does not depend on the log level.
    """
    fields = observation._asdict()
    fields |= fields.pop("labels")
    fields["idempotencyid"] = None if observation.key is None else observation.key.partition("#")[2]
    logger.info(DELIVERY, extra=fields)
    count(observation.consumer, **{observation.outcome: 1})


def count(service: str, **metrics: int) -> None:
    """Add to the metrics of a service: outcomes of a consumer, or ``Published`` and ``Rejected`` of a producer."""
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
    # Batches observe from several threads: one write keeps the lines whole.
    sys.stdout.write(f"{json.dumps(metric, separators=(',', ':'))}\n")
