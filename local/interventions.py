"""Arm a fault for one event in one consumer: a plug-in of the engine (`LocalAws(*FAULTS)`), on this machine only.

``POST /_engine/fault`` with ``{"function": logical id or name, "id": idempotency id, "fault": "kill" | "lose-answer" |
"stall"}``. The next run of the event in that function meets the fault, and uses it up; `local/faults.py` injects it.
Deliver the event after this call. For a stall deliver it once more after ``againAfterSeconds`` of the answer, which is
when the lease of the frozen attempt has ended.
"""

import json
from typing import Any

from ministack.services import lambda_svc

from local.engine import control
from local.engine.settings import Settings
from local.faults import STALLED_LEASE_S, Intervention, armed

_SKEW_SECONDS = 1.0
"""A lease may be taken over only after the clock skew that the layer allows."""


def _arm(body: bytes) -> dict[str, Any]:
    """Arm the requested fault, and return the function's name, the fault and when to deliver the event again.

    Raises:
        ValueError: The request is incomplete, or does not name one function or a fault.
    """
    request = json.loads(body or b"null")
    match request:
        case {"function": str(function), "id": str(event_id), "fault": str(kind)} if event_id:
            fault = Intervention(kind)
        case _:
            raise ValueError('send {"function": …, "id": …, "fault": …}')
    found = lambda_svc._functions.all_items()  # noqa: SLF001 - MiniStack lists the functions of one region only
    known = sorted({name for (_, _, name), _ in found})
    names = [name for name in known if name == function] or [name for name in known if f"-{function}-" in name]
    if len(names) != 1:
        raise ValueError(f"{function} names {len(names)} functions, not one: {', '.join(names or known)}")
    armed(names[0], event_id, fault).touch()
    again = STALLED_LEASE_S + _SKEW_SECONDS if fault is Intervention.STALL else 0.0
    return {"function": names[0], "fault": fault, "againAfterSeconds": again}


def apply(_settings: Settings) -> None:
    """Add the address."""
    control.route("fault", _arm)
