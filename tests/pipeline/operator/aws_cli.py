"""As much of the AWS CLI as the runbooks use, by botocore's models.

Tests do not depend on the machine's AWS CLI.

A server in the test's process makes the calls, and `aws` is a small client of it, because importing
boto3 takes longer than any call.
"""

import json
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import batched
from pathlib import Path
from typing import Any, Final, override

import jmespath
from botocore import xform_name
from botocore.exceptions import ClientError, EndpointConnectionError

CALLED_BY_THE_CLI: Final = {"s3api": "s3"}
"""Services that have another name in the CLI."""
ONCE_A_SECOND: Final = {"Delay": 1}
CLIENT: Final = f"""\
#!{sys.executable} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["AWS_CLI_SOCKET"])
    server.sendall(json.dumps([os.getcwd(), *sys.argv[1:]]).encode() + b"\\n")
    status, text = json.loads(server.makefile().read())
(sys.stderr if status else sys.stdout).write(text)
sys.exit(status)
"""


@contextmanager
def serving(folder: Path, client: Callable[..., Any]) -> Iterator[dict[str, str]]:
    """Put an `aws`, by boto3's clients, into a folder of PATH, and yield its environment.

    ``client`` takes a service, and the region of a command that names one.
    """

    class Handler(socketserver.StreamRequestHandler):
        @override
        def handle(self) -> None:
            here, *words = json.loads(self.rfile.readline())
            try:
                status = 0
                text = run(client, Path(here), words)
            except (
                ClientError,
                EndpointConnectionError,
                LookupError,
                ValueError,
                OSError,
            ) as error:
                status = 254
                text = f"{' '.join(words)}: {error!r}\n"
            self.wfile.write(json.dumps([status, text]).encode())

    program = folder / "aws"
    address = folder / "socket"
    program.write_text(CLIENT, encoding="utf-8")
    program.chmod(0o755)
    with socketserver.ThreadingUnixStreamServer(str(address), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield {"AWS_CLI_SOCKET": str(address)}
        finally:
            server.shutdown()
            thread.join()


def block(page: str, containing: str) -> str:
    """Return the block of commands of a page that has a text."""
    (found,) = (
        each
        for each in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        if containing in each
    )
    return str(found)


def run(client: Callable[..., Any], here: Path, words: list[str]) -> str:
    named, operation, *rest = words
    service = CALLED_BY_THE_CLI.get(named, named)
    if (service, operation) == ("logs", "tail"):
        lines = client("logs").filter_log_events(logGroupName=rest[0])["events"]
        return "".join(f"{line['message'].rstrip()}\n" for line in lines)
    if operation == "wait":
        waiter, *given = rest
        arguments = {
            option.removeprefix("--").title().replace("-", ""): value
            for option, value in batched(given, 2, strict=True)
        }
        client(service).get_waiter(waiter.replace("-", "_")).wait(
            **arguments, WaiterConfig=ONCE_A_SECOND
        )
        return ""
    options: dict[str, list[str]] = {}
    for word in rest:
        if word.startswith("--"):
            values = options.setdefault(word.removeprefix("--"), [])
        else:
            kind, _, path = word.partition("://")
            values.append(
                (here / path).read_text(encoding="utf-8") if kind in {"file", "fileb"} else word
            )
    sdk = client(service, *options.get("region", []))
    method = next(
        name
        for name, known in sdk.meta.method_to_api_mapping.items()
        if xform_name(known, "-") == operation
    )
    members = sdk.meta.service_model.operation_model(
        sdk.meta.method_to_api_mapping[method]
    ).input_shape.members
    by_option = {xform_name(name, "-"): (name, shape) for name, shape in members.items()}
    request = {}
    for option, values in options.items():
        if option in by_option:
            name, shape = by_option[option]
            is_file = shape.serialization.get("streaming", False)
            request[name] = (here / values[0]).read_bytes() if is_file else _value(shape, values)
    answer = getattr(sdk, method)(**request)
    answer.pop("ResponseMetadata", None)
    found = jmespath.search(options.get("query", ["@"])[0], answer)
    return (
        _text(found)
        if options.get("output") == ["text"]
        else json.dumps(found, default=str, indent=2)
    ) + "\n"


def _value(shape: Any, values: list[str]) -> Any:
    match shape.type_name:
        case "boolean":
            return True
        case "list" if not values[0].startswith("["):
            return values
        case "map" if not values[0].startswith("{"):  # the short form: A=1,B=2
            return dict(each.split("=", 1) for each in values[0].split(","))
        case "list" | "structure" | "map":
            return json.loads(values[0])
        case "integer" | "long":
            return int(values[0])
        case _:
            return values[0]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ("\n" if any(isinstance(each, list) for each in value) else "\t").join(
            map(_text, value)
        )
    return "None" if value is None else str(value)
