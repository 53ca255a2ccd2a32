"""The plug-ins, in the order in which they lie over MiniStack."""

import importlib
from typing import Final

from engine import cloudformation, control
from engine.settings import Settings

_PLUG_INS: Final = (
    *("authorization", "worker", "async_invocation", "queue_mappings", "rule_targets", "replays"),
    *("schedules", "put_events", "global_endpoints"),
    *("generated_names", "nested_updates", "log_filters", "pipes"),
    *("function_resources", "table_resources", "recorded_resources", "http_api"),
)


def apply(settings: Settings) -> None:
    """Apply every plug-in to this process's MiniStack; with ``--stock`` only the control one."""
    control.apply()
    if not settings.stock:
        for module in (*(f"engine.{name}" for name in _PLUG_INS), *settings.plug_ins):
            importlib.import_module(module).apply(settings)
        cloudformation.name_what_is_missing()
