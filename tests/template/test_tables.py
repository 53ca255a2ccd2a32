"""How long things are kept, and how the tables are billed."""

import json
from typing import Final

import pytest

from carride.outbox import KEPT
from carride_idempotency.policy import DAY, Policy
from tools.costs.bill import PERCENT_USED
from tools.transformed import Stack, source, stack

pytestmark = pytest.mark.integration

PRESETS: Final = source()["Mappings"]["Retentions"]
ROADS_BACK: Final = DAY + DAY // 4 + 14 * DAY
"""EventBridge's retries, Lambda's and a dead-letter queue, one after the other, in seconds."""


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_window_outlasts_every_road_back(preset: str) -> None:
    """A record outlives archive, redelivery, retries and redrive one after the other.

    Logs cover all replays.
    """
    days = {name: int(each) for name, each in PRESETS[preset].items()}
    assert days["WindowDays"] * DAY > days["ArchiveDays"] * DAY + ROADS_BACK
    assert days["OutboxDays"] > 1  # longer than the stream that carries it
    assert days["LogDays"] >= days["ArchiveDays"]


def test_everything_is_kept_as_long_as_the_chosen_preset_says(deployed: Stack) -> None:
    """Archive, logs and functions follow the preset.

    The defaults of the code are those of the standard one.
    """
    assert sorted(source()["Parameters"]["Retention"]["AllowedValues"]) == sorted(PRESETS)
    standard = PRESETS[source()["Parameters"]["Retention"]["Default"]]
    assert (int(standard["WindowDays"]) * DAY, int(standard["OutboxDays"])) == (
        Policy().window_s,
        KEPT.days,
    )
    chosen = PRESETS[deployed.parameters["Retention"]]
    (archive,) = deployed.of_type("AWS::Events::Archive").values()
    assert archive["RetentionDays"] == chosen["ArchiveDays"]
    assert {
        each["RetentionInDays"] for each in deployed.of_type("AWS::Logs::LogGroup").values()
    } == {chosen["LogDays"]}
    for name, function in deployed.functions().items():
        variables = function["Environment"]["Variables"]
        assert variables["IDEMPOTENCY_WINDOW_DAYS"] == chosen["WindowDays"], name
        assert variables["OUTBOX_DAYS"] == chosen["OutboxDays"], name


def test_the_template_bills_tables_as_it_is_told(deployed: Stack) -> None:
    """Only what is provisioned costs while idle: every table, or the outbox in stage `dev`."""
    tables = deployed.of_type("AWS::DynamoDB::GlobalTable")
    expected = {
        "on-demand": set[str](),
        "provisioned": set(tables),
        "by-stage": set[str](),
    }
    parameters = deployed.parameters
    if parameters["Stage"] == "dev" and tables:
        expected["by-stage"] = {"OutboxTable"}
    provisioned = {name for name, table in tables.items() if table["BillingMode"] == "PROVISIONED"}
    assert provisioned == expected[parameters["TableBilling"]]
    for name in tables.keys() - provisioned:
        assert tables[name]["BillingMode"] == "PAY_PER_REQUEST", name


@pytest.mark.parametrize(
    ("chosen", "provisioned"),
    [
        ({}, ["OutboxTable"]),
        ({"Role": "primary", "PeerRegion": "eu-west-1"}, ["OutboxTable"]),
        ({"Stage": "prod"}, []),
        ({"Stage": "local"}, []),
        ({"TableBilling": "on-demand"}, []),
    ],
    ids=str,
)
def test_by_default_the_outbox_of_a_dev_stack_is_provisioned(
    chosen: dict[str, str], provisioned: list[str]
) -> None:
    """Its stream has one shard then, whose reads by the pipe are billed; elsewhere load matters."""
    tables = stack(**chosen).of_type("AWS::DynamoDB::GlobalTable")
    found = [name for name, table in tables.items() if table["BillingMode"] == "PROVISIONED"]
    assert found == provisioned


def test_a_table_scales_in_every_direction_or_has_no_capacity(deployed: Stack) -> None:
    """If provisioned, a table, its indexes and its replicas scale reads and writes.

    CloudFormation switches an existing table, to or back from `provisioned`, only with a
    `SeedCapacity` for each.
    """
    scaling = {
        "MinCapacity": {"Ref": "MinCapacity"},
        "MaxCapacity": {"Ref": "MaxCapacity"},
        "SeedCapacity": {"Ref": "MinCapacity"},
        "TargetTrackingScalingPolicyConfiguration": {"TargetValue": PERCENT_USED},
    }
    writes = {"WriteCapacityAutoScalingSettings": scaling}
    reads = {"ReadCapacityAutoScalingSettings": scaling}
    for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
        indexes = table.get("GlobalSecondaryIndexes", [])
        if table["BillingMode"] == "PAY_PER_REQUEST":
            assert "ProvisionedThroughput" not in json.dumps(table), name
            continue
        assert all(
            each["WriteProvisionedThroughputSettings"] == writes for each in [table, *indexes]
        ), name
        for replica in table["Replicas"]:
            own = replica.get("GlobalSecondaryIndexes", [])
            assert [index["IndexName"] for index in own] == [
                index["IndexName"] for index in indexes
            ], name
            assert all(
                each["ReadProvisionedThroughputSettings"] == reads for each in [replica, *own]
            ), name


def test_every_table_is_protected_in_production(deployed: Stack) -> None:
    """In production no replica can be deleted by mistake."""
    for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
        for replica in table["Replicas"]:
            assert replica["DeletionProtectionEnabled"] is (
                deployed.parameters["Stage"] == "prod"
            ), name
