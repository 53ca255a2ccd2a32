"""Logs and metrics: one structured line for each delivery, which CloudWatch also counts."""

import json
import logging
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import msgspec
from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics

if TYPE_CHECKING:
    from carride.events import RideEvent
    from carride_idempotency import Observation

DELIVERY: Final = "delivery"  # the message of a delivery's log line
COUNT: Final = "count"  # the message of a line that does nothing but count
NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
_CALLER: Final = 3  # the caller of `count`, above it and the logger's own method


def _json(line: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, in what an error says
        return json.dumps(line, default=str)


def _as_is(message: Any) -> Any:
    """Keep a message: the logger would try to parse each one as JSON."""
    return message


# POWERTOOLS_SERVICE_NAME and LOG_LEVEL configure it.
logger: Final = Logger(
    json_serializer=_json,
    json_deserializer=_as_is,
    utc=True,
    use_rfc3339=True,
    serialize_stacktrace=False,  # `exception` has it as text
)

# It is only asked for its format, and keeps no metrics: the threads of a batch would mix them up.
_metrics: Final = EphemeralMetrics(
    namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "CarRide")
)

# What no line shows, and each would cost: https://docs.python.org/3/howto/logging.html#optimization
logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False

_xray_header: Final = re.compile(
    r"Root=1-([0-9a-f]{8})-([0-9a-f]{24});Parent=([0-9a-f]{16});Sampled=([01])(?:;.*)?"
).fullmatch


def current_trace() -> str | None:
    """Return X-Ray's trace of this invocation in the format of W3C Trace Context, or None.

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
    """Log a delivery, and count it in a metric that is named after its outcome."""
    fields = observation._asdict()
    fields |= fields.pop("labels")
    if observation.key is not None:
        fields["idempotencyid"] = observation.key.partition("#")[2]
    known = {name: value for name, value in fields.items() if value is not None}
    count(observation.consumer, {observation.outcome: 1}, DELIVERY, fields=known)


def count(
    service: str,
    metrics: Mapping[str, int],
    message: str = COUNT,
    *,
    warns: bool = False,
    fields: Mapping[str, object] = NOTHING,
) -> None:
    """Add to the metrics of a service, in the line of a log message.

    The service is the metrics' only dimension, because CloudWatch bills each combination of
    dimensions. Below the logger's level nothing is said, but still counted.

    Args:
        service: a consumer or producer.
        metrics: numbers by name, such as ``Published`` and ``Rejected`` of a producer.
        message: what happened.
        warns: whether the message is a warning, and else for information.
        fields: what else the line says.
    """
    counted = _metrics.serialize_metric_set(
        metrics={name: {"Unit": "Count", "Value": number} for name, number in metrics.items()},
        dimensions={"service": service},
    )
    level = logging.WARNING if warns else logging.INFO
    if level < logger.log_level:
        _write(_json(counted))
        return
    log = logger.warning if warns else logger.info
    log(message, extra={**fields, **counted}, stacklevel=_CALLER)


def _write(line: str) -> None:
    """Write a line where the logger does, in one piece: a batch counts in several threads."""
    stream = cast("logging.StreamHandler[TextIO]", logger.logger_handler).stream
    stream.write(f"{line}\n")
    stream.flush()
