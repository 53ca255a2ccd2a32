"""Names that CloudFormation makes for resources which a template does not name.

AWS: they end in something random, so that no two stacks share one; roles have names that count in every region.

Stock MiniStack: makes them of the stack's name and the logical id, so that the stacks of one name in two regions share
their roles, and the second one overwrites those of the first.

Plugs into `provisioners._physical_name`, whose last characters become a hash that knows the region too.
"""

import hashlib
from typing import Any

from ministack.services.cloudformation import provisioners

from local.engine.scope import Scope

_SUFFIX = 13
_stock_name = provisioners._physical_name


def _name(stack: str, logical_id: str, **options: Any) -> str:
    name: str = _stock_name(stack, logical_id, **options)
    suffix = hashlib.sha256(f"{name} {Scope.current().region}".encode()).hexdigest()[:_SUFFIX]
    return name[:-_SUFFIX] + (suffix if options.get("lowercase") else suffix.upper())


def apply() -> None:
    """Let the region be part of a name."""
    provisioners._physical_name = _name
