"""A stack of stage `dev`, as `sam deploy` makes it without a parameter.

It takes payments at its own gateway.
"""

from typing import Any

import msgspec
import pytest
import urllib3

import gateway_rules as rules
from carride_idempotency import marshalling
from gateway_rules import Intent
from local.local_aws import LocalAws
from tests.kit.rides import Life
from tests.kit.rides import event as event_of
from tests.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.integration


def test_a_development_stack_takes_payments(cloud: LocalAws) -> None:
    """A ride is reserved, captured once and known; a cancelled one is refunded.

    Only payment may call the gateway.
    """
    pipeline = Pipeline(cloud, cloud.deploy_fast("payments", Stage="dev"))
    paid = Life("order_01")
    cancelled = Life("order_02")
    for fact in (paid.assigned, cancelled.assigned, paid.completed, cancelled.cancelled):
        pipeline.put(event_of(fact).to_detail())
        pipeline.settle()

    def items(table: str) -> list[dict[str, Any]]:
        return [
            marshalling.values(item)
            for item in cloud.client("dynamodb").scan(TableName=table)["Items"]
        ]

    states = {
        item["orderID"]: item["state"] for item in items(pipeline.stack.outputs["PaymentTableName"])
    }
    assert states == {paid.order_id: "captured", cancelled.order_id: "refunded"}
    intents = [
        msgspec.convert(item["intent"], Intent) for item in items("payments-SimulatedGatewayTable")
    ]
    ledger = rules.ledger(intents)
    found = {
        each["reference"]: (each["status"], each["captures"], each["refunds"]) for each in ledger
    }
    assert found == {
        paid.order_id: ("captured", [paid.completed.price], []),
        cancelled.order_id: ("refunded", [], [cancelled.assigned.price]),
    }
    asked = {each for each in cloud.asked() if each.role.startswith("payments-")}
    callers = {each.role for each in asked if each.action == "lambda:InvokeFunctionUrl"}
    assert callers == {pipeline.stack.resources["PaymentRole"]}
    assert all(each.allowed for each in asked)

    function = pipeline.stack.resources["PaymentFunction"]
    variables = cloud.client("lambda").get_function_configuration(FunctionName=function)[
        "Environment"
    ]["Variables"]
    url = f"{variables['PAYMENT_GATEWAY_URL']}v1/payment_intents?customer=customer_a"
    assert urllib3.request("GET", url).status == 403
    cloud.delete_stack(pipeline.stack.name)
