"""The SAM transform with the parameters of the deployment.

AWS: the transform sees the values of the deployment's parameters. Versions can depend on them through
`AutoPublishCodeSha256`, and CodeDeploy's resources through `DeploymentPreference`.

Stock MiniStack: always transforms with the defaults.

Plugs into `cloudformation.engine._apply_transforms`, in each module that uses it, and into samtranslator's `transform`.
"""

import logging
from contextvars import ContextVar
from typing import Any, Final

from ministack.services.cloudformation import changesets, engine, handlers
from samtranslator.translator import transform as sam

_values: Final[ContextVar[dict[str, Any]]] = ContextVar("parameters of the deployment")


def apply(_settings: object) -> None:
    """Pass the values on."""
    logging.getLogger("samtranslator.metrics").setLevel(logging.ERROR)  # it warns of metrics that nobody collects
    stock_transforms, stock_sam = engine._apply_transforms, sam.transform

    def transforms(template: dict[str, Any], provided: Any = None, previous: Any = None) -> dict[str, Any]:
        token = _values.set(engine._transform_parameters(template, provided, previous))
        try:
            transformed: dict[str, Any] = stock_transforms(template, provided, previous)
        finally:
            _values.reset(token)
        return transformed

    def transform(template: dict[str, Any], values: dict[str, Any], *more: Any) -> dict[str, Any]:
        transformed: dict[str, Any] = stock_sam(template, _values.get({}) | values, *more)
        return transformed

    for module in (engine, changesets, handlers):  # each has the function under its name
        module._apply_transforms = transforms
    sam.transform = transform
