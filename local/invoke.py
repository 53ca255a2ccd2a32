"""`make invoke`: run one deployed function with one event, on the local engine. For machines without Docker."""

import argparse
import base64
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from local.command import ending_in_order
from local.local_aws import ROOT, EngineError, LocalAws
from local.simulated_gateway import Books, GatewayServer

_FUNCTION: Final = re.compile(r"^  (\w+):\n    Type: AWS::Serverless::Function$", re.MULTILINE)


def functions() -> list[str]:
    """Return the logical ids of the template's functions."""
    return _FUNCTION.findall((ROOT / "template.yaml").read_text(encoding="utf-8"))


def choose(function: str, path: str) -> Any:
    """Check the name of the function, and return the event in a JSON file.

    Raises:
        EngineError: There is no such function or file, or the file holds no JSON; the message lists the choices.
    """
    if function not in functions():
        raise EngineError(f"there is no function {function!r}: set FUNCTION to one of {', '.join(functions())}")
    file = Path(path)
    if not path or not file.is_file():
        files = ", ".join(sorted(str(sample.relative_to(ROOT)) for sample in ROOT.glob("events/*.json")))
        raise EngineError(f"there is no event {path!r}: set EVENT to a JSON file, such as one of {files}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EngineError(f"{path} holds no JSON: {error}") from error


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
    with ending_in_order():
        succeeded = invoke(options.function, choose(options.function, options.event))
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
