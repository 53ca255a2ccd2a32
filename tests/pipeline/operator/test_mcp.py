"""The commands as tools of the Model Context Protocol, called by the SDK's client."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import pytest
from mcp import Client, StdioServerParameters

from ops.cli.app import command_line
from ops.mcp_server import tools as offered
from tests.pipeline.operator.conftest import NAME, Operator

pytestmark = pytest.mark.integration

COMPLETED: Final = {"status": "COMPLETED", "limit": 1_000}


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


def answered(result: Any) -> Any:
    """Return what a call was answered, once, in a block of text below 20 KB."""
    (block,) = result.content
    assert result.structured_content is None
    assert len(block.text) < 20_000
    return json.loads(block.text)


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
    assert answered(audit)["status"] == 0
    assert answered(audit)["result"]["lost"] == 0
    assert redrive.is_error
    assert "--allow-changes" in answered(redrive)["error"]
    assert mistake.is_error
    assert "'soon' is not a span of time" in answered(mistake)["error"]


def test_a_long_answer_comes_in_parts(operator: Operator) -> None:
    """With the cursor of one answer, the next goes on; options that never end cannot be given."""

    async def ask(client: Client) -> Any:
        records = list[Any]()
        cursor: int | None = 0
        while cursor is not None:
            answer = answered(await client.call_tool("records", COMPLETED | {"cursor": cursor}))
            records += answer["result"]["records"]
            cursor = answer.get("cursor")
        watched = await client.call_tool("audit", {"watch": True})
        return records, watched, client.server_info

    records, watched, server = asked(operator, ask=ask)
    assert len(json.dumps(records)) > 20_000
    keys = [record["key"] for record in records]
    assert len(set(keys)) == len(keys)
    assert watched.is_error
    assert answered(watched)["error"].startswith("audit does not take watch; it takes ")
    assert server.version


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
    assert answered(shown)["notes"][-1].startswith("nothing was done")
    assert after == before != []
    assert answered(parked)["result"] == {"added": 1}
