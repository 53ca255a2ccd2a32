"""What acting verbs have done: a line of JSON for each, in `.carride/changes.jsonl` or the file of CARRIDE_CHANGES."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from ops.cli.show import plain
from ops.cli.verbs import Plan
from ops.regions import ROOT
from ops.stack import OperatorError, StackRef

CHANGES: Final = Path(os.environ.get("CARRIDE_CHANGES", ROOT / ".carride" / "changes.jsonl"))


def recorded(command: str, plan: Plan) -> Any:
    """Carry out a plan, write down who did it when to which stack, with its result or error, and return the result.

    Args:
        command: as it was typed.
        plan: what to do.

    Raises:
        OperatorError: the file cannot be written; nothing was done.
    """
    try:
        CHANGES.parent.mkdir(exist_ok=True)
        file = CHANGES.open("a", encoding="utf-8")
    except OSError as error:
        raise OperatorError(f"{CHANGES} cannot be written ({error.strerror}), and nothing was done") from error
    first, regions = plan.stacks[0], ", ".join(each.region for each in plan.stacks)
    line: dict[str, Any] = {"time": datetime.now(UTC), "who": _who(first), "stack": first.name, "region": regions}
    line["command"] = command
    with file:
        try:
            result = plan.do()
            line["result"] = plain(result)
        except BaseException as error:
            line["error"] = str(error) or type(error).__name__
            raise
        finally:
            file.write(json.dumps(plain(line)) + "\n")
    return result


def _who(stack: StackRef) -> str | None:
    """Return the ARN of the caller, or None if AWS does not tell."""
    try:
        return str(stack.client("sts").get_caller_identity()["Arn"])
    except (BotoCoreError, ClientError):
        return None
