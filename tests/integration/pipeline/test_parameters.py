"""What the parameters of records and tables make of a stack, as the engine deploys it."""

from typing import Any

from local.local_aws import Laptop

CONSUMERS = ("RideHistoryFunctionName", "DispatchFunctionName", "PaymentFunctionName")
TABLES = ("IdempotencyTable", "RideTable", "BookingTable", "OutboxTable", "AssignmentTable", "CarTable", "PaymentTable")


def test_every_choice_of_records_and_tables_is_deployed(laptop: Laptop) -> None:
    """A cache (recorded only), provisioned tables and the longest retention, all in one stack."""
    stack = laptop.deploy_fast(
        "parameters",
        RecordStore="valkey",
        VpcId="vpc-0123456789abcdef0",
        SubnetIds="subnet-0123456789abcdef0,subnet-0fedcba9876543210",
        TableBilling="provisioned",
        Retention="long",
    )
    try:
        for name in CONSUMERS:
            function: Any = laptop.client("lambda").get_function_configuration(FunctionName=stack.outputs[name])
            variables = function["Environment"]["Variables"]
            assert variables["IDEMPOTENCY_STORE"].startswith("valkeys://parameters-records-")
            assert variables["IDEMPOTENCY_STORE"].endswith(":6379?eviction=accepted")
            assert variables["IDEMPOTENCY_WINDOW_DAYS"] == "120"
        for table in TABLES:
            described = laptop.client("dynamodb").describe_table(TableName=stack.outputs[f"{table}Name"])["Table"]
            assert described["BillingModeSummary"]["BillingMode"] == "PROVISIONED"
        archive = stack.outputs["CarRideArchiveArn"].rpartition("/")[2]
        assert laptop.client("events").describe_archive(ArchiveName=archive)["RetentionDays"] == 90
    finally:
        laptop.delete_stack(stack.name)
