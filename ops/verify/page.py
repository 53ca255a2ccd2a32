"""The checklist of docs/on-an-account.md: what `./carride verify` checks, and what a person has to."""

import re
from typing import Final

from ops.verify.checks import CHECKS

_GENERATED: Final = re.compile(r"(?<=<!-- checklist -->\n).*?(?=<!-- end of the checklist -->)", re.DOTALL)

BY_HAND: Final = {
    "CloudFormation expands loops over `Fn::FindInMap`, and accepts references to `….Alias` before SAM's transform":
        "`aws cloudformation get-template --template-stage Processed`",
    "log delivery of the bus is accepted, and the bus reports errors in its log group":
        "`aws logs describe-deliveries`, `aws logs tail /aws/vendedlogs/events/event-bus/carride`",
    "every widget of the dashboard has data, and the saved queries find lines": "the dashboard, after a day of traffic",
    "a gradual deployment moves the traffic, and rolls back when a handler raises":
        "`sam deploy --parameter-overrides DeploymentStrategy=Canary10Percent5Minutes Release=0000000001`",
    "a release that changes only a parameter takes effect behind the alias":
        "`aws lambda get-function-configuration --function-name … --qualifier live --query Environment`",
    "everything is removed": "`sam delete`, then `aws resourcegroupstaggingapi get-resources`",
    "Lambda keeps the request id over its retries, after one and two minutes":
        "`aws logs filter-log-events --filter-pattern '{ $.outcome = \"Failed\" }'` in a consumer's log group",
    "the pipe's output for a binary attribute, a missing path and a time": "the log group of all events",
    "the pipe's dead letters have the form that the audit reads":
        "take `events:PutEvents` from its role for an hour, then receive from `OutboxPipeDlq`",
    "a rule's queue has the event from before the input transformer":
        "take the policy of the partners' topic away, then receive from `PartnersRuleDlq`",
    "TTL deletes expired items within about two days": "`aws dynamodb scan --select COUNT` of OutboxTable",
    "only tokens of the issuer are accepted, and `cognito:groups` arrive as `[one two]`":
        "`sam deploy --parameter-overrides ApiAuthorization=jwt JwtIssuer=… JwtAudience=…`, then `curl` with a token",
    "an alarm notifies its subscribers": "`aws sqs send-message --message-body '{}'` to `RideHistoryDlq`",
    "durations, latencies and throttling at your load": "a load test, and the dashboard",
    "the costs of [costs.md](costs.md)": "`aws ce get-cost-and-usage`",
    "a restored table works": "`aws dynamodb restore-table-to-point-in-time`",
    "no role has a permission that it does not use":
        "`aws iam generate-service-last-accessed-details --granularity ACTION_LEVEL` after a day of traffic",
    "only the services and roles that are meant to use the key do so": "`aws cloudtrail lookup-events`",
    "policies have no findings, and nothing is public": "`aws accessanalyzer validate-policy`, `list-findings`",
    "a replay reaches a rule that is younger than its events": "`./carride replay plan --since 1h` counts them",
    "durable functions: a second start by the same name and payload finds the first execution, also when it has ended":
        "`aws lambda invoke --invocation-type Event --durable-execution-name …`, twice",
    "durable functions: how often an invocation that dies is repeated, and what the dead letter of its execution holds":
        "[examples/durable](../examples/durable) with a step that exits",
    "two regions: both deploy in four steps, and again in two": "`./carride deploy-regions --yes`, twice",
    "two regions: `region` of a copy is the region that ingested it; `exists: false` on `replay-name` holds":
        "the log group of all events in the other region, after a replay",
    "two regions: the health check follows its alarm, the endpoint follows it, and how long both take":
        "`aws cloudwatch set-alarm-state`, then `aws route53 get-health-check-status`",
    "two regions: the heartbeat gives `IngestionToInvocationStartLatency` data each minute":
        "`aws cloudwatch get-metric-statistics`",
    "two regions: a health check that is disabled and inverted moves producers": "`aws route53 update-health-check`",
    "two regions: the lag of replicas": "the metric `ReplicationLatency`",
    "two regions: a secondary imports its tables, and its next deployment keeps them and the pipe":
        "[promotion.md](promotion.md), on a stage whose primary you have deleted but for its tables",
    "two regions: the drill loses and doubles nothing": "`./carride failover drill --since 1h --yes`",
}  # fmt: skip
"""Statements that no code here checks, and how a person does."""


def checklist() -> str:
    """Return the checklist as a table in Markdown."""
    coded = [
        (each.statement, "`./carride verify --drills --yes`" if each.drill else "`./carride verify --yes`")
        for each in CHECKS
    ]
    rows = [f"| {statement} | {how} |" for statement, how in [*coded, *BY_HAND.items()]]
    return "\n".join(["| statement | how to check it |", "| --- | --- |", *rows, ""])


def current(text: str) -> str:
    """Return the page with the current checklist."""
    return _GENERATED.sub(lambda _: checklist(), text)
