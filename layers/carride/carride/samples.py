"""Sample events, one file for each situation and function: ``python -m carride.samples events``.

They are for ``sam local invoke`` and for tests, so they lie in the future: a consumer turns away what is older than the
time for which it remembers keys.
"""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from carride import ride as rides
from carride.events import DETAIL_TYPE, CarRideAccepted, CarRideCreated, CarRideStarted, RideEvent
from carride.simulation import Kind, broken, fare, older_envelope, told

type Json = Mapping[str, Any]

TIME: Final = datetime(2040, 1, 2, 8, 30, tzinfo=UTC)
_EXPIRED: Final = datetime(2026, 1, 2, 8, 30, tzinfo=UTC)
_REGION: Final = "us-east-1"


def samples() -> dict[str, Json]:
    """Return every sample by file name: the function's name, then the situation."""
    created = CarRideCreated.of(_booked("order_01"))
    accepted = CarRideAccepted.of(rides.accept(created.ride()))
    started = CarRideStarted.of(rides.start(accepted.ride()))
    first = told([created], TIME)
    second = told([created, accepted], TIME + timedelta(minutes=1))
    third = told([created, accepted, started], TIME + timedelta(minutes=9))
    expired = told([CarRideCreated.of(_booked("order_02"))], _EXPIRED, expirytime=_EXPIRED + timedelta(minutes=10))
    spoilt = told([CarRideCreated.of(_booked("order_03"))], TIME)
    return {
        "carride_simulator_request.json": {
            "rides": 20,
            "seed": 7,
            "duplicates": 0.3,
            "outOfOrder": 0.1,
            "malformed": 6,
        },
        "carride_simulator_bad_request.json": {"rides": 20, "duplicates": 30},
        "ride_history_live.json": delivered(first.to_detail(), 1),
        "ride_history_duplicate.json": delivered(first.to_detail(), 2),
        "ride_history_replayed.json": delivered(first.to_detail(), 3) | {"replay-name": f"{_REGION}.morning"},
        "ride_history_older_envelope.json": delivered(older_envelope(second), 4),
        "ride_history_out_of_order.json": delivered(third.to_detail(), 5),
        "ride_history_expired.json": delivered(expired.to_detail(), 6),
        "ride_history_missing_id.json": delivered(_spoilt(spoilt, Kind.MISSING_ID), 7),
        "ride_history_partial_id.json": delivered(_spoilt(spoilt, Kind.PARTIAL_ID), 8),
        "ride_history_unknown_type.json": delivered(_spoilt(spoilt, Kind.UNKNOWN_TYPE), 9),
        "ride_history_malformed.json": delivered(_spoilt(spoilt, Kind.BROKEN_SHAPE), 10),
    }


def delivered(detail: Json, number: int) -> dict[str, Any]:
    """Return a detail as EventBridge delivers it; ``number`` makes the id of the delivery."""
    return {
        "version": "0",
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "detail-type": DETAIL_TYPE,
        "source": detail.get("attributes", detail)["source"],
        "account": "123456789012",
        "time": f"{TIME:%Y-%m-%dT%H:%M:%SZ}",
        "region": _REGION,
        "resources": [],
        "detail": detail,
    }


def write(folder: Path) -> None:
    """Write every sample."""
    for name, sample in samples().items():
        (folder / name).write_text(json.dumps(sample, indent=2) + "\n")


def _booked(order_id: str) -> rides.Ride:
    return rides.request(
        order_id=order_id,
        customer_id="customer_a",
        pickup="sector_01",
        destination="sector_03",
        passengers=2,
        price=fare(0, 2),
    )


def _spoilt(event: RideEvent, kind: Kind) -> Json:
    detail: Json = json.loads(broken(event, kind).detail)
    return detail


if __name__ == "__main__":
    write(Path(sys.argv[1]))
