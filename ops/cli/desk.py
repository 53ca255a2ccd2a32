"""The verb that serves the page."""

import signal
from collections.abc import Iterator
from contextlib import suppress

from ops.cli.verbs import Session, reads
from ops.desk import PORT, serving


@reads("desk", tool=False)
def desk(session: Session, *, port: int = PORT) -> Iterator[str]:
    """Serve a page that shows every event of a stack and what became of it, until Ctrl-C.

    Only this machine can open it. On AWS it changes nothing until you confirm a button; the audit runs when you ask for
    it. On a local stack it also injects faults.

    Args:
        port: Where to serve it.
    """
    with serving(session.stack, port) as url:
        yield f"{url} shows {session.stack.name}; Ctrl-C ends it"
        with suppress(KeyboardInterrupt):
            signal.pause()
