"""What an operator should do about a dead letter: the same on each page. No I/O."""

import shlex
from typing import Final

from carride_idempotency.record import FAILED, QUARANTINED, Record

MEND_FIRST: Final = "Mend the cause first: a redrive sends it to the same code once more."
"""The advice about a letter that has failed again."""


def has_failed_again(redriven: int, record: Record | None) -> bool:
    """Return whether an event was redriven, and has used up its attempts once more.

    ``redriven`` counts its redrives of the last 30 days, and ``record`` is that of its key.
    """
    return redriven > 0 and record is not None and record.status == QUARANTINED


def is_released(record: Record | None) -> bool:
    """Return whether a key was released, and no attempt has begun since."""
    return record is not None and record.status == FAILED and not record.attempt


def release_command(key: str) -> str:
    """Return the command that shows what the release of a key would do."""
    return shlex.join(["./carride", "release", key])
