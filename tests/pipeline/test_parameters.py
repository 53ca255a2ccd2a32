"""What the parameters of the tables make of a stack, as the engine deploys it."""

from typing import Any

from local.local_aws import Laptop

CONSUMERS = ("RideHistoryFunctionName", "DispatchFunctionName", "PaymentFunctionName")
TABLES = ("IdempotencyTable", "RideTable", "BookingTable", "OutboxTable", "AssignmentTable", "CarTable", "PaymentTable")


def test_every_choice_of_records_and_tables_is_deployed(laptop: Laptop) -> None:
    """Provisioned tables and the longest retention, in one stack."""
    stack = laptop.deploy_fast("parameters", TableBilling="provisioned", Retention="long")
    try:
        for name in CONSUMERS:
            function: Any = laptop.client("lambda").get_function_configuration(FunctionName=stack.outputs[name])
            variables = function["Environment"]["Variables"]
            assert variables["IDEMPOTENCY_WINDOW_DAYS"] == "120"
        for table in TABLES:
            described = laptop.client("dynamodb").describe_table(TableName=stack.outputs[f"{table}Name"])["Table"]
            assert described["BillingModeSummary"]["BillingMode"] == "PROVISIONED"
        archive = stack.outputs["CarRideArchiveArn"].rpartition("/")[2]
        assert laptop.client("events").describe_archive(ArchiveName=archive)["RetentionDays"] == 90
    finally:
        laptop.delete_stack(stack.name)
