"""What MCP servers do in the world, played by a scripted server through a gateway's leases."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from field_cases import FieldCase, field_cases
from scripted_server import HttpServer, Script

from mcp_rollout import Gateway, GatewayConfig, GatewayError, Session

PROGRAM = Path(__file__).parents[1] / "support" / "scripted_server.py"


def played() -> list[Any]:
    """Each case over each of its transports."""
    return [
        pytest.param(case.values[0], over, id=f"{case.id}-{over}")
        for case in field_cases("servers")
        for over in case.values[0].given.get("over", ["http"])
    ]


@asynccontextmanager
async def serving(given: dict[str, Any], over: str, tmp_path: Path) -> AsyncGenerator[tuple[Any, Any, Any]]:
    """The server's entry, what it ran so far, and what makes it forget its sessions."""
    if over == "stdio":
        case, ran = tmp_path / "case.json", tmp_path / "ran"
        case.write_text(json.dumps(given))
        ran.touch()
        entry = {"command": sys.executable, "args": ["-I", "-S", str(PROGRAM), str(case), str(ran)]}
        yield entry, lambda: ran.read_text().split(), lambda: None
        return
    script = Script(given)
    async with HttpServer(script) as server:
        entry = {"url": f"http://127.0.0.1:{server.port}/{'sse' if over == 'sse' else 'mcp'}"}
        yield {**entry, **({"type": "sse"} if over == "sse" else {})}, lambda: script.ran, script.restart


async def outcomes_of(session: Session, tools: list[str]) -> list[dict[str, str]]:
    """What calls that are sent at once come to."""
    outcomes: list[dict[str, str]] = [{} for _ in tools]

    async def call(number: int, tool: str) -> None:
        try:
            result = await session.call(tool, {})
            outcomes[number] = {"refused" if result.is_error else "reads": result.text}
        except GatewayError as error:
            outcomes[number] = {"withdrawn": error.code, "says": str(error)}

    async with anyio.create_task_group() as tasks:
        for number, tool in enumerate(tools):
            tasks.start_soon(call, number, tool)
    return outcomes


async def play(gateway: Gateway, steps: list[Any], restart: Callable[[], None]) -> list[dict[str, str]]:
    """The outcomes of the steps that are calls, and of a lease that was not granted."""
    outcomes: list[dict[str, str]] = []
    async with AsyncExitStack() as stack:
        session = None
        for step in steps:
            if step == "restart":
                restart()
                continue
            if step == "lease" or session is None:
                await stack.aclose()
                lease = gateway.lease(trajectory=f"{len(outcomes)}", task=None, seed=0)
                try:
                    session = await stack.enter_async_context(lease)
                except GatewayError as error:
                    outcomes.append({"withdrawn": error.code, "says": str(error)})
            if step == "changes" and session is not None:
                try:
                    await session.wait_for_tool_changes()
                except GatewayError as error:
                    outcomes.append({"withdrawn": error.code, "says": str(error)})
            elif step != "lease" and session is not None:
                outcomes += await outcomes_of(session, step if isinstance(step, list) else [step])
    return outcomes


def assert_as_expected(found: dict[str, str], expected: dict[str, str]) -> None:
    if "says" in expected:
        assert expected["says"] in found.pop("says", ""), found
        expected = {key: value for key, value in expected.items() if key != "says"}
    else:
        found.pop("says", None)
    assert found == expected


@pytest.mark.anyio
@pytest.mark.parametrize(("case", "over"), played())
async def test_a_server_of_the_field_is_met_as_it_should_be(case: FieldCase, over: str, tmp_path: Path) -> None:
    given, expected = case.given, case.expected
    with anyio.fail_after(20):
        async with serving(given, over, tmp_path) as (entry, ran, restart):
            config = {"servers": {"world": {**entry, "call_timeout_s": 10, "required": True, **given.get("entry", {})}}}
            try:
                async with Gateway(GatewayConfig.model_validate(config)) as gateway:
                    if "tools" in expected:
                        assert [tool.name for tool in gateway.catalogue["world"]] == expected["tools"]
                    if "malformed" in expected:
                        assert list(gateway.malformed["world"]) == expected["malformed"]
                    steps = given.get("steps", [])
                    outcomes = await play(gateway, steps, restart)
            except GatewayError as error:
                outcomes = [{"withdrawn": error.code, "says": str(error)}]
            for found, wanted in zip(outcomes, expected.get("outcomes", []), strict=True):
                assert_as_expected(found, wanted)
            if "ran" in expected:
                assert Counter(ran()) == expected["ran"]
