"""Names that CloudFormation generates for resources without one in the template.

Stock MiniStack makes them from the stack's name and the logical id, where AWS's end in random
characters. Roles are global to an account: stacks of one name in two regions would share them. Here
a name ends in a hash with the region.
"""

import hashlib
from typing import Any

from ministack.services.cloudformation import provisioners

from engine.scope import Scope

_SUFFIX = 13


def apply(_settings: object) -> None:
    """Make the region a part of generated names."""
    stock = provisioners._physical_name

    def physical_name(stack: str, logical_id: str, **options: Any) -> str:
        name: str = stock(stack, logical_id, **options)
        suffix = hashlib.sha256(f"{name} {Scope.current().region}".encode()).hexdigest()[:_SUFFIX]
        return name[:-_SUFFIX] + (suffix if options.get("lowercase") else suffix.upper())

    provisioners._physical_name = physical_name
