"""A primary that is lost for good: the secondary gets its tables, and works on alone."""

import json
import re
import shlex
from typing import Any, Final

import pytest
from cfnlint.api import lint

from local.local_aws import ROOT
from ops.audit import audit
from ops.cli.app import main
from ops.promotion import TABLE, with_tables
from ops.stack import StackRef
from tests.regions.pair import AWAY, HOME, NAME, Regions, unreachable

pytestmark = pytest.mark.integration

RIDES: Final = 2
PAGE: Final = (ROOT / "docs" / "promotion.md").read_text(encoding="utf-8")
COMMANDS: Final = re.findall(r"^\./carride (.*)$", PAGE, re.MULTILINE)
"""What the page says to run, in its order."""


def run(command: str, clients: Any, *more: str) -> None:
    """Run a command of the page with its reader's variables."""
    words = shlex.split(command.replace("$STACK", NAME).replace("$AWS_REGION", AWAY))
    main([*words, *more], clients)


def test_the_secondary_gets_the_tables_of_a_lost_primary(
    regions: Regions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's commands import the tables with their items, and make the stack standalone."""
    monkeypatch.setattr("ops.promotion._ASK_SECONDS", 0.0)
    monkeypatch.setattr("ops.promotion._DETACH_SECONDS", 0.01)
    importing, finishing = COMMANDS[:2]
    with pytest.raises(SystemExit):
        run(importing, regions.client)
    assert "go back with `./carride unfence`" in capsys.readouterr().err
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

    with pytest.raises(SystemExit):
        run(finishing, client)
    assert "run `./carride promote --lost us-west-2 --yes` first" in capsys.readouterr().err
    run(importing, client, "--bucket", f"local-artifacts-{AWAY}")
    assert regions.cloud.stack(NAME, region=AWAY).resources == {**before, **owned}

    run(finishing, client)
    assert regions.cloud.stack(NAME, region=AWAY).outputs["Role"] == "standalone"
    after = regions.cloud.stack(NAME, region=AWAY).resources
    assert {name: after[name] for name in (*owned, "OutboxPipe")} == {
        **owned,
        "OutboxPipe": before["OutboxPipe"],
    }
    regions.book(regions.secondary, RIDES)
    regions.settle()
    assert audit(StackRef(NAME, AWAY, regions.client)).ledger.balanced
