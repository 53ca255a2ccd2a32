"""The verbs as tools of the Model Context Protocol, over standard input and output.

A tool runs `./carride VERB … --json` as a process of its own: tools and command line take the same
arguments and answer the same. A call that the client cancels is interrupted as by Ctrl-C, and
cleans up.
"""

import json
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Final

import anyio
import mcp_types as types
from cyclopts import App
from cyclopts.argument import Argument
from mcp import stdio_server
from mcp.server.lowlevel import Server

from carride_idempotency import __version__
from ops.bounds import clipped, page
from ops.verbs import VERBS, Verb

_INSTRUCTIONS: Final = """\
Look at a CarRide stack with the tools that read. A tool that changes something only shows what it
would do, until it is called again with yes: true; show that preview to the operator first. The
status of a result is 0 if all is fine, 1 if something is wrong, and 3 if the evidence is
incomplete. An answer with a cursor is a part: call again with that cursor for the rest. Long
strings end with how many characters they have."""
_ANSWERED: Final = frozenset({0, 1, 3})
"""Exit statuses of a command that has printed its result."""
_MOST: Final = 16_000
"""Bytes of a result, so that an answer stays below 20 KB."""
_MOST_SAID: Final = 2_000
"""Bytes of what a command says on the way, and characters of an error."""
_HIDDEN: Final = frozenset({"json", "watch"})
"""Options of a command that its tool does not have."""
_CURSOR: Final = {
    "type": "integer",
    "minimum": 0,
    "description": "Go on with the rest: the cursor of the last answer.",
}
_TYPES: Final[Mapping[Any, str]] = {bool: "boolean", int: "integer", float: "number"}


def tools(
    line: App, *, allow_changes: bool, fixed: Sequence[str] = ()
) -> dict[str, tuple[Verb, types.Tool]]:
    """Return the tools by name, with their verbs, whose arguments the command line knows.

    Verbs that act, or use temporary resources, are among them if changes are allowed. The server
    sets the arguments ``fixed``, such as ``stack``.
    """
    found = {}
    for verb in VERBS.values():
        changes = verb.acts or verb.temporary
        if verb.tool and (allow_changes or not changes):
            name = verb.name.replace(" ", "_").replace("-", "_")
            arguments = {
                key: each for key, each in _arguments(line, verb) if key not in {*_HIDDEN, *fixed}
            }
            properties = {key: _schema(each) for key, each in arguments.items()}
            if not changes:
                properties["cursor"] = _CURSOR
            schema = {
                "type": "object",
                "properties": properties,
                "required": [key for key, each in arguments.items() if each.required],
                "additionalProperties": False,
            }
            hints = types.ToolAnnotations(read_only_hint=not changes)
            text = str(verb.function.__doc__).partition("\n\n    Args:")[0]
            found[name] = (
                verb,
                types.Tool(name=name, description=text, input_schema=schema, annotations=hints),
            )
    return found


def serve(line: App, *, allow_changes: bool, options: Mapping[str, str | None]) -> None:
    """Answer requests until standard input ends.

    ``options`` are stack and region of every call; None leaves the choice to the call.
    """
    given = {name: value for name, value in options.items() if value is not None}
    offered = tools(line, allow_changes=allow_changes, fixed=tuple(given))

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool for _, tool in offered.values()])

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in offered:
            return _answer(
                {"error": f"there is no tool {params.name}: it may need --allow-changes"},
                failed=True,
            )
        verb, tool = offered[params.name]
        arguments = dict(params.arguments or {})
        unknown = arguments.keys() - tool.input_schema["properties"].keys()
        if unknown:
            return _answer({"error": _unknown(params.name, unknown, tool)}, failed=True)
        start = arguments.pop("cursor", 0)
        fixed = given if verb.chooses else {}
        return await _run(words(line, verb, {**arguments, **fixed}), start)

    async def run() -> None:
        server = Server(
            "carride",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
        )
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())

    anyio.run(run)


def words(line: App, verb: Verb, given: Mapping[str, Any]) -> list[str]:
    """Return the command for a tool's arguments.

    The command refuses those that it does not know.
    """
    known = dict(_arguments(line, verb))
    positional = [
        str(given[key])
        for key, each in known.items()
        if key in given and not each.name.startswith("-")
    ]
    options = []
    for key, value in given.items():
        name = known[key].name if key in known else f"--{key}"
        if value is True:
            options.append(name)
        elif name.startswith("-") and value is not False and value is not None:
            options += [
                f"{name}={each}" for each in (value if isinstance(value, list) else [value])
            ]
    return [*verb.name.split(), *options, "--json", "--", *positional]


def _arguments(line: App, verb: Verb) -> Iterator[tuple[str, Argument]]:
    command = line
    for word in verb.name.split():
        command = command[word]
    for each in command.assemble_argument_collection(parse_docstring=True):
        if not each.children:  # it is not a group of options
            yield each.name.lstrip("-").replace("-", "_").lower(), each


def _schema(argument: Argument) -> dict[str, Any]:
    """Return the JSON schema of an argument."""
    schema: dict[str, Any] = {"type": _type_of(argument.hint)}
    is_list = getattr(argument.hint, "__origin__", None) in {tuple, list}
    if is_list:
        schema = {"type": "array", "items": schema}
    schema["description"] = argument.parameter.help or ""
    return schema


def _type_of(hint: Any) -> str:
    """Return JSON's name for a type, or for that of a union's or list's members."""
    members = getattr(hint, "__args__", ())
    for kind, name in _TYPES.items():
        if kind == hint or kind in members:
            return name
    return "string"


def _unknown(tool: str, names: Collection[str], described: types.Tool) -> str:
    known = ", ".join(described.input_schema["properties"])
    return f"{tool} does not take {', '.join(sorted(names))}; it takes {known}"


async def _run(command: Sequence[str], start: int) -> types.CallToolResult:
    """Run a command, and return its result from an entry on, its status and what it has said."""
    typed = [sys.executable, "-m", "ops", *command]
    try:
        process = Popen(typed, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True)
    except (OSError, ValueError) as error:  # too long; a zero byte, or half of a surrogate pair
        return _answer({"error": f"an argument cannot be passed on: {error}"}, failed=True)
    try:
        out, notes = await anyio.to_thread.run_sync(process.communicate, abandon_on_cancel=True)
    finally:
        if process.poll() is None:  # the call was cancelled
            process.send_signal(signal.SIGINT)
    return answer_of(process.returncode, out, notes, start)


def answer_of(status: int, out: str, notes: str, start: int = 0) -> types.CallToolResult:
    """Return a command's result from an entry on, its exit status and what it has said.

    ``out`` and ``notes`` are what it has printed to standard output and to standard error.
    """
    if status not in _ANSWERED:
        return _answer({"error": clipped(notes.strip(), _MOST_SAID)}, failed=True)
    result = page(_decoded(out), _MOST, start=start)
    said = page(notes.splitlines(), _MOST_SAID).document
    answer = {"status": status, "result": result.document, "notes": said}
    if result.cursor is not None:
        answer["cursor"] = result.cursor
    return _answer(answer)


def _decoded(text: str) -> Any:
    """Return a JSON document, or a list of those that a verb has yielded, one a line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def _answer(content: Mapping[str, Any], *, failed: bool = False) -> types.CallToolResult:
    text = types.TextContent(type="text", text=json.dumps(content))
    return types.CallToolResult(content=[text], is_error=failed)
