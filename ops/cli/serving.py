"""The verbs that serve until they are stopped."""

import signal
from collections.abc import Iterator
from contextlib import suppress

from ops.cli.verbs import Session, reads
from ops.desk import PORT, open_browser, serving


@reads("desk", "", tool=False)
def desk(session: Session, *, port: int = PORT, no_browser: bool = False) -> Iterator[str]:
    """Serve a page that shows every event of a stack and what became of it, until Ctrl-C.

    Only this machine can open it. It changes nothing until you confirm a button. On AWS the audit runs when you ask for
    it, because it reads whole tables. On a local stack the page also injects faults.

    Args:
        port: Where to serve it.
        no_browser: Do not open it in a browser.
    """
    with serving(session.stack, port) as url:
        yield f"{url} shows {session.stack.name}; Ctrl-C ends it"
        if not no_browser:
            open_browser(url)
        with suppress(KeyboardInterrupt):
            signal.pause()


@reads("mcp", "", "--allow-changes --stack carride --region us-west-2", tool=False)
def mcp(session: Session, *, allow_changes: bool = False) -> None:
    """Serve the commands as tools of the Model Context Protocol, over standard input and output.

    A client starts it, for example with `"command": "/path/to/carride", "args": ["mcp"]`. Every command that changes
    nothing is a tool. --stack and --region fix the stack; without them each call chooses it.

    Args:
        allow_changes: Offer the commands that change something too; each does it only when it is called with yes.
    """
    from ops.cli.app import command_line  # noqa: PLC0415 - it imports this module
    from ops.mcp_server import serve  # noqa: PLC0415 - it takes long to import

    serve(command_line(), allow_changes=allow_changes, options=session.options)
