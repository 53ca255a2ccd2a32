"""The SAM transform with the parameters of the deployment.

Stock MiniStack always transforms with the defaults. On AWS the values of the parameters decide, for example through
`AutoPublishCodeSha256` when a version is published.
"""

import logging
from typing import Any

from ministack.services.cloudformation import changesets, engine, handlers

type _Dict = dict[str, Any]


def apply(_settings: object) -> None:
    """Let the values stand as the defaults while a template is transformed."""
    logging.getLogger("samtranslator.metrics").setLevel(logging.ERROR)  # it warns of metrics that nobody collects
    stock = engine._apply_transforms

    def transforms(template: _Dict, provided: Any = None, previous: Any = None) -> _Dict:
        declared = template.get("Parameters", {})
        values = engine._transform_parameters(template, provided, previous)
        given = {name: each | ({"Default": values[name]} if name in values else {}) for name, each in declared.items()}
        transformed: _Dict = stock(template | {"Parameters": given}, provided, previous)
        transformed["Parameters"] = declared
        return transformed

    for module in (engine, changesets, handlers):  # each has the function under its name
        module._apply_transforms = transforms
