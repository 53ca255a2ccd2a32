"""The environment in which the functions' modules are imported: each builds its handler then."""

import os


def prepare() -> None:
    """Set the variables that the modules need, whatever the shell has set."""
    from tests.world.wiring import REGION, wiring  # noqa: PLC0415 - the shop needs no template

    for name in [*os.environ]:
        if name.startswith("AWS_"):
            del os.environ[name]
    for spec in wiring().functions.values():
        os.environ.update(spec.environment)
    os.environ.update(
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",  # noqa: S106 - of no account
        AWS_DEFAULT_REGION=REGION,
        AWS_EC2_METADATA_DISABLED="true",
        IDEMPOTENCY_TRANSPORT="botocore",
    )
