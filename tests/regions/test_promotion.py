"""A primary that is lost for good: the secondary gets its tables, and works on alone."""

import json
from typing import Any, Final

import pytest
from cfnlint.api import lint

from ops.audit import audit
from ops.promotion import TABLE, promotion, with_tables
from ops.stack import OperatorError, StackRef
from tests.regions.pair import AWAY, HOME, NAME, Regions, unreachable

pytestmark = pytest.mark.integration

ALONE: Final = {
    "Role": "standalone",
    "PeerRegion": "",
    "GlobalEndpoint": "absent",
    "GlobalEndpointId": "",
    "OutboxStreamArn": "",
}
RIDES: Final = 2


def test_the_secondary_gets_the_tables_of_a_lost_primary(regions: Regions) -> None:
    """It imports the tables with their items, changes nothing else, and is then deployed as a standalone stack."""
    with pytest.raises(OperatorError, match="unfence"):
        promotion(regions.secondary, None, print)
    regions.book(regions.primary, RIDES)
    regions.settle()
    before = dict(regions.cloud.stack(NAME, region=AWAY).resources)
    owned = dict(regions.primary.named(TABLE))

    def client(service: str, region: str) -> Any:
        return (unreachable if region == HOME else regions.client)(service, region)

    template = with_tables(regions.secondary)
    declared = regions.client("cloudformation", HOME).get_template(
        StackName=NAME, TemplateStage="Processed"
    )
    described = declared["TemplateBody"]["Resources"]
    tables = {name: each for name, each in template["Resources"].items() if each["Type"] == TABLE}
    assert tables == {
        name: {key: value for key, value in described[name].items() if key != "Condition"}
        for name in owned
    }
    text = json.dumps(
        {key: each for key, each in template.items() if key != "Outputs"} | {"Resources": tables}
    )
    assert [str(each) for each in lint(text, regions=[AWAY]) if each.rule.id.startswith("E")] == []

    plan = promotion(
        StackRef(NAME, AWAY, client), f"local-artifacts-{AWAY}", print, lambda seconds: None
    )
    assert plan.do() == {"imported": sorted(owned.values())}
    assert regions.cloud.stack(NAME, region=AWAY).resources == {**before, **owned}

    regions.cloud.deploy_fast(NAME, None, region=AWAY, **ALONE)
    after = regions.cloud.stack(NAME, region=AWAY).resources
    assert {name: after[name] for name in (*owned, "OutboxPipe")} == {
        **owned,
        "OutboxPipe": before["OutboxPipe"],
    }
    regions.book(regions.secondary, RIDES)
    regions.settle()
    assert audit(StackRef(NAME, AWAY, regions.client)).ledger.balanced
