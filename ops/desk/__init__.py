"""The desk: pages that show what flows through a stack, for this machine only."""

import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ops.stack import OperatorError, StackRef

PORT: Final = 8765
_HOST: Final = "127.0.0.1"


@contextmanager
def serving(stack: StackRef, port: int = PORT) -> Iterator[str]:
    """Serve the pages from a thread for as long as the ``with`` block lasts; yield its URL.

    Port 0 is any free port.

    Raises:
        OperatorError: there is no such stack, or the port is taken.
    """
    import uvicorn  # noqa: PLC0415 - whoever only needs the port needs no server

    from ops.desk.app import Desk  # noqa: PLC0415 - as above
    from ops.desk.feed import Feed  # noqa: PLC0415 - as above

    feed = Feed(stack)
    try:
        listener = socket.create_server((_HOST, port))
    except OSError as error:
        raise OperatorError(
            f"port {port} cannot be used ({error.strerror}): give another one with --port"
        ) from error
    with listener:
        host = f"{_HOST}:{listener.getsockname()[1]}"
        desk = Desk(feed, host)
        settings = uvicorn.Config(
            desk.app,
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, args=([listener],), name="desk")
        feed.start()
        thread.start()
        try:
            yield f"http://{host}/"
        finally:
            feed.stop()
            server.should_exit = True
            thread.join()


def open_browser(url: str) -> None:
    """Open a page if this is a terminal of a desktop.

    Elsewhere a browser in text mode would take the terminal.
    """
    has_display = (
        sys.platform in {"darwin", "win32"} or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    )
    if sys.stdout.isatty() and has_display:
        webbrowser.open(url)
