"""The API's description, its samples and its routes in the function agree."""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from api import openapi
from api.routes import ROUTES, Route
from tests.functions.world import World, request

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
SAMPLES: Final = ROOT / "events" / "carride_api"
ROWS: Final = re.findall(
    r"^\| `carride_api/(\w+\.json)` \| (\d{3}) \| (?:`([\w-]+)`)?(?:, field `([\w-]+)`)?",
    (ROOT / "events" / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_what_is_checked_in_is_served(world: World) -> None:
    """The API serves the document of the repository."""
    assert world.ask(request("GET", "/openapi.json", key=None)).body == json.loads(DOCUMENT)


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_every_route_is_served_as_described(world: World, route: Route) -> None:
    """The function serves each operation: even an empty request gets a documented status."""
    path = route.path.replace("{id}", "order_01")
    answer = world.ask(request(route.method, path, b"", key=None))
    document = openapi.document()
    announced = document["paths"][route.path][route.method.lower()]["responses"][str(answer.status)]
    if answer.status != 200:
        name = announced["$ref"].removeprefix("#/components/responses/")
        assert answer.problem in document["components"]["responses"][name]["description"]


def test_every_sample_is_answered_as_its_row_says(world: World) -> None:
    """In the README's order, each request has the status, problem and field of its row."""
    assert len(ROWS) == len([*SAMPLES.iterdir()])
    for name, status, problem, field in ROWS:
        answer = world.ask(json.loads((SAMPLES / name).read_text(encoding="utf-8")))
        assert (name, answer.status) == (name, int(status))
        assert not problem or (name, answer.problem) == (name, problem)
        assert not field or (name, answer.body["field"]) == (name, field)
    assert [ride["status"] for ride in world.items("bookings")] == ["cancelled"]
