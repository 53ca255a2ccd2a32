"""`make invoke` runs a deployed function, on the engine or in a container."""

import argparse
import base64
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from local.command import ending_in_order
from local.containers import in_containers
from local.local_aws import ROOT, EngineError, LocalAws, engine_client
from local.simulated_gateway import Books, GatewayServer
from ops.audit.queues import opened, peek
from ops.finding import kept
from ops.stack import Kept, StackRef

_FUNCTION: Final = re.compile(r"^  (\w+):\n    Type: AWS::Serverless::Function$", re.MULTILINE)


def functions() -> list[str]:
    """Return the logical ids of the template's functions."""
    return _FUNCTION.findall((ROOT / "template.yaml").read_text(encoding="utf-8"))


def choose(function: str, path: str) -> Any:
    """Check the name of the function, and return the event in a JSON file.

    An error lists the choices.
    """
    if function not in functions():
        raise EngineError(
            f"there is no function {function!r}: set FUNCTION to one of {', '.join(functions())}"
        )
    file = Path(path)
    if not path or not file.is_file():
        files = ", ".join(
            sorted(str(sample.relative_to(ROOT)) for sample in ROOT.glob("events/*.json"))
        )
        raise EngineError(
            f"there is no event {path!r}: set EVENT to a JSON file, such as one of {files}"
        )
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EngineError(f"{path} holds no JSON: {error}") from error


def invoke(function: str, events: Sequence[Any], *, containers: bool = False) -> bool:
    """Run a function, by its logical id, with each event, and print what came of it.

    Return whether all succeeded.
    """
    succeeded = True
    known = set[str]()
    with ExitStack() as running:
        local = running.enter_context(_local_stack())
        # Its clients wait for long invocations.
        stack = StackRef(
            local.name, local.region, cache(partial(engine_client, local.endpoint)), local
        )
        run = (
            running.enter_context(in_containers(local, stack))
            if containers
            else partial(_on_the_engine, stack)
        )
        list(_dead_letters(stack, function, known))  # those of earlier events
        for event in events:
            answer, log = run(function, event)
            print(log, file=sys.stderr)
            if isinstance(answer, dict) and "errorType" in answer:
                succeeded = False
                print(f"{function} failed: {answer['errorType']}: {answer.get('errorMessage', '')}")
                print("events/README.md lists the events of each function.", file=sys.stderr)
            else:
                print(json.dumps(answer, indent=2))
            for reason, body in _dead_letters(stack, function, known):
                print(f"dead-lettered, {reason}: {body}")
    return succeeded


@contextmanager
def _local_stack() -> Iterator[Kept]:
    """Yield the stack that `make demo ARGS=--keep` keeps, or else a new one."""
    if (local := kept()) is not None:
        print(
            "using the tables and the code of the stack that `make demo ARGS=--keep` runs",
            file=sys.stderr,
        )
        yield local
        return
    with LocalAws() as cloud, GatewayServer(Books()) as gateway:
        cloud.build()
        stack = cloud.deploy_fast("carride", PaymentGatewayUrl=gateway.url)
        yield Kept(stack.name, cloud.region, cloud.endpoint_url, gateway.url, "", os.getpid())


def _on_the_engine(stack: StackRef, function: str, event: Any) -> tuple[Any, str]:
    name = stack.named("AWS::Lambda::Function")[function]
    answer = stack.client("lambda").invoke(
        FunctionName=name, Payload=json.dumps(event), LogType="Tail"
    )
    return json.load(answer["Payload"]), base64.b64decode(answer.get("LogResult", "")).decode(
        errors="replace"
    )


def _dead_letters(stack: StackRef, function: str, known: set[str]) -> Iterator[tuple[str, str]]:
    """Yield reason and body of the messages in the dead-letter queue that are not ``known`` yet."""
    consumer = function.removesuffix("Function")
    url = stack.outputs.get(f"{consumer}DlqUrl")
    if url is None:
        return
    for message in peek(stack.client("sqs"), url):
        if message["MessageId"] in known:
            continue
        known.add(message["MessageId"])
        reason = opened(message)[0]
        yield reason, message["Body"]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="make invoke",
        description="Run one function with events, on this machine. Later events meet the tables "
        "of earlier ones.",
        epilog="example: make invoke FUNCTION=RideHistoryFunction "
        'EVENT="events/ride_history_live.json events/ride_history_duplicate.json"',
    )
    parser.add_argument("function", help=f"one of {', '.join(functions())}")
    parser.add_argument("event", nargs="+", help="JSON files, such as those in events/")
    parser.add_argument(
        "--containers",
        action="store_true",
        help="run it with `sam local invoke` (Docker or podman)",
    )
    options = parser.parse_args()
    with ending_in_order():
        events = [choose(options.function, path) for path in options.event]
        succeeded = invoke(options.function, events, containers=options.containers)
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
