"""`make local-env`: have `sam local invoke` and `sam local start-api` work as a person types them.

samconfig.toml names the two files that this writes: a template that declares the variables, and
their values.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from carride.settings import ACCOUNT_IS_MEANT
from local.artifacts import FOLDER
from local.command import ending_in_order
from local.containers import Addresses, Environments, template_for, variables_for
from local.local_aws import ROOT, EngineError
from ops.finding import find
from ops.stack import Kept, StackRef

TEMPLATE: Final = FOLDER / "sam-local.json"
VARIABLES: Final = FOLDER / "env.json"
_DEPLOYED: Final = ROOT / ".aws-sam" / "build"


def write(stack: StackRef) -> str:
    """Write both files for a stack, and return what containers will reach."""
    if stack.local is not None:
        found = variables_for(_addresses_of(stack.local), stack.environments())
        build = FOLDER / "build"
        reached = f"the local stack {stack.name}, and no account"
    else:
        found = _of_an_account(stack.environments())
        build = _DEPLOYED
        reached = f"THE ACCOUNT of the stack {stack.name} in {stack.region}, with your credentials"
    if not (build / "template.yaml").exists():
        raise EngineError(f"{build} has no build: run `make build`")
    _write(TEMPLATE, template_for(build, found))
    _write(VARIABLES, found)
    return reached


def _addresses_of(local: Kept) -> Addresses:
    if not local.container_endpoint:
        raise EngineError(
            "containers cannot reach the local stack, because neither Docker nor podman was there "
            "when it started: install one, end `make demo ARGS=--keep` and start it again"
        )
    return Addresses(local.container_endpoint, local.container_gateway)


def _of_an_account(found: Environments) -> Environments:
    """Return variables that say that an account is meant: the functions refuse it otherwise."""
    return {name: variables | {ACCOUNT_IS_MEANT: "yes"} for name, variables in found.items()}


def _write(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="make local-env ARGS=…",
        description="Write what `sam local invoke` and `sam local start-api` need: by default for "
        "the stack of `make demo ARGS=--keep`, and for a stack on AWS if you name it.",
        epilog="then: sam local invoke RideHistoryFunction -e events/ride_history_live.json",
    )
    parser.add_argument("--stack", help="a stack on AWS; it is used with your credentials")
    parser.add_argument("--region", help="its region")
    options = parser.parse_args()
    with ending_in_order():
        stack = find(options.stack, options.region)
        if stack.local is None and options.stack is None:
            raise EngineError(
                "no local stack is running: start `make demo ARGS=--keep`, or name a stack on AWS: "
                'make local-env ARGS="--stack carride"'
            )
        print(f"sam local now reaches {write(stack)}", file=sys.stderr)


if __name__ == "__main__":
    main()
