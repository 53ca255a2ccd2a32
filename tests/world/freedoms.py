"""The freedoms of the world: what a service may do, where that is documented, and its counter.

A freedom is used only under the name of its row, and `make simulate` counts it under that name.
`python -m tests.world --freedoms` prints the table of docs/simulation.md.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_AWS: Final = "https://docs.aws.amazon.com"
_EVENTBRIDGE: Final = f"{_AWS}/eventbridge/latest/userguide"
_LAMBDA: Final = f"{_AWS}/lambda/latest/dg"
_SQS: Final = f"{_AWS}/AWSSimpleQueueService/latest/SQSDeveloperGuide"
_DYNAMODB: Final = f"{_AWS}/amazondynamodb/latest/developerguide"

_DELIVERY: Final = f"{_EVENTBRIDGE}/eb-troubleshooting.html"
_ENDPOINTS: Final = f"{_EVENTBRIDGE}/eb-global-endpoints.html"
_ARCHIVE: Final = f"{_EVENTBRIDGE}/eb-archive-event.html"
_REPLAYS: Final = f"{_EVENTBRIDGE}/eb-replay-archived-event.html"
_RETRIES: Final = f"{_EVENTBRIDGE}/eb-rule-retry-policy.html"
_PIPES: Final = f"{_EVENTBRIDGE}/eb-pipes-error-troubleshooting.html"
_SCHEDULER: Final = f"{_AWS}/scheduler/latest/UserGuide/what-is-scheduler.html"
_ASYNCHRONOUS: Final = f"{_LAMBDA}/invocation-async-error-handling.html"
_ENVIRONMENTS: Final = f"{_LAMBDA}/lambda-runtime-environment.html"
_MAPPINGS: Final = f"{_LAMBDA}/invocation-eventsourcemapping.html"
_AT_LEAST_ONCE: Final = f"{_SQS}/standard-queues-at-least-once-delivery.html"
_STANDARD: Final = f"{_SQS}/standard-queues.html"
_CONSISTENCY: Final = f"{_DYNAMODB}/HowItWorks.ReadConsistency.html"
_ERRORS: Final = f"{_DYNAMODB}/Programming.Errors.html"
_GLOBAL: Final = f"{_DYNAMODB}/V2globaltables_HowItWorks.html"
_TTL: Final = f"{_DYNAMODB}/TTL.html"
_TRANSACTIONS: Final = f"{_DYNAMODB}/transaction-apis.html"
_SDK: Final = f"{_AWS}/sdkref/latest/guide/feature-retry-behavior.html"
_HTTP_API: Final = f"{_AWS}/apigateway/latest/developerguide/limits.html"
_PROTOCOL: Final = "payment-gateway.md#what-a-gateway-may-do-wrong"
_CLOCKS: Final = "guarantees.md#conditions"
_REGIONS: Final = "two-regions.md#failing-over"
_REPLAYING: Final = "../ops/docs/operations.md#replaying-the-archive"
_CHANGING: Final = "../ops/docs/operations.md#changing-something"
_OVERDUE: Final = "../ops/docs/runbooks/overdue.md"
_PRODUCERS: Final = "adr/0019-ids-of-other-producers.md"
_HISTORY: Final = "adr/0004-read-model-is-a-timeline.md"


class Freedom(NamedTuple):
    """What a service may do."""

    service: str
    what: str
    """The counter's name."""
    source: str
    """The URL of AWS's documentation, or a page of docs/."""


FREEDOMS: Final[Mapping[str, Freedom]] = {
    what: Freedom(service, what, source)
    for service, what, source in (
        ("EventBridge", "an event delivered twice", _DELIVERY),
        ("EventBridge", "an event late by minutes", _DELIVERY),
        ("EventBridge", "a target that refuses", _RETRIES),
        ("EventBridge", "window: deliveries", _RETRIES),
        ("EventBridge", "an event replayed from the archive", _REPLAYS),
        ("EventBridge", "replayed events in another order", _REPLAYS),
        ("EventBridge", "an event late in the archive", _ARCHIVE),
        ("EventBridge", "an event copied to the other region", _ENDPOINTS),
        ("Pipes", "a record piped twice", _PIPES),
        ("Pipes", "a record late by minutes", _PIPES),
        ("Pipes", "a bus that refuses", _PIPES),
        ("Pipes", "window: pipe", _PIPES),
        ("Scheduler", "a tick sent twice", _SCHEDULER),
        ("Scheduler", "window: schedule", _SCHEDULER),
        ("Lambda", "an event invoked twice", _ASYNCHRONOUS),
        ("Lambda", "an invocation late by minutes", _ASYNCHRONOUS),
        ("Lambda", "an invocation throttled", _ASYNCHRONOUS),
        ("Lambda", "a sandbox that is ended while idle", _ENVIRONMENTS),
        ("Lambda", "window: CarRideApiFunction", _ENVIRONMENTS),
        ("Lambda", "window: RideHistoryFunction", _ENVIRONMENTS),
        ("Lambda", "window: DispatchFunction", _ENVIRONMENTS),
        ("Lambda", "window: PaymentFunction", _ENVIRONMENTS),
        ("Lambda", "window: ReconcilerFunction", _ENVIRONMENTS),
        ("Lambda", "a clock that is wrong", _CLOCKS),
        ("SQS", "a message received twice", _AT_LEAST_ONCE),
        ("SQS", "a delete that is lost", _AT_LEAST_ONCE),
        ("SQS", "messages in another order", _STANDARD),
        ("SQS", "a batch that is not full", _MAPPINGS),
        ("SQS", "SQS: killed before", _ENVIRONMENTS),
        ("SQS", "SQS: killed after", _ENVIRONMENTS),
        ("SQS", "SQS: request lost", _SDK),
        ("SQS", "SQS: answer lost", _SDK),
        ("SQS", "SQS: late", _SDK),
        ("SQS", "SQS: slow", _SDK),
        ("SQS", "SQS: throttled", _SDK),
        ("SQS", "window: SQS", _SDK),
        ("DynamoDB", "a stale read", _CONSISTENCY),
        ("DynamoDB", "DynamoDB: killed before", _ENVIRONMENTS),
        ("DynamoDB", "DynamoDB: killed after", _ENVIRONMENTS),
        ("DynamoDB", "DynamoDB: request lost", _SDK),
        ("DynamoDB", "DynamoDB: answer lost", _SDK),
        ("DynamoDB", "DynamoDB: late", _SDK),
        ("DynamoDB", "DynamoDB: slow", _SDK),
        ("DynamoDB", "DynamoDB: throttled", _ERRORS),
        ("DynamoDB", "DynamoDB: failed before", _ERRORS),
        ("DynamoDB", "DynamoDB: failed after", _ERRORS),
        ("DynamoDB", "DynamoDB: conflict", _TRANSACTIONS),
        ("DynamoDB", "window: DynamoDB", _ERRORS),
        ("DynamoDB", "window: writes to the outbox", _ERRORS),
        ("DynamoDB", "a write that reaches the other region late", _GLOBAL),
        ("DynamoDB", "a write that arrives after a later one", _GLOBAL),
        ("DynamoDB", "an expired item that is still there", _TTL),
        ("DynamoDB", "an expired item that is deleted", _TTL),
        ("API", "a request lost on its way from the client", _HTTP_API),
        ("API", "an answer lost on its way to the client", _HTTP_API),
        ("gateway", "gateway: killed before", _ENVIRONMENTS),
        ("gateway", "gateway: killed after", _ENVIRONMENTS),
        ("gateway", "gateway: killed, and finished late", _PROTOCOL),
        ("gateway", "gateway: busy", _PROTOCOL),
        ("gateway", "gateway: refused", _PROTOCOL),
        ("gateway", "gateway: refused for good", _PROTOCOL),
        ("gateway", "gateway: failed", _PROTOCOL),
        ("gateway", "gateway: no answer", _PROTOCOL),
        ("gateway", "gateway: answer lost", _PROTOCOL),
        ("gateway", "gateway: finished late", _PROTOCOL),
        ("gateway", "gateway: finished days later", _PROTOCOL),
        ("gateway", "gateway: slow", _PROTOCOL),
        ("gateway", "gateway: kept under its key", _PROTOCOL),
        ("gateway", "gateway: key forgotten", _PROTOCOL),
        ("gateway", "gateway: answers about something else", _PROTOCOL),
        ("gateway", "gateway: pending", _PROTOCOL),
        ("gateway", "gateway: declined", _PROTOCOL),
        ("gateway", "gateway: detached card", _PROTOCOL),
        ("gateway", "gateway: unknown customer", _PROTOCOL),
        ("gateway", "gateway: customer to be asked", _PROTOCOL),
        ("gateway", "gateway: hold ended", _PROTOCOL),
        ("gateway", "gateway: canceled by hand", _PROTOCOL),
        ("gateway", "gateway: raise refused", _PROTOCOL),
        ("gateway", "window: slow gateway", _PROTOCOL),
        ("gateway", "window: gateway", _PROTOCOL),
        ("producer", "events of another producer", _PRODUCERS),
        ("operator", "a booking that nobody can read", _OVERDUE),
        ("operator", "a failover", _REGIONS),
        ("operator", "operator: replay", _REPLAYING),
        ("operator", "operator: redrive", _CHANGING),
        ("operator", "operator: release", _CHANGING),
        ("operator", "operator: forget", _CHANGING),
        ("operator", "operator: forget an entry", _HISTORY),
        ("operator", "operator: settle", _CHANGING),
        ("operator", "operator: free a car", _OVERDUE),
    )
}


def rows() -> Iterator[str]:
    """Yield the lines of the table in docs/simulation.md."""
    yield "| service | freedom | documented |"
    yield "| --- | --- | --- |"
    for freedom in FREEDOMS.values():
        page = freedom.source.rpartition("/")[2].partition("#")[0]
        name = page.removesuffix(".html").removesuffix(".md")
        yield f"| {freedom.service} | `{freedom.what}` | [{name}]({freedom.source}) |"
