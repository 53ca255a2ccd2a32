"""The verbs that serve until they are stopped."""

from ops.cli.verbs import Session, reads


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
