"""`make invoke`: run one deployed function with one event, on the local engine. For machines without Docker."""

import argparse
import base64
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from local.interrupts import end_in_order
from local.local_aws import ROOT, LocalAws, EngineError
from local.simulated_gateway import Books, GatewayServer

EVENTS: Final = ROOT / "events"

_FUNCTION: Final = re.compile(r"^  (\w+):\n    Type: AWS::Serverless::Function$", re.MULTILINE)
_FAILED: Final = 2
_INTERRUPTED: Final = 130


class UnknownChoiceError(Exception):
    """Raised for a function or an event that is not there; the message lists those that are."""


def functions() -> list[str]:
    """Return the logical ids of the template's functions."""
    return _FUNCTION.findall((ROOT / "template.yaml").read_text(encoding="utf-8"))


def checked_function(name: str) -> str:
    """Return the name of a function of the template.

    Raises:
        UnknownChoiceError: there is no such function.
    """
    if name not in functions():
        raise UnknownChoiceError(f"there is no function {name!r}: say FUNCTION= one of {', '.join(functions())}.")
    return name


def read_event(path: str) -> Any:
    """Return the event in a JSON file.

    Raises:
        UnknownChoiceError: there is no such file, or it holds no JSON.
    """
    file = Path(path)
    if not path or not file.is_file():
        files = ", ".join(sorted(str(sample.relative_to(ROOT)) for sample in EVENTS.glob("*.json")))
        raise UnknownChoiceError(f"there is no event {path!r}: say EVENT= a JSON file, such as one of {files}.")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownChoiceError(f"{path} holds no JSON: {error}.") from error


def invoke(function: str, event: Any) -> bool:
    """Deploy, run the function once, print its log and its answer; return whether it succeeded."""
    with LocalAws() as cloud, GatewayServer(Books()) as gateway:
        cloud.build()
        stack = cloud.deploy_fast("carride", PaymentGatewayUrl=gateway.url)
        answer = cloud.client("lambda").invoke(
            FunctionName=stack.resources[function], Payload=json.dumps(event), LogType="Tail"
        )
        print(base64.b64decode(answer.get("LogResult", "")).decode(errors="replace"), file=sys.stderr)
        print(json.dumps(json.load(answer["Payload"]), indent=2))
    return "FunctionError" not in answer


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="make invoke", description="Run one function with one event, on this machine."
    )
    parser.add_argument("function", help=f"one of {', '.join(functions())}")
    parser.add_argument("event", help="a JSON file, such as those in events/")
    options = parser.parse_args()
    end_in_order()
    try:
        succeeded = invoke(checked_function(options.function), read_event(options.event))
    except (UnknownChoiceError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
