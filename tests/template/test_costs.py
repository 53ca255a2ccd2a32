"""What `make costs` counts follows from the template, its parameters and the volume."""

import re
from dataclasses import replace
from typing import Any, Final

import pytest

from ops.verify import Deployment
from tests.template.stack import every_choice
from tools.costs.__main__ import main
from tools.costs.bill import (
    PRODUCTION,
    Use,
    beyond_free_tier,
    bill,
    idle,
    load,
    shards,
    sum_of,
    summed,
)
from tools.transformed import ROLES, ROOT, Stack, stack

pytestmark = pytest.mark.integration

STACK: Final = stack(PaymentGatewayUrl="https://gateway.example")
RIDES: Final = 1e6
FREE: Final = {
    # Settings and policies of something that is billed.
    *(
        "Lambda::Alias",
        "Lambda::EventInvokeConfig",
        "Lambda::Url",
        "Lambda::Version",
        "Logs::ResourcePolicy",
    ),
    *("IAM::Policy", "IAM::Role", "SNS::TopicPolicy", "SQS::QueuePolicy", "ApiGatewayV2::Api"),
    # Their contents are billed, or what is done with them.
    *(
        "Events::Endpoint",
        "Events::EventBus",
        "Logs::Delivery",
        "Logs::DeliveryDestination",
        "Logs::DeliverySource",
    ),
    *("Logs::QueryDefinition", "EventSchemas::Registry", "EventSchemas::Schema"),
    # Free for Lambda; 75 GB of code are free; an email costs $0.00002.
    *(
        "CodeDeploy::Application",
        "CodeDeploy::DeploymentGroup",
        "Lambda::LayerVersion",
        "SNS::Subscription",
    ),
}
"""Types of resources, without ``AWS::``, that cost nothing by themselves."""


def dollars(deployed: Stack) -> dict[str, float]:
    """Return a month's bill of a stack, by what is billed."""
    return {use.what: use.dollars for use in summed([*idle(deployed), *load(deployed, RIDES)])}


def test_every_type_is_billed_or_free_with_a_reason() -> None:
    """A stack without the resources of a type has another bill, or the type is listed as free."""
    choices = [
        *every_choice(),
        {},
        ROLES["primary"] | {"PaymentGatewayUrl": "https://gateway.example"},
    ]
    stacks = [stack(**choice) for choice in choices]
    types = {resource["Type"] for each in stacks for resource in each.resources.values()}

    def billed(deployed: Stack, kind: str) -> bool:
        others = {name: each for name, each in deployed.resources.items() if each["Type"] != kind}
        return dollars(replace(deployed, resources=others)) != dollars(deployed)

    assert {kind for kind in types if not any(billed(each, kind) for each in stacks)} == {
        f"AWS::{name}" for name in FREE
    }


def test_an_alarm_more_costs_its_metrics() -> None:
    """An alarm is billed for each metric that it watches."""
    metrics = [{"Id": "sum", "Expression": "a + b"}, {"MetricStat": {}}, {"MetricStat": {}}]
    for alarm, price in (({"MetricName": "Errors"}, 0.10), ({"Metrics": metrics}, 0.20)):
        more = STACK.resources | {
            "OneMoreAlarm": {"Type": "AWS::CloudWatch::Alarm", "Properties": alarm}
        }
        before, after = (
            sum(use.dollars for use in idle(each))
            for each in (STACK, replace(STACK, resources=more))
        )
        assert after - before == pytest.approx(price)


def test_rides_cost_in_proportion() -> None:
    """None cost nothing, and twice as many twice as much, but for what a month costs."""
    assert bill(0) == (bill(RIDES)[0], [])
    once, twice = (
        {use.what: use.dollars for use in bill(rides)[1]} for rides in (RIDES, 2 * RIDES)
    )
    for what, amount in once.items():
        times = 1 if "metrics" in what else 2
        assert twice[what] == pytest.approx(times * amount) or (
            what == "X-Ray: traces" and amount < twice[what]
        ), what


@pytest.mark.parametrize(
    ("chosen", "changed"),
    [
        ({"Tracing": "Active"}, "X-Ray"),
        ({"LogLevel": "ERROR"}, "Logs"),
        ({"Retention": "short"}, "storage|items that expire"),
        ({"Architecture": "x86_64"}, "Lambda: 20 ms"),
        ({"TableBilling": "provisioned"}, "capacity|units|alarm"),
        (
            {"PaymentGatewayUrl": "", "Stage": "prod"},
            # The second half is stage prod's.
            "Lambda|Logs|metrics, without|capacity|write units|alarms of|dashboard|stream",
        ),
        ({"PaymentGatewayUrl": ""}, "Lambda|Logs|write units"),  # the simulated one
        ({"PaymentGatewaySecretArn": "arn"}, "secret"),
        (
            {
                "Stage": "local",
                "StaffGroup": "",
                "TableBilling": "provisioned",
            },
            "Scheduler|Lambda|Logs|capacity|units|alarm|dashboard",
        ),
        ({"TableBilling": "on-demand"}, "capacity|write units|alarms of auto|stream"),
        (
            {"Stage": "local"},
            "Scheduler|Lambda|Logs|capacity|write units|alarms of auto|dashboard|stream",
        ),
        ({"MinCapacity": "9"}, "the least"),
        ({"AlarmEmail": "you@example.com", "StaffGroup": ""}, ""),
    ],
)
def test_a_parameter_changes_its_lines(chosen: dict[str, Any], changed: str) -> None:
    """A parameter changes the lines that it is about, and no other."""
    before, after = (
        {
            (part, use.what, use.price): use
            for part, uses in enumerate(bill(RIDES, **each))
            for use in uses
        }
        for each in ({}, chosen)
    )
    different = {key[1] for key in before | after if before.get(key) != after.get(key)}
    words = changed.split("|") if changed else []
    assert [what for what in different if not any(word in what for word in words)] == []
    assert [word for word in words if not any(word in what for what in different)] == []


def test_the_targets_are_kept() -> None:
    """An idle stack of stage `dev` costs no more than $12, a million rides $105 in any stage.

    Nothing is subtracted for what an account has free.
    """
    resting, in_dev = bill(RIDES)
    assert sum(use.dollars for use in resting) <= 12
    _, in_production = bill(RIDES, **PRODUCTION)
    for rides in (in_dev, in_production):
        assert sum(use.dollars for use in rides) <= 105


def test_the_figures_of_the_pages_are_those_of_the_command() -> None:
    """What costs.md and ADR 0029 say of an idle stack, outside of the tables that are written."""

    def of(uses: list[Use], *words: str) -> float:
        lines = [use for use in uses if not words or any(word in use.what for word in words)]
        return sum(round(use.dollars, 2) for use in lines)  # as the command adds them up

    outbox = ("stream", "auto scaling", "capacity, the least")
    by_default = bill(0)[0]
    on_demand = bill(0, TableBilling="on-demand")[0]
    provisioned = of(by_default, *outbox)
    figures = {
        "an idle stack": of(by_default),
        "the same in an account of its own": of(beyond_free_tier(by_default)),
        "the same on demand": of(on_demand),
        "the reads of one shard": of(by_default, "stream"),
        "the reads of four": of(on_demand, "stream"),
        "the outbox": provisioned,
        "its capacity": of(by_default, "capacity, the least"),
        "its alarms": of(by_default, "auto scaling"),
        "what is saved": of(on_demand, "stream") - provisioned,
        "what is lost with four shards": of(by_default, *outbox[1:]),
    }
    pages = [
        (ROOT / "docs" / "costs.md").read_text(encoding="utf-8"),
        *(each.read_text(encoding="utf-8") for each in (ROOT / "docs" / "adr").glob("0029-*.md")),
    ]
    text = " ".join(pages)
    assert [what for what, amount in figures.items() if f"{amount:.2f}" not in text] == []


def test_an_hour_of_a_trial_costs_less_than_five_cents() -> None:
    """A stack of stage `dev`, its metrics, and the rides of `./carride verify`.

    By the month are alarms, capacity and metrics, which AWS bills by the hour:
    aws.amazon.com/cloudwatch/pricing
    """
    rides = Deployment.RIDES * 1.1  # a tenth of them is booked, too
    by_the_month, of_rides = bill(rides)
    hourly = [*by_the_month, *(use for use in of_rides if "metrics" in use.what)]
    others = [use for use in of_rides if "metrics" not in use.what]
    hour = sum(use.dollars for use in hourly) / 730
    assert hour + sum(use.dollars for use in others) < 0.05


@pytest.mark.parametrize(
    ("chosen", "number"),
    [
        ({}, 1),
        ({"MinCapacity": "750"}, 1),  # 750 / 1,000 + 750 / 3,000
        ({"MinCapacity": "751"}, 2),
        ({"Stage": "prod"}, 4),
        ({"TableBilling": "on-demand"}, 4),
    ],
)
def test_the_pipe_reads_a_shard_for_each_partition(chosen: dict[str, str], number: int) -> None:
    """A partition takes 1,000 writes or 3,000 reads a second, a new table on demand four times."""
    deployed = stack(**chosen)
    assert shards(deployed, "MinCapacity") == number
    reads = [use.units for use in idle(deployed) if use.price == "stream read"]
    assert reads == [pytest.approx(number * 4 * 730 * 3600 / 1e6)]


def test_both_regions_read_a_shard() -> None:
    """A secondary's pipe reads the stream of its replica, which has as many partitions."""
    reads = [
        sum(use.quantity for use in bill(0, regions=number)[0] if use.price == "stream read")
        for number in (1, 2)
    ]
    assert reads[1] == 2 * reads[0]


def test_the_free_tier_is_given_once() -> None:
    """Lines of one price share what is free; what is left is billed."""
    uses = [
        Use("some", "alarm", 6),
        Use("more", "alarm", 6),
        Use("polls", "queue request", 1.5e6),
        Use("a composite alarm", "composite alarm", 1),
    ]
    paid = {use.what: use.quantity for use in beyond_free_tier(uses)}
    assert paid == {"more": 2, "polls": 0.5e6, "a composite alarm": 1}


def test_two_regions_copy_events_and_items() -> None:
    """Both stacks rest; each event and item is stored twice, but processed once."""
    chosen = {"TableBilling": "on-demand"}
    one, two = (
        {use.what: use.quantity for part in bill(RIDES, regions=each, **chosen) for use in part}
        for each in (1, 2)
    )
    for what in ("composite alarms", "EventBridge: archived events"):
        assert two[what] == 2 * one[what]
    assert two["EventBridge: copied events"] == one["EventBridge: events"]
    assert one["Lambda: requests"] == two["Lambda: requests"]
    assert two["transfer to the other region"] > 0
    assert two["DynamoDB: deletes of expired items, in the replica"] == 16 * RIDES
    assert not any("deletes of expired" in what for what in one)
    primary, single = (
        stack(Stage="prod", **chosen, **ROLES[role]) for role in ("primary", "standalone")
    )
    assert dollars(primary)["DynamoDB: write units"] == pytest.approx(
        2 * dollars(single)["DynamoDB: write units"], rel=1e-3
    )


@pytest.mark.parametrize(
    ("chosen", "named"), [({"Colour": "red"}, "Colour"), ({"Tracing": "Often"}, "PassThrough")]
)
def test_a_wrong_parameter_is_named(chosen: dict[str, Any], named: str) -> None:
    """A mistake is an error that says what is allowed."""
    with pytest.raises(ValueError, match=named):
        bill(RIDES, **chosen)


def test_the_command_prints_three_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """The bill of the rides, the bounds of the stack that is chosen, and each store's records."""
    main(["--rides", "2e6", "--set", "ApiRate=8"])
    before, month, a_second, records = re.split(
        r"^# .+$", capsys.readouterr().out, flags=re.MULTILINE
    )
    assert not before
    assert "2,000,000 rides:" in month
    assert f"**{sum_of(bill(2e6)[1])}**" in month
    assert "First: requests to the API, at 2 rides a second." in a_second
    assert "| ElastiCache Serverless for Valkey |" in records


def test_the_command_refuses_a_wrong_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with the status of a wrong argument before it prints a table."""
    with pytest.raises(SystemExit, match="2"):
        main(["--set", "Tracing=Often"])
    printed = capsys.readouterr()
    assert "PassThrough" in printed.err
    assert not printed.out
