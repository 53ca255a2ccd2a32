"""What the parameters of the tables make of a stack, as the engine deploys it."""

from typing import Any

from local.local_aws import LocalAws

CONSUMERS = ("RideHistoryFunctionName", "DispatchFunctionName", "PaymentFunctionName")
TABLES = ("IdempotencyTable", "RideTable", "BookingTable", "OutboxTable", "AssignmentTable", "CarTable", "PaymentTable")


def test_every_choice_of_records_and_tables_is_deployed(cloud: LocalAws) -> None:
    """Provisioned tables and the longest retention, in one stack."""
    stack = cloud.deploy_fast("parameters", TableBilling="provisioned", Retention="long")
    try:
        for name in CONSUMERS:
            function: Any = cloud.client("lambda").get_function_configuration(FunctionName=stack.outputs[name])
            variables = function["Environment"]["Variables"]
            assert variables["IDEMPOTENCY_WINDOW_DAYS"] == "120"
        for table in TABLES:
            described = cloud.client("dynamodb").describe_table(TableName=stack.outputs[f"{table}Name"])["Table"]
            assert described["BillingModeSummary"]["BillingMode"] == "PROVISIONED"
        archive = stack.outputs["CarRideArchiveArn"].rpartition("/")[2]
        assert cloud.client("events").describe_archive(ArchiveName=archive)["RetentionDays"] == 90
    finally:
        cloud.delete_stack(stack.name)
