"""Both regions are deployed in steps, each by what the other has, and removed in the opposite order."""

from typing import Final

from tests.regions.pair import AWAY, HOME, NAME, Regions

TABLES: Final = 7


def test_both_regions_come_and_go(regions: Regions) -> None:
    """The secondary creates no table and has all of them; the endpoint is over both buses; nothing is left behind."""
    assert [step.environment.role for step in regions.steps] == ["primary", "secondary"] * 2
    owned = regions.primary.named("AWS::DynamoDB::GlobalTable")
    assert len(owned) == TABLES
    assert regions.secondary.named("AWS::DynamoDB::GlobalTable") == {}
    away = regions.client("dynamodb", AWAY)
    assert set(owned.values()) <= set(away.list_tables()["TableNames"])
    assert set(regions.primary.outputs) == set(regions.secondary.outputs)
    endpoint = regions.client("events", HOME).describe_endpoint(Name=NAME)
    assert [bus["EventBusArn"].split(":")[3] for bus in endpoint["EventBuses"]] == [HOME, AWAY]
    assert regions.secondary.outputs["CarRideEndpointId"] == regions.primary.outputs["CarRideEndpointId"]

    removed = regions.remove()
    assert not set(owned.values()) & set(away.list_tables()["TableNames"])
    for region in (HOME, AWAY):
        assert regions.client("events", region).list_event_buses(NamePrefix=NAME)["EventBuses"] == []
    assert [(step.environment.role, step.parameters is None) for step in removed] == [
        ("primary", False),
        ("secondary", True),
        ("primary", True),
    ]
