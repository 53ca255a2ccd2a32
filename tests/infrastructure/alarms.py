"""What the template's alarms watch, and what they have to."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from infrastructure.rules.house_rules import listed, mentioned

WATCHED: Final = {
    "AWS/Events": {"IngestionToInvocationStartLatency"},
    "CarRideBus": {"InvocationsFailedToBeSentToDlq"},
    "CarRideApi": {"5xx"},
    "CarRideApiFunction": {"Errors", "Throttles"},
    "carride-api": {"New"},
    "ValkeyCache": {"Evictions", "ThrottledCmds"},
    "OutboxPipe": {"EventCount", "ExecutionFailed", "ExecutionThrottled"},
    "CarRideSimulatorFunction": {"DestinationDeliveryFailures", "Errors", "Throttles"},
    "carride-simulator": {"Rejected"},
    "RideHistoryFunction": {"DestinationDeliveryFailures", "Errors", "Throttles"},
    "ride-history": {"LostLease", "Quarantined", "Takeover"},
    "DispatchFunction": {"Errors", "Throttles"},
    "dispatch": {"Expired", "LostLease", "Quarantined", "Takeover"},
    "PaymentFunction": {"DestinationDeliveryFailures", "Errors", "Throttles"},
    "payment": {"Expired", "LostLease", "Quarantined", "Takeover"},
    "ReconcilerFunction": {"DestinationDeliveryFailures", "Errors", "Throttles"},
    "reconciler": {"Overdue"},
}
"""Metrics by what they are of: a resource, or whoever counts by its service name. Queues have rules of their own."""


def watched(resources: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the metrics that alarms watch which tell somebody, by what the metrics are of."""
    found: dict[str, set[str]] = {}
    for resource in resources.values():
        properties = resource["Properties"]
        is_alarm = resource["Type"] == "AWS::CloudWatch::Alarm" and properties.get("Namespace") != "AWS/SQS"
        if is_alarm and mentioned(properties.get("AlarmActions")):
            for subject, metric in _metrics(properties):
                found.setdefault(subject, set()).add(metric)
    return found


def _metrics(alarm: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for query in alarm.get("Metrics", [{"MetricStat": {"Metric": alarm}}]):
        metric = query.get("MetricStat", {}).get("Metric")
        if metric is None:  # an expression: of other queries, which come by themselves, or of Metrics Insights
            for name in mentioned(query.get("Expression")):
                yield name, str(query["Expression"]["Fn::Sub"]).partition("(")[2].partition(")")[0]
            continue
        values = [each.get("Value") for each in listed(metric.get("Dimensions")) if each]
        subjects = sorted(mentioned(values)) or [str(value) for value in values] or [str(metric["Namespace"])]
        yield subjects[0], str(metric["MetricName"])
