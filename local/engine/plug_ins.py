"""The plug-ins, in the order in which they lie over MiniStack."""

from local.engine import (
    alarm_resources,
    async_invocation,
    authorization,
    event_resources,
    function_resources,
    gateway,
    http_api,
    in_flight,
    log_delivery_resources,
    log_paging,
    pipes,
    put_events,
    recorded_resources,
    replays,
    rule_targets,
    table_resources,
    worker,
)
from local.engine.settings import Settings


def apply(settings: Settings) -> None:
    """Apply every plug-in to the MiniStack of this process."""
    in_flight.apply()
    authorization.apply()
    worker.apply()
    async_invocation.apply(settings)
    rule_targets.apply()
    replays.apply()  # over rule_targets: a rule that a replay leaves out is not called at all
    put_events.apply()
    log_paging.apply()
    pipes.apply(settings)
    for resources in (
        event_resources,
        function_resources,
        log_delivery_resources,
        table_resources,
        alarm_resources,
        recorded_resources,
        http_api,
    ):
        resources.apply()
    gateway.apply()
