"""The sample requests are answered as their README says."""

import json
import re
from typing import Final

from tests.infrastructure.stack import ROOT
from tests.unit.functions.api_fixtures import *  # noqa: F403 - the fixtures
from tests.unit.functions.api_world import World

SAMPLES: Final = ROOT / "events" / "carride_api"
ROW: Final = re.compile(r"^\| `(\w+\.json)` \| (\d{3}) \| (?:`([\w-]+)`)?(?:, field `([\w-]+)`)?", re.MULTILINE)


def test_every_sample_is_answered_as_its_row_says(world: World) -> None:
    """Sent in the order of the README, each request has the status, the problem and the field that stand there."""
    for name, status, problem, field in ROW.findall((SAMPLES / "README.md").read_text()):
        answer = world.send(json.loads((SAMPLES / name).read_text()))
        assert answer.status == int(status), name
        if problem:
            assert answer.problem == problem, name
        if field:
            assert answer.body["field"] == field, name
    assert [ride["status"] for ride in world.bookings()] == ["cancelled"]


def test_the_readme_lists_every_sample() -> None:
    """Each file has its row, and no row is without a file."""
    listed = [row[0] for row in ROW.findall((SAMPLES / "README.md").read_text())]
    assert sorted(listed) == sorted(path.name for path in SAMPLES.glob("*.json"))
