"""Switches for the troubles of regions: ``POST /_carride/regions`` with ``{"late": […], "lagging": …}``.

``late`` names the regions whose EventBridge hands nothing over; ``lagging`` says whether replicas of tables see what is
written in other regions. What is left out stays as it is. Both are simulations, for tests of a failover.
"""

import json
from typing import Any

from local.engine import late_deliveries, table_replication

PATH = "/_carride/regions"


def switch(body: bytes) -> dict[str, Any]:
    """Set the switches that the body names.

    Args:
        body: JSON.
    """
    wanted: dict[str, Any] = json.loads(body)
    if "late" in wanted:
        late_deliveries.set_late(set(wanted["late"]))
    if "lagging" in wanted:
        table_replication.hold(wanted["lagging"])
    return wanted
