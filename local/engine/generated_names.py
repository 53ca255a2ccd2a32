"""Names that CloudFormation generates for resources without one in the template.

AWS: they end in random characters, so that no two stacks share one. Roles are global to an account.

Stock MiniStack: generates them from the stack's name and the logical id. Stacks of one name in two regions share their
roles, and the second stack overwrites those of the first. Here the last characters are a hash that includes the region.
"""

import hashlib
from typing import Any

from ministack.services.cloudformation import provisioners

from local.engine.scope import Scope

_SUFFIX = 13


def apply(_settings: object) -> None:
    """Make the region a part of generated names."""
    stock = provisioners._physical_name

    def physical_name(stack: str, logical_id: str, **options: Any) -> str:
        name: str = stock(stack, logical_id, **options)
        suffix = hashlib.sha256(f"{name} {Scope.current().region}".encode()).hexdigest()[:_SUFFIX]
        return name[:-_SUFFIX] + (suffix if options.get("lowercase") else suffix.upper())

    provisioners._physical_name = physical_name
