"""A pipe from a table's stream to an event bus.

AWS: a pipe reads the stream in batches, drops the records that its filters do not match, makes an event of each as
`InputTemplate` and `EventBridgeEventBusParameters` say, and puts them on the bus with the pipe's role. A refused record
is tried again, `MaximumRetryAttempts` times if that is set and for ever if not; then a note that names the record goes
to the pipe's dead-letter queue.

Stock MiniStack: never delivers records whose target is a bus, drops `SourceParameters` and `TargetParameters` of a
template, and looks at the stream once a second.

Plugs into `pipes._poll_pipe`, `pipes._poll_loop` and CloudFormation's handlers of the type.
"""

import json
import logging
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from ministack.services import dynamodb, eventbridge, sqs
from ministack.services import pipes as stock

from local.engine import global_endpoints, in_flight, role_clients
from local.engine.cloudformation import Properties, extend
from local.engine.scope import Scope, impaired
from local.engine.settings import Settings

_POLL_SECONDS = 0.05
_BATCH = 100  # records read at once, unless the pipe says otherwise
_PLACE = re.compile(r"<(\$[^>]*)>")

_logger = logging.getLogger("local.engine")
_stock_poll_pipe = stock._poll_pipe

type _Record = dict[str, Any]


@dataclass(slots=True)
class _Batch:
    """The batch at a pipe's position."""

    size: int
    left: list[_Record]
    """Records that are not on the bus yet."""
    attempts: int = 0
    not_before: float = 0.0


class _EventBusPipes:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._batches: dict[str, _Batch] = {}

    def reset(self) -> None:
        self._batches.clear()

    def poll(self, pipe: Properties, account: str) -> None:
        """Take the pipe one batch further, or as far as its target lets it."""
        if pipe["CurrentState"] != "RUNNING" or Scope(account, _region(pipe)) in impaired:
            return
        batch = self._batches.get(pipe["Arn"]) or self._read(pipe, account)
        if batch is None or time.monotonic() < batch.not_before:
            return
        self._batches[pipe["Arn"]] = batch
        batch.left = self._put(pipe, batch.left)
        if batch.left:
            batch.attempts += 1
            batch.not_before = time.monotonic() + self._settings.delay(batch.attempts)
            most = _source(pipe).get("MaximumRetryAttempts", -1)
            if 0 <= most < batch.attempts:
                self._dead_letter(pipe, batch.left)
                batch.left = []
        if not batch.left:
            stock._positions[pipe["Arn"]] += batch.size
            del self._batches[pipe["Arn"]]

    def _read(self, pipe: Properties, account: str) -> _Batch | None:
        start, end = _positions(pipe, account)
        size = min(int(_source(pipe).get("BatchSize", _BATCH)), end - start)
        if size <= 0:
            return None
        stock._positions[pipe["Arn"]] = start
        records = dynamodb.stream_records_since(_table(pipe), start, size, account_id=account)
        return _Batch(size, [record for record in records if _matches(pipe, record)])

    def _put(self, pipe: Properties, records: list[_Record]) -> list[_Record]:
        """Put records on the bus, one by one; return those that it did not take."""
        # An endpoint hands the events to the bus of the region that it uses at the moment.
        endpoint = pipe.get("TargetParameters", {}).get("EventBridgeEventBusParameters", {}).get("EndpointId")
        region = global_endpoints.region_of(endpoint) if endpoint else None
        events = role_clients.client(self._settings, "events", role=pipe["RoleArn"], user=pipe["Name"], region=region)
        refused = []
        for record in records:
            try:
                failed = events.put_events(Entries=[_entry(pipe, record)])["FailedEntryCount"]
            except (BotoCoreError, ClientError) as error:
                _logger.warning("pipe %s: %s", pipe["Name"], error)
                failed = 1
            if failed:
                refused.append(record)
        return refused

    def _dead_letter(self, pipe: Properties, records: list[_Record]) -> None:
        queue = _source(pipe).get("DeadLetterConfig", {}).get("Arn")
        if not queue:
            _logger.error("pipe %s gave %d records up and has no dead-letter queue", pipe["Name"], len(records))
            return
        client = role_clients.client(self._settings, "sqs", role=pipe["RoleArn"], user=pipe["Name"])
        for record in records:
            number = record["dynamodb"]["SequenceNumber"]
            note = {
                "version": "1.0",
                "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "context": {"partnerResourceArn": pipe["Arn"], "condition": "RetryAttemptsExhausted"},
                "DDBStreamBatchInfo": {
                    "streamArn": pipe["Source"],
                    "batchSize": 1,
                    "startSequenceNumber": number,
                    "endSequenceNumber": number,
                },
            }
            try:
                client.send_message(QueueUrl=sqs._queue_url(queue.rsplit(":", 1)[-1]), MessageBody=json.dumps(note))
            except (BotoCoreError, ClientError):
                _logger.exception("pipe %s: record %s could not be dead-lettered", pipe["Name"], number)

    def behind(self) -> int:
        """Count the records that running pipes have not put yet."""
        count = 0
        for (account, region, _), pipe in stock._pipes.all_items():
            if _is_ours(pipe) and pipe["CurrentState"] == "RUNNING" and Scope(account, region) not in impaired:
                start, end = _positions(pipe, account)
                count += max(0, end - start)
        return count


def _is_ours(pipe: Properties) -> bool:
    return ":event-bus/" in pipe["Target"] and stock._dynamodb_stream_source(pipe["Source"]) is not None


def _source(pipe: Properties) -> Properties:
    return dict(pipe.get("SourceParameters", {}).get("DynamoDBStreamParameters", {}))


def _region(pipe: Properties) -> str:
    return str(pipe["Arn"].split(":")[3])


def _table(pipe: Properties) -> str:
    return str(stock._dynamodb_stream_source(pipe["Source"])[1])


def _positions(pipe: Properties, account: str) -> tuple[int, int]:
    """Return the pipe's position in its stream, and the end of the stream."""
    where = {"account_id": account, "region": _region(pipe)}
    start = dynamodb.stream_start_position(_table(pipe), **where)
    position = stock._positions.get_scoped(account, _region(pipe), pipe["Arn"], 0)
    return max(position, start), dynamodb.stream_end_position(_table(pipe), **where)


def _matches(pipe: Properties, record: _Record) -> bool:
    filters = pipe.get("SourceParameters", {}).get("FilterCriteria", {}).get("Filters", [])
    patterns = [pattern for each in filters for pattern in eventbridge._compiled_pattern(each["Pattern"])]
    return not filters or any(eventbridge._matches_detail(record, pattern) for pattern in patterns)


def _find(record: _Record, path: str) -> Any:
    """Return the value at a path like ``$.dynamodb.NewImage.type.S``; ``None`` if there is none."""
    found: Any = record
    for name in path.removeprefix("$").strip(".").split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _value(record: _Record, setting: str) -> str:
    """Return the value of a target parameter, which is a path into the record or plain text."""
    return str(_find(record, setting)) if setting.startswith("$.") else setting


def _detail(record: _Record, template: str | None) -> str:
    if template is None:
        return json.dumps(record)
    return _PLACE.sub(lambda place: json.dumps(_find(record, place[1])), template)


def _entry(pipe: Properties, record: _Record) -> dict[str, Any]:
    target = pipe.get("TargetParameters", {})
    settings = target.get("EventBridgeEventBusParameters", {})
    entry: dict[str, Any] = {
        "EventBusName": pipe["Target"].rsplit("/", 1)[-1],
        "Source": _value(record, settings.get("Source", f"Pipe {pipe['Name']}")),
        "DetailType": _value(record, settings.get("DetailType", "Event from aws:dynamodb")),
        "Detail": _detail(record, target.get("InputTemplate")),
        "Resources": [_value(record, each) for each in settings.get("Resources", [])],
    }
    if "Time" in settings:
        entry["Time"] = datetime.fromisoformat(_value(record, settings["Time"]))
    return entry


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

    def poll_pipe(tables: Any, pipe: Properties, account: str) -> None:
        if _is_ours(pipe):
            pipes.poll(pipe, account)
        else:
            _stock_poll_pipe(tables, pipe, account)

    def reset() -> None:
        pipes.reset()
        stock_reset()

    extend("AWS::Pipes::Pipe", _keep_parameters)
    stock._poll_pipe = poll_pipe
    stock._poll_loop = _poll_loop
    stock.reset = reset
    in_flight.register("stream_records", pipes.behind)
