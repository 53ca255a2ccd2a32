"""The engine's command line: ``python -m local.engine run TEMPLATE`` or ``python -m local.engine serve --port N``."""

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

from local.engine.process import HOST, EngineError
from local.engine.run import run
from local.engine.settings import Settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m local.engine", description="An AWS on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)

    serving = commands.add_parser("serve", help="run the engine in the foreground, on 127.0.0.1")
    add = serving.add_argument
    add("--port", type=int, required=True, help="TCP port to listen on")
    add(
        "--retry-delays",
        default="1,2",
        type=lambda text: tuple(float(part) for part in text.split(",")),
        metavar="S,S",
        help="seconds before each retry of an asynchronous invocation (%(default)s); AWS waits 60,120",
    )
    add("--workers", type=int, default=2, help="processes per function, for events or for a queue (%(default)s)")
    add("--preload", action="append", default=[], metavar="FILE", help="Python file to run in each function's process")
    add("--plug-in", action="append", default=[], dest="plug_ins", metavar="MODULE", help="module to extend the engine")
    add("--stock", action="store_true", help="leave the engine's plug-ins out, to compare with MiniStack itself")
    add("--until-stdin-closes", metavar="FOLDER", help="end with the process that started it, and remove FOLDER")

    running = commands.add_parser("run", help="build and deploy a SAM template, and keep it running until Ctrl-C")
    add = running.add_argument
    add("template", type=Path, help="path of the SAM template")
    add("parameters", nargs="*", type=lambda text: text.partition("=")[::2], metavar="NAME=VALUE", help="parameters")
    add("--port", type=int, default=0, help="TCP port to listen on (a free one)")
    add("--stack-name", default="local", help="name of the stack (%(default)s)")
    return parser


def _serve(settings: Settings) -> None:
    """Set MiniStack's environment, apply the plug-ins and serve until stopped."""
    if settings.until_stdin_closes:
        threading.Thread(target=_end_with_parent, args=[settings.until_stdin_closes], daemon=True).start()
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

    from local.engine import plug_ins  # noqa: PLC0415 - imports MiniStack

    plug_ins.apply(settings)
    from ministack import app  # noqa: PLC0415 - as above

    app.main()


def _end_with_parent(folder: str) -> None:
    """Wait until standard input closes, then kill this process group and remove the folder."""
    sys.stdin.buffer.read()
    group = os.getpgid(0)  # with the functions' processes, which write into the folder until they are gone
    script = 'kill -9 "-$1"; sleep 1; rm -rf -- "$2"'
    subprocess.Popen(["/bin/sh", "-c", script, "sh", str(group), folder], start_new_session=True)


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args(namespace=Settings())
    if options.command == "serve":
        _serve(options)
        return
    try:
        run(options.template, dict(options.parameters), port=options.port, stack=options.stack_name)
    except EngineError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
