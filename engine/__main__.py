"""The engine's command line: ``run TEMPLATE`` or ``serve --socket N``."""

import argparse
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3

from engine.ignored import foreign, ignored
from engine.process import HOST, REGION, Engine, EngineError, end_in_order
from engine.settings import Settings

_OPTIONS = ("--resolve-s3", "--no-confirm-changeset", "--capabilities")
_CAPABILITIES = ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description="An AWS on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)

    serving = commands.add_parser(
        "serve", help="run the engine in the foreground, for the process that starts it"
    )
    add = serving.add_argument
    add(
        "--socket",
        type=int,
        required=True,
        metavar="N",
        help="file descriptor of the TCP socket to listen on, which is bound to 127.0.0.1",
    )
    add(
        "--retry-delays",
        default="1,2",
        type=lambda text: tuple(float(part) for part in text.split(",")),
        metavar="S,S",
        help="seconds before each retry of an asynchronous invocation (%(default)s; AWS: 60,120)",
    )
    add(
        "--workers",
        type=int,
        default=2,
        help="processes per function, for events or for a queue (%(default)s)",
    )
    add(
        "--preload",
        action="append",
        default=[],
        metavar="FILE",
        help="Python file to run in each function's process",
    )
    add(
        "--plug-in",
        action="append",
        default=[],
        dest="plug_ins",
        metavar="MODULE",
        help="module to extend the engine",
    )
    add(
        "--stock",
        action="store_true",
        help="leave the engine's plug-ins out, to compare with MiniStack itself",
    )
    add(
        "--until-stdin-closes",
        metavar="FOLDER",
        help="end with the process that started it, and remove FOLDER",
    )

    running = commands.add_parser(
        "run", help="build and deploy a SAM template, and keep it running until Ctrl-C"
    )
    add = running.add_argument
    add("template", type=Path, help="path of the SAM template")
    add(
        "parameters",
        nargs="*",
        type=lambda text: text.partition("=")[::2],
        metavar="NAME=VALUE",
        help="parameters",
    )
    add("--port", type=int, default=0, help="TCP port to listen on (a free one)")
    add("--stack-name", default="local", help="name of the stack (%(default)s)")
    return parser


def _serve(settings: Settings) -> None:
    """Set MiniStack's environment, apply the plug-ins and serve until stopped."""
    if settings.until_stdin_closes:
        threading.Thread(
            target=_end_with_parent, args=[settings.until_stdin_closes], daemon=True
        ).start()
    listener = socket.socket(fileno=settings.socket)
    settings.port = listener.getsockname()[1]
    # MiniStack reads these when it is imported.
    os.environ |= {
        "GATEWAY_PORT": str(settings.port),
        "BIND_HOST": HOST,
        "AUTH": "true",
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
    }
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    sys.argv[1:] = []  # MiniStack has options of its own

    from engine import plug_ins  # noqa: PLC0415 - imports MiniStack

    plug_ins.apply(settings)
    from hypercorn import config  # noqa: PLC0415 - MiniStack's server
    from ministack import app  # noqa: PLC0415 - as above

    config.Config.create_sockets = lambda _: config.Sockets([], [listener], [])
    app.main()


def _end_with_parent(folder: str) -> None:
    """Wait until standard input closes, then kill this process group and remove the folder."""
    sys.stdin.buffer.read()
    # With the functions' processes, which write into the folder until they are gone.
    group = os.getpgid(0)
    script = 'kill -9 "-$1"; sleep 1; rm -rf -- "$2"'
    subprocess.Popen(["/bin/sh", "-c", script, "sh", str(group), folder], start_new_session=True)


def _run(template: Path, parameters: Mapping[str, str], *, port: int, stack: str) -> None:
    """Build and deploy a template, print its outputs and addresses, and wait for Ctrl-C."""
    end_in_order()
    with Engine(Path(sys.executable), port=port) as engine:
        built = engine.folder / "build"
        print("sam build …", flush=True)
        engine.sam(
            "build",
            "--template-file",
            str(template),
            "--build-dir",
            str(built),
            parameters=parameters,
        )
        print("sam deploy …", flush=True)
        target = ("--template-file", str(built / "template.yaml"), "--stack-name", stack)
        engine.sam("deploy", *target, *_OPTIONS, *_CAPABILITIES, parameters=parameters)
        cloudformation = _cloudformation(engine)
        rows = _addresses(cloudformation, engine.endpoint_url, stack)
        width = max(map(len, rows), default=0)
        print(f"\nThe stack {stack} is deployed:")
        print(*(f"  {name:<{width}}  {value}" for name, value in rows.items()), sep="\n")
        deployed = _template(cloudformation, stack)
        given = _parameters(cloudformation, stack)
        without_effect = [*ignored(deployed), *foreign(deployed, given, _architecture())]
        if without_effect:
            print("\nWithout effect on this engine:")
            print(*(f"  {each}" for each in without_effect), sep="\n")
        print("\nIn another terminal, the AWS CLI, the SAM CLI and boto3 reach it with:")
        variables = [f"{name}={value}" for name, value in engine.environment().items()]
        print(f"  export {' '.join(variables)}")
        print(f"\nThe engine's log is {engine.log}.\n\nCtrl-C ends it.", flush=True)
        signal.pause()


def _cloudformation(engine: Engine) -> Any:
    session: Any = boto3.session.Session(
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - not a secret
    )
    return session.client("cloudformation", endpoint_url=engine.endpoint_url, region_name=REGION)


def _template(cloudformation: Any, stack: str) -> Any:
    """Return the stack's template as SAM has transformed it, or as it was sent."""
    return cloudformation.get_template(StackName=stack, TemplateStage="Processed")["TemplateBody"]


def _parameters(cloudformation: Any, stack: str) -> dict[str, str]:
    """Return the values of the stack's parameters, the defaults among them."""
    found = cloudformation.describe_stacks(StackName=stack)["Stacks"][0].get("Parameters", [])
    return {each["ParameterKey"]: each["ParameterValue"] for each in found}


def _architecture() -> str:
    """Return this machine's processor, as Lambda calls it."""
    return "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64"


def _addresses(cloudformation: Any, endpoint_url: str, stack: str) -> dict[str, str]:
    """Return the stack's outputs, and the addresses of its HTTP APIs by logical id."""
    outputs = cloudformation.describe_stacks(StackName=stack)["Stacks"][0].get("Outputs", [])
    rows = {output["OutputKey"]: output["OutputValue"] for output in outputs}
    for page in cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack):
        for resource in page["StackResourceSummaries"]:
            if resource["ResourceType"] == "AWS::ApiGatewayV2::Api":
                path = f"/_aws/execute-api/{resource['PhysicalResourceId']}/$default"
                rows[resource["LogicalResourceId"]] = endpoint_url + path
    return rows


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args(namespace=Settings())
    if options.command == "serve":
        _serve(options)
        return
    try:
        _run(
            options.template, dict(options.parameters), port=options.port, stack=options.stack_name
        )
    except EngineError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
