"""The delivery of a service's own logs in a template.

AWS: `AWS::Logs::DeliverySource`, `AWS::Logs::DeliveryDestination` and `AWS::Logs::Delivery` are resources.

Stock MiniStack: has the operations but not the resources.

Plugs into CloudFormation's handlers. What is set up is recorded; no service's log is written.
"""

from ministack.services import cloudwatch_logs

from local.engine.cloudformation import Properties, Resource, call, register, tags_of


def _create_source(_logical_id: str, properties: Properties, _stack: str) -> Resource:
    request = {
        "name": properties["Name"],
        "resourceArn": properties["ResourceArn"],
        "logType": properties["LogType"],
        "tags": tags_of(properties),
    }
    source = call(cloudwatch_logs._put_delivery_source, request)["deliverySource"]
    return source["name"], {
        "Arn": source["arn"],
        "ResourceArns": source["resourceArns"],
        "Service": source["service"],
    }


def _delete_source(physical_id: str, _properties: Properties) -> None:
    cloudwatch_logs._delete_delivery_source({"name": physical_id})


def _create_destination(_logical_id: str, properties: Properties, _stack: str) -> Resource:
    request = {
        "name": properties["Name"],
        "deliveryDestinationConfiguration": {"destinationResourceArn": properties["DestinationResourceArn"]},
        "outputFormat": properties.get("OutputFormat", "json"),
        "tags": tags_of(properties),
    }
    destination = call(cloudwatch_logs._put_delivery_destination, request)["deliveryDestination"]
    return destination["name"], {
        "Arn": destination["arn"],
        "DeliveryDestinationType": destination["deliveryDestinationType"],
    }


def _delete_destination(physical_id: str, _properties: Properties) -> None:
    cloudwatch_logs._delete_delivery_destination({"name": physical_id})


def _create_delivery(_logical_id: str, properties: Properties, _stack: str) -> Resource:
    request = {
        "deliverySourceName": properties["DeliverySourceName"],
        "deliveryDestinationArn": properties["DeliveryDestinationArn"],
        "recordFields": properties.get("RecordFields", []),
        "tags": tags_of(properties),
    }
    delivery = call(cloudwatch_logs._create_delivery, request)["delivery"]
    return delivery["id"], {
        "Arn": delivery["arn"],
        "DeliveryId": delivery["id"],
        "DeliveryDestinationType": delivery["deliveryDestinationType"],
    }


def _delete_delivery(physical_id: str, _properties: Properties) -> None:
    cloudwatch_logs._delete_delivery({"id": physical_id})


def apply() -> None:
    """Add the types."""
    register("AWS::Logs::DeliverySource", _create_source, _delete_source)
    register("AWS::Logs::DeliveryDestination", _create_destination, _delete_destination)
    register("AWS::Logs::Delivery", _create_delivery, _delete_delivery)
