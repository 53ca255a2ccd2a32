"""As much of the AWS CLI as the runbooks use, by botocore's models: tests do not depend on the machine's AWS CLI.

A server in the test's process makes the calls, and `aws` is a small client of it, because importing boto3 takes longer
than any call.
"""

import json
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, override

import jmespath
from botocore import xform_name
from botocore.exceptions import ClientError

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
def serving(folder: Path, client: Callable[[str], Any]) -> Iterator[dict[str, str]]:
    """Put an `aws` into a folder, and yield the variables with which it works.

    Args:
        folder: goes into PATH.
        client: returns a boto3 client for a service.
    """

    class Handler(socketserver.StreamRequestHandler):
        @override
        def handle(self) -> None:
            here, *words = json.loads(self.rfile.readline())
            try:
                status, text = 0, run(client, Path(here), words)
            except (ClientError, LookupError, ValueError, OSError) as error:
                status, text = 254, f"{' '.join(words)}: {error!r}\n"
            self.wfile.write(json.dumps([status, text]).encode())

    program, address = folder / "aws", folder / "socket"
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


def run(client: Callable[[str], Any], here: Path, words: list[str]) -> str:
    """Run a command, and return what it prints."""
    service, operation, *rest = words
    if (service, operation) == ("logs", "tail"):
        lines = client("logs").filter_log_events(logGroupName=rest[0])["events"]
        return "".join(f"{line['message'].rstrip()}\n" for line in lines)
    sdk = client(service)
    method = next(name for name, known in sdk.meta.method_to_api_mapping.items() if xform_name(known, "-") == operation)
    members = sdk.meta.service_model.operation_model(sdk.meta.method_to_api_mapping[method]).input_shape.members
    by_option = {xform_name(name, "-"): (name, shape) for name, shape in members.items()}
    request, of_the_cli, files = {}, {}, []
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            files.append(here / word)
            continue
        option = word.removeprefix("--")
        values: list[str] = []
        positive = option if option in by_option else option.removeprefix("no-")
        kind = by_option[positive][1].type_name if positive in by_option else "string"
        if kind == "boolean":
            request[by_option[positive][0]] = positive == option
            continue
        while rest and not rest[0].startswith("--") and (kind == "list" or not values):
            values.append(_content(here, rest.pop(0)))
        if positive in by_option:
            name, shape = by_option[positive]
            request[name] = _value(shape, values)
        else:
            of_the_cli[option] = values[0]
    answer = getattr(sdk, method)(**request)
    answer.pop("ResponseMetadata", None)
    if "Payload" in answer:
        files[0].write_bytes(answer.pop("Payload").read())
    found = jmespath.search(of_the_cli.get("query", "@"), answer)
    return (
        f"{_text(found)}\n" if of_the_cli.get("output") == "text" else json.dumps(found, default=str, indent=2) + "\n"
    )


def _content(here: Path, value: str) -> str:
    path = value.partition("://")[2] if value.startswith(("file://", "fileb://")) else None
    return value if path is None else (here / path).read_text(encoding="utf-8")


def _value(shape: Any, values: list[str]) -> Any:
    if shape.type_name == "list" and not values[0].startswith("["):
        return values
    if shape.type_name in {"list", "structure", "map"}:
        return json.loads(values[0])
    return int(values[0]) if shape.type_name in {"integer", "long"} else values[0]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ("\n" if any(isinstance(each, list) for each in value) else "\t").join(map(_text, value))
    return "None" if value is None else str(value)
