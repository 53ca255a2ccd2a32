"""A pipe from a table's stream to an event bus.

Stock MiniStack never delivers records whose target is a bus, drops `SourceParameters` and
`TargetParameters` of a template, and looks at the stream once a second. On AWS a pipe drops the
records that its filters do not match, makes an event of each as `InputTemplate` and
`EventBridgeEventBusParameters` say, and puts them on the bus with the pipe's role. A refused record
is tried again, `MaximumRetryAttempts` times if that is set and for ever if not; then a note that
names the record goes to the pipe's dead-letter queue.
"""

import json
import logging
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from ministack.services import dynamodb, eventbridge
from ministack.services import pipes as stock

from engine import control, global_endpoints, role_clients
from engine.cloudformation import Properties, extend
from engine.json_paths import find
from engine.scope import Scope, impaired
from engine.settings import Settings

_POLL_SECONDS = 0.05
_PLACE = re.compile(r"<(\$[^>]*)>")

_logger = logging.getLogger("engine")
_stock_deliver = stock._deliver_batch

type _Record = dict[str, Any]


@dataclass(slots=True)
class _Progress:
    """How far a pipe is in its batch, which MiniStack delivers until all of it was taken."""

    done: int = 0
    attempts: int = 0  # at the record that is next
    not_before: float = 0.0

    def advance(self) -> None:
        """Go on to the next record."""
        self.done += 1
        self.attempts = 0
        self.not_before = 0.0


class _EventBusPipes:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.progress: dict[tuple[str, float], _Progress] = {}
        """By the pipe's ARN and the time of its creation: a stack may be deleted and deployed
        again."""

    def deliver(self, pipe: Properties, batch: list[_Record]) -> bool:
        """Take the pipe through its batch, or as far as its target lets it.

        Return whether all of it is delivered.
        """
        if not _is_ours(pipe):
            return bool(_stock_deliver(pipe, batch))
        key = (pipe["Arn"], pipe["CreationTime"])
        at = self.progress.setdefault(key, _Progress())
        if time.monotonic() < at.not_before:
            return False
        for record in batch[at.done :]:
            if not _runs(pipe):
                return False
            if _matches(pipe, record) and not self._put(pipe, record):
                at.attempts += 1
                at.not_before = time.monotonic() + self._settings.delay(at.attempts)
                if not 0 <= _source(pipe).get("MaximumRetryAttempts", -1) < at.attempts:
                    return False
                self._dead_letter(pipe, record)
            at.advance()
        del self.progress[key]
        return True

    def _put(self, pipe: Properties, record: _Record) -> bool:
        """Put a record on the bus; return whether the bus took it."""
        # An endpoint hands the events to the bus of the region that it uses at the moment.
        endpoint = _target(pipe).get("EndpointId")
        region = global_endpoints.region_of(endpoint) if endpoint else None
        events = role_clients.client(
            self._settings, "events", role=pipe["RoleArn"], user=pipe["Name"], region=region
        )
        try:
            return not events.put_events(Entries=[_entry(pipe, record)])["FailedEntryCount"]
        except (BotoCoreError, ClientError) as error:
            _logger.warning("pipe %s: %s", pipe["Name"], error)
            return False

    def _dead_letter(self, pipe: Properties, record: _Record) -> None:
        number = record["dynamodb"]["SequenceNumber"]
        note = {
            "context": {"partnerResourceArn": pipe["Arn"], "condition": "RetryAttemptsExhausted"},
            "DDBStreamBatchInfo": {
                "streamArn": pipe["Source"],
                "batchSize": 1,
                "startSequenceNumber": number,
                "endSequenceNumber": number,
            },
        }
        queue = _source(pipe).get("DeadLetterConfig", {}).get("Arn")
        role_clients.dead_letter(
            self._settings, queue, note, role=pipe["RoleArn"], user=pipe["Name"]
        )


def _behind() -> int:
    """Count the records that running pipes have not put yet."""
    count = 0
    for (account, region, _), pipe in stock._pipes.all_items():
        if _is_ours(pipe) and _runs(pipe):
            where = {"account_id": account, "region": region}
            _, table = stock._dynamodb_stream_source(pipe["Source"])
            position = stock._positions.get_scoped(account, region, pipe["Arn"], 0)
            start = max(position, dynamodb.stream_start_position(table, **where))
            count += max(0, dynamodb.stream_end_position(table, **where) - start)
    return count


def _is_ours(pipe: Properties) -> bool:
    return (
        ":event-bus/" in pipe["Target"]
        and stock._dynamodb_stream_source(pipe["Source"]) is not None
    )


def _runs(pipe: Properties) -> bool:
    _, _, _, region, account, _ = pipe["Arn"].split(":", 5)
    return pipe["CurrentState"] == "RUNNING" and Scope(account, region) not in impaired


def _source(pipe: Properties) -> Properties:
    return dict(pipe.get("SourceParameters", {}).get("DynamoDBStreamParameters", {}))


def _target(pipe: Properties) -> Properties:
    return dict(pipe.get("TargetParameters", {}).get("EventBridgeEventBusParameters", {}))


def _matches(pipe: Properties, record: _Record) -> bool:
    criteria = pipe.get("SourceParameters", {}).get("FilterCriteria", {})
    filters = criteria.get("Filters", [])
    if not filters:
        return True
    for each in filters:
        for pattern in eventbridge._compiled_pattern(each["Pattern"]):
            if eventbridge._matches_detail(record, pattern):
                return True
    return False


def _value(record: _Record, setting: str) -> str:
    return str(find(record, setting)) if setting.startswith("$.") else setting


def _entry(pipe: Properties, record: _Record) -> dict[str, Any]:
    settings = _target(pipe)
    source = settings.get("Source", f"Pipe {pipe['Name']}")
    detail_type = settings.get("DetailType", "Event from aws:dynamodb")
    entry: dict[str, Any] = {
        "EventBusName": pipe["Target"].rsplit("/", 1)[-1],
        "Source": _value(record, source),
        "DetailType": _value(record, detail_type),
        "Detail": _detail(pipe, record),
        "Resources": [_value(record, each) for each in settings.get("Resources", [])],
    }
    if "Time" in settings:
        entry["Time"] = datetime.fromisoformat(_value(record, settings["Time"]))
    return entry


def _detail(pipe: Properties, record: _Record) -> str:
    """Return the pipe's input template with each path replaced by its value, as JSON."""
    template = pipe["TargetParameters"].get("InputTemplate", "<$>")
    return _PLACE.sub(lambda place: json.dumps(find(record, place[1])), template)


def _keep_parameters(name: str, properties: Properties) -> None:
    for parameters in ("SourceParameters", "TargetParameters"):
        stock._pipes[name][parameters] = properties.get(parameters, {})


def _poll_loop() -> None:
    while True:
        try:
            stock._poll_once()
        except Exception:  # one broken pipe must not stop the others
            _logger.exception("pipes could not be polled")
        time.sleep(_POLL_SECONDS)


def apply(settings: Settings) -> None:
    """Let pipes end at event buses."""
    pipes = _EventBusPipes(settings)
    stock_reset = stock.reset

    def reset() -> None:
        pipes.progress.clear()
        stock_reset()

    extend("AWS::Pipes::Pipe", _keep_parameters)
    stock._deliver_batch = pipes.deliver
    stock._poll_loop = _poll_loop
    stock.reset = reset
    control.count_work("stream_records", _behind)
