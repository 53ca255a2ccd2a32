"""The choice of the transport to DynamoDB, by the environment."""

import logging
import os

from carride_idempotency.errors import ConfigurationError
from carride_idempotency.stores.transport import BOTOCORE_USED, Transport, botocore_transport


def dynamodb_transport() -> Transport:
    """Make the transport that the environment asks for.

    ``IDEMPOTENCY_TRANSPORT`` is ``botocore``, ``lean`` or ``auto``, the default. The lean transport
    loads and works several times faster. ``auto`` is lean where lean is known to work. It changes
    to botocore for good at the first answer that DynamoDB did not give. A process that goes through
    botocore for want of another way logs one warning.

    Raises:
        ConfigurationError: the variable has another value, or ``lean`` cannot be used here.
    """
    choice = os.environ.get("IDEMPOTENCY_TRANSPORT", "auto")
    if choice == "botocore":
        return botocore_transport()
    if choice not in {"auto", "lean"}:
        raise ConfigurationError(
            f"IDEMPOTENCY_TRANSPORT is {choice!r}: set it to auto, botocore or lean"
        )
    from carride_idempotency.stores.lean import Guarded, lean_transport, only_botocore_knows

    lean = lean_transport()
    if lean is not None:
        return lean if choice == "lean" else Guarded(lean, botocore_transport)
    if choice == "lean":
        raise ConfigurationError(
            f"only botocore knows {only_botocore_knows()}: set IDEMPOTENCY_TRANSPORT to auto"
        )
    logging.getLogger("carride_idempotency").warning(
        "%s, which takes longer: only botocore knows %s "
        "(IDEMPOTENCY_TRANSPORT=botocore: no warning)",
        BOTOCORE_USED,
        only_botocore_knows(),
    )
    return botocore_transport()
