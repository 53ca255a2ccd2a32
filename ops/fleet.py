"""The fleet: parks cars at their stands, all over the city. A car that is known already is left as it is."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import assignments

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_STRIDE: Final = 27
"""Steps of this length visit every sector once before any of them twice: it and their number have no common divisor."""


def cars(count: int) -> Iterator[assignments.Car]:
    """Yield cars whose stands are spread over the city: any number of them, evenly."""
    sectors = assignments.BLOCKS * assignments.BLOCKS
    for number in range(count):
        yield assignments.Car(f"car_{number + 1:03d}", f"sector_{number * _STRIDE % sectors + 1:02d}")


def seed(dynamodb: "DynamoDBClient", table: str, count: int) -> int:
    """Park cars, and return how many of them were not there before.

    Args:
        dynamodb: a client for the table's account and region.
        table: the CarTable's name.
        count: how many cars the fleet is to have at least.
    """
    added = 0
    for car in cars(count):
        zone = assignments.zone(car.sector)
        assert zone is not None, f"{car.sector} is a sector of the city"  # noqa: S101 - it was made from one above
        try:
            dynamodb.put_item(
                TableName=table,
                Item={"zone": {"S": zone}, "carID": {"S": car.car_id}, "sector": {"S": car.sector}},
                ConditionExpression="attribute_not_exists(carID)",
            )
        except dynamodb.exceptions.ConditionalCheckFailedException:
            continue
        added += 1
    return added


def main() -> None:
    """Park cars of a deployed stack."""
    import boto3  # noqa: PLC0415 - whoever imports this module brings a client

    parser = argparse.ArgumentParser(prog="python -m ops.fleet", description="Park cars all over the city.")
    parser.add_argument("--stack", default="carride", help="name of the stack (carride)")
    parser.add_argument("--cars", type=int, default=64, metavar="N", help="how many cars the fleet is to have (64)")
    options = parser.parse_args()
    outputs = boto3.client("cloudformation").describe_stacks(StackName=options.stack)["Stacks"][0]["Outputs"]
    table = next(output["OutputValue"] for output in outputs if output["OutputKey"] == "CarTableName")
    added = seed(boto3.client("dynamodb"), table, options.cars)
    print(f"{added} cars were parked in {table}; {options.cars - added} were there already")


if __name__ == "__main__":
    main()
