"""A stack of stage `dev`, as `sam deploy` makes it without a parameter: it takes payments at its own gateway."""

from typing import Any, Final

import urllib3

from idempotency import marshalling
from local.local_aws import LocalAws
from local.simulated_gateway import Books, GatewayServer
from tests.pipeline.saga.town import Town

CALL: Final = "lambda:InvokeFunctionUrl"


def test_a_development_stack_takes_payments(cloud: LocalAws) -> None:
    """A ride is reserved, captured once and known; a cancelled one is refunded. Only payment may call the gateway."""
    stack = cloud.deploy_fast("payments", Stage="dev")
    with GatewayServer(Books()) as unused:
        town = Town(cloud, stack, unused)
        paid, cancelled = town.ride(), town.ride()
        town.hear(paid.assigned, cancelled.assigned, paid.completed, cancelled.cancelled)

    def items(table: str) -> list[dict[str, Any]]:
        return [marshalling.values(item) for item in cloud.client("dynamodb").scan(TableName=table)["Items"]]

    states = {item["orderID"]: item["state"] for item in items(stack.outputs["PaymentTableName"])}
    assert states == {paid.order_id: "captured", cancelled.order_id: "refunded"}
    ledger = [each for item in items(stack.resources["SimulatedGatewayTable"]) for each in item.get("payments", ())]
    found = {each["reference"]: (each["status"], each["captures"], each["refunds"]) for each in ledger}
    price = paid.completed.price
    assert found == {
        paid.order_id: ("captured", [price], []),
        cancelled.order_id: ("refunded", [], [cancelled.assigned.price]),
    }
    roles = {physical: logical for logical, physical in stack.resources.items()}
    asked = {(roles[each.role], each.action, each.allowed) for each in cloud.asked() if each.role in roles}
    assert {each for each in asked if each[1] == CALL} == {("PaymentRole", CALL, True)}
    assert {each for each in asked if not each[2]} == set()

    configuration = cloud.client("lambda").get_function_configuration(FunctionName=stack.resources["PaymentFunction"])
    url = configuration["Environment"]["Variables"]["PAYMENT_GATEWAY_URL"]
    assert urllib3.request("GET", f"{url}payments?reference={paid.order_id}").status == 403
    cloud.delete_stack(stack.name)
