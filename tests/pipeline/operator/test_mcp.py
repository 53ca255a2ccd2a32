"""The commands as tools of the Model Context Protocol, called by the SDK's client."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from ops.cli.app import command_line
from ops.mcp_server import tools as offered
from tests.pipeline.operator.conftest import NAME, Operator

pytestmark = pytest.mark.integration


def asked(operator: Operator, *options: str, ask: Callable[[Client], Awaitable[Any]]) -> Any:
    """Start a server with options, and return what a client was answered."""
    command = ["-m", "ops", "mcp", *options]

    async def run() -> Any:
        async with Client(
            StdioServerParameters(command=sys.executable, args=command, env=operator.environment),
            read_timeout_seconds=60,
        ) as client:
            return await ask(client)

    return anyio.run(run)


def test_without_permission_there_are_only_tools_that_read(operator: Operator) -> None:
    """They answer what the command with --json does.

    A call of another tool is an error, and so is a mistake.
    """

    async def ask(client: Client) -> Any:
        tools = (await client.list_tools()).tools
        audit = await client.call_tool("audit", {"grace": "0s"})
        redrive = await client.call_tool("redrive", {"queue": "RideHistoryDlq"})
        mistake = await client.call_tool("audit", {"grace": "soon"})
        return tools, audit, redrive, mistake

    tools, audit, redrive, mistake = asked(operator, ask=ask)
    every = offered(command_line(), allow_changes=True)
    changing = {"replay_plan", *(name for name, (verb, _) in every.items() if verb.acts)}
    assert {tool.name for tool in tools} == set(every) - changing
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert audit.structured_content["status"] == 0
    assert audit.structured_content["result"]["lost"] == 0
    assert redrive.is_error
    assert "--allow-changes" in redrive.structured_content["error"]
    assert mistake.is_error
    assert "'soon' is not a span of time" in mistake.structured_content["error"]


def test_a_change_is_shown_first(operator: Operator) -> None:
    """A tool that acts does so with yes alone, and has the arguments of its command."""

    async def ask(client: Client) -> Any:
        (tool,) = (each for each in (await client.list_tools()).tools if each.name == "redrive")
        shown = await client.call_tool("redrive", {"queue": "ProducerDlq"})
        after = operator.pipeline.dead_letters("ProducerDlq")
        parked = await client.call_tool("fleet", {"cars": 9, "yes": True})
        return tool, shown, after, parked

    before = operator.pipeline.dead_letters("ProducerDlq")
    tool, shown, after, parked = asked(operator, "--allow-changes", "--stack", NAME, ask=ask)
    assert tool.input_schema["required"] == ["queue"]
    assert tool.input_schema["properties"]["yes"]["type"] == "boolean"
    assert "stack" not in tool.input_schema["properties"], "the server was started for one stack"
    assert shown.structured_content["notes"][-1].startswith("nothing was done; add --yes")
    assert after == before != []
    assert parked.structured_content["result"] == {"added": 1}
