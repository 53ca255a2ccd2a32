"""What a release wrote: the samples that are kept of it."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent
RELEASES: Final = sorted(path.parent.name for path in FOLDER.glob("*/written.json"))

type Item = Mapping[str, Mapping[str, Any]]


class Samples(NamedTuple):
    """What a release wrote."""

    clock_ms: int
    """When it ended."""
    tables: Mapping[str, list[Item]]
    """Items in the wire format, by table."""
    events: list[Mapping[str, Any]]
    """CloudEvents events, as the bus had them."""


def read(version: str) -> Samples:
    """Return the samples of a release."""
    text = (FOLDER / version / "written.json").read_text(encoding="utf-8")
    samples = json.loads(text, object_hook=_with_bytes)
    return Samples(samples["clock"], samples["tables"], samples["events"])


def _with_bytes(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a sample, whose binary attributes are in base64."""
    if value.keys() == {"B"}:
        return {"B": base64.b64decode(value["B"])}
    return value
