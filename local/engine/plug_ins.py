"""The plug-ins, in the order in which they lie over MiniStack."""

import importlib

from local.engine import (
    async_invocation,
    authorization,
    control,
    event_resources,
    function_resources,
    generated_names,
    global_endpoints,
    http_api,
    in_flight,
    log_paging,
    log_patterns,
    nested_updates,
    packages,
    pipes,
    put_events,
    queue_mappings,
    recorded_resources,
    replays,
    rule_targets,
    serverless_transform,
    table_resources,
    worker,
)
from local.engine.settings import Settings


def apply(settings: Settings) -> None:
    """Apply every plug-in to the MiniStack of this process, or for comparison only the control interface."""
    control.apply()
    in_flight.apply()
    if settings.stock:
        return
    authorization.apply()
    worker.apply(settings)
    packages.apply()
    async_invocation.apply(settings)
    queue_mappings.apply(settings)
    rule_targets.apply()
    replays.apply()
    put_events.apply()
    global_endpoints.apply()  # over put_events, which an event reaches in the region that ingests it
    generated_names.apply()
    nested_updates.apply()
    serverless_transform.apply()
    log_paging.apply()
    log_patterns.apply()  # over log_paging, whose requests it refuses
    pipes.apply(settings)
    for resources in (event_resources, function_resources, table_resources, recorded_resources, http_api):
        resources.apply()
    for module in settings.plug_ins:
        importlib.import_module(module).apply(settings)
