"""How long things are kept, and how the tables are billed."""

import json
from typing import Final

import pytest

from carride.outbox import KEPT
from idempotency.policy import DAY, Policy
from tests.template.stack import ROLES, source, stack

PRESETS: Final = source()["Mappings"]["Retentions"]
ROADS_BACK: Final = DAY + DAY // 4 + 14 * DAY
"""EventBridge's retries, Lambda's, and a dead-letter queue, one after the other, in seconds."""


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_window_outlasts_every_road_back(preset: str) -> None:
    """A record outlives archive, redelivery, retries and redrive in turn; logs cover what can be replayed."""
    days = {name: int(each) for name, each in PRESETS[preset].items()}
    assert days["WindowDays"] * DAY > days["ArchiveDays"] * DAY + ROADS_BACK
    assert days["OutboxDays"] > 1  # longer than the stream that carries it
    assert days["LogDays"] >= days["ArchiveDays"]
    assert days["LogDays"] in {1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365}  # what a log group takes


def test_everything_is_kept_as_long_as_the_chosen_preset_says() -> None:
    """The archive, and every function that has a window or an outbox; by itself the code takes the standard."""
    assert sorted(source()["Parameters"]["Retention"]["AllowedValues"]) == sorted(PRESETS)
    standard = PRESETS[source()["Parameters"]["Retention"]["Default"]]
    assert (int(standard["WindowDays"]) * DAY, int(standard["OutboxDays"])) == (Policy().window, KEPT.days)
    deployed = stack()
    (archive,) = deployed.of_type("AWS::Events::Archive").values()
    assert archive["RetentionDays"] == {"Fn::FindInMap": ["Retentions", {"Ref": "Retention"}, "ArchiveDays"]}
    for name, function in deployed.of_type("AWS::Lambda::Function").items():
        variables = function["Environment"]["Variables"]
        for variable, days, needed_by in (
            ("IDEMPOTENCY_WINDOW_DAYS", "WindowDays", "IDEMPOTENCY_STORE"),
            ("OUTBOX_DAYS", "OutboxDays", "OUTBOX_TABLE"),
        ):
            if needed_by in variables:
                assert variables[variable] == {"Fn::FindInMap": ["Retentions", {"Ref": "Retention"}, days]}, name


@pytest.mark.parametrize("role", ["standalone", "primary"])
def test_provisioned_tables_scale_in_every_direction(role: str) -> None:
    """Each table, each index and each replica has its own scaling, for reads and for writes, between the limits."""
    tables = stack(TableBilling="provisioned", **ROLES[role]).of_type("AWS::DynamoDB::GlobalTable")
    scaling = {
        "MinCapacity": {"Ref": "MinCapacity"},
        "MaxCapacity": {"Ref": "MaxCapacity"},
        "TargetTrackingScalingPolicyConfiguration": {"TargetValue": {"Ref": "TargetUtilization"}},
    }
    writes, reads = {"WriteCapacityAutoScalingSettings": scaling}, {"ReadCapacityAutoScalingSettings": scaling}
    assert tables
    for name, table in tables.items():
        indexes = table.get("GlobalSecondaryIndexes", [])
        assert table["BillingMode"] == "PROVISIONED", name
        assert all(each["WriteProvisionedThroughputSettings"] == writes for each in [table, *indexes]), name
        assert len(table["Replicas"]) == len(ROLES[role]) - (role == "primary"), name
        for replica in table["Replicas"]:
            own = replica.get("GlobalSecondaryIndexes", [])
            assert [index["IndexName"] for index in own] == [index["IndexName"] for index in indexes], name
            assert all(each["ReadProvisionedThroughputSettings"] == reads for each in [replica, *own]), name


def test_tables_on_demand_have_no_capacity() -> None:
    """By default nothing is paid for while nothing happens."""
    tables = stack().of_type("AWS::DynamoDB::GlobalTable")
    assert {table["BillingMode"] for table in tables.values()} == {"PAY_PER_REQUEST"}
    assert "Throughput" not in json.dumps(tables)
