"""Start the engine: ``python -m local.engine --port N``."""

import argparse
import os
import subprocess
import sys
import threading

from local.engine.settings import STAY, Settings


def _settings() -> Settings:
    defaults = Settings(port=0)
    parser = argparse.ArgumentParser(
        prog="python -m local.engine", description="Run the laptop's AWS in the foreground."
    )
    parser.add_argument("--port", type=int, required=True, help="TCP port to listen on")
    parser.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--retry-delays",
        default=defaults.retry_delays,
        type=lambda text: tuple(float(part) for part in text.split(",")),
        metavar="S,S",
        help="seconds before each retry of an asynchronous invocation; AWS: 60,120",
    )
    parser.add_argument(
        "--workers", type=int, default=defaults.workers, help="processes a function (default: %(default)s)"
    )
    parser.add_argument("--queue-limit", type=int, default=defaults.queue_limit, help="events waiting for one function")
    parser.add_argument(
        "--until-stdin-closes",
        metavar="FOLDER",
        help="end with the process that started the engine, and remove this folder, which is the engine's own",
    )
    options = vars(parser.parse_args())
    if folder := options.pop("until_stdin_closes"):
        threading.Thread(target=_end_with_parent, args=[folder], daemon=True).start()
    return Settings(**options)


def _end_with_parent(folder: str) -> None:
    if sys.stdin.buffer.read() != STAY:
        group = os.getpgid(0)  # with the functions' processes, which write into the folder until they are gone
        script = 'kill -9 "-$1"; sleep 1; rm -rf -- "$2"'
        subprocess.Popen(["/bin/sh", "-c", script, "sh", str(group), folder], start_new_session=True)


def main() -> None:
    """Set MiniStack's environment, apply the plug-ins and serve until stopped."""
    settings = _settings()
    # MiniStack reads these when it is imported.
    os.environ |= {
        "GATEWAY_PORT": str(settings.port),
        "BIND_HOST": settings.host,
        "AUTH": "true",
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
    }
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    sys.argv[1:] = []  # MiniStack has options of its own

    from local.engine import plug_ins  # noqa: PLC0415 - imports MiniStack

    plug_ins.apply(settings)
    from ministack import app  # noqa: PLC0415

    app.main()


if __name__ == "__main__":
    main()
