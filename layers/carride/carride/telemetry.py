"""Logs and metrics: one structured line for every delivery to a consumer, which CloudWatch also counts."""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec
from aws_lambda_powertools import Logger

if TYPE_CHECKING:
    from carride.events import RideEvent
    from carride_idempotency.observation import Observation

DELIVERY: Final = "delivery"  # the message of a delivery's log line

NAMESPACE: Final = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "CarRide")
"""The namespace of the metrics in CloudWatch."""

# Writes JSON with the service's name; POWERTOOLS_SERVICE_NAME and LOG_LEVEL configure it.
logger: Final = Logger()

# What no line shows, and each would cost: https://docs.python.org/3/howto/logging.html#optimization
logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False

_xray_header: Final = re.compile(
    r"Root=1-([0-9a-f]{8})-([0-9a-f]{24});Parent=([0-9a-f]{16});Sampled=([01])(?:;.*)?"
).fullmatch


def current_trace() -> str | None:
    """Return X-Ray's trace of this invocation in the format of W3C Trace Context.

    None without a trace.

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

    Above level INFO it is only counted.

    The consumer is the metric's only dimension, because CloudWatch bills each combination of
    dimensions. Both are one line, which has the logger's fields but is not written by it: that
    would take a fifth of a duplicate's CPU time.
    """
    line: dict[str, object] = {}
    if logger.log_level <= logging.INFO:
        fields = observation._asdict()
        fields |= fields.pop("labels")
        line = {
            "level": "INFO",
            "message": DELIVERY,
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        line |= {name: value for name, value in fields.items() if value is not None}
        if observation.key is not None:
            line["idempotencyid"] = observation.key.partition("#")[2]
        if trace := os.environ.get("_X_AMZN_TRACE_ID"):
            line["xray_trace_id"] = trace.partition(";")[0].removeprefix("Root=")
    _write(line | _metric(observation.consumer, {observation.outcome: 1}))


def count(service: str, **metrics: int) -> None:
    """Add to the metrics of a service.

    Outcomes of a consumer, or ``Published`` and ``Rejected`` of a producer.
    """
    _write(_metric(service, metrics))


def _metric(service: str, metrics: Mapping[str, int]) -> dict[str, object]:
    """Return metrics in CloudWatch's embedded metric format, which does not depend on the log level."""
    definition = {
        "Namespace": NAMESPACE,
        "Dimensions": [["service"]],
        "Metrics": [{"Name": name, "Unit": "Count"} for name in metrics],
    }
    stamp = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [definition]}
    return {"_aws": stamp, "service": service, **metrics}


def _write(line: Mapping[str, object]) -> None:
    try:
        text = msgspec.json.encode(line).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, in what an error says
        text = json.dumps(line)
    # Batches observe from several threads: one write keeps the lines whole.
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
