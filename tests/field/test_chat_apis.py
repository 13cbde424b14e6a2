"""Chat APIs of the field, played through `--engine chat:` over loopback, with a real server's tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from field_cases import FieldCase, field_cases
from mcp.server.mcpserver import MCPServer
from serving import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from worlds import environment, opened, task

from mcp_rollout.rollout.engines.chat import BUDGET
from mcp_rollout.rollout.engines.chat_endpoints import opened_endpoint
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.timeouts import Timeouts
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore

pytestmark = pytest.mark.anyio
ANSWER = {"message": {"role": "assistant", "content": "Done."}}


class Api:
    """Answers in turn as a case says, the last answer again and again, and keeps what it was sent."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.answers, self.refuses = list(given["answers"]), given.get("refuses", [])
        self.requests: list[Any] = []

    async def asked(self, request: Request) -> Response:
        body = await request.body()
        if refused := [key for key in self.refuses if f'"{key}":' in body.decode()]:
            return JSONResponse({"error": {"message": f"{refused[0]}: extra inputs are not permitted"}}, 400)
        self.requests.append(json.loads(body))
        given = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if "body" in given:
            content = given["body"]
            status, text = given.get("status", 200), content if isinstance(content, str) else json.dumps(content)
            return Response(text, status, media_type="application/json")
        return JSONResponse({"choices": [{"index": 0, "finish_reason": "stop", **given}]})


def world(names: list[str]) -> MCPServer:
    server = MCPServer("world", log_level="ERROR")
    for name in names:

        def seen(at: Any = None, name: str = name) -> str:
            return f"{name} sees {json.dumps(at)}"

        server.add_tool(seen, name=name, description="Looks.")
    return server


@pytest.mark.parametrize("case", field_cases("chat_apis"))
async def test_a_chat_api_plays_and_gets_back_what_it_needs(case: FieldCase, tmp_path: Path) -> None:
    given, expected = case.given, case.expected
    api, servers = Api(given), {"world": world(given.get("tools", ["look"]))}
    made, row = environment(servers, **given.get("environment", {})), task()
    routes = [Route("/v1/chat/completions", api.asked, methods=["POST"])]
    async with listening(Starlette(routes=routes)) as address, opened(made, servers) as gateway:
        options = given.get("options", {})
        timeouts = Timeouts(attempts=2, retry_pause_s=0)
        settings = EngineOptions(engine=f"chat:{address}/v1", model="m", timeouts=timeouts, **options)
        async with opened_endpoint(settings) as engine:
            trace = await roll_out(
                Trace.begin("t", row, Origin()),
                environment=made,
                gateway=gateway,
                policy_for=lambda session: engine.policy(session, made, row, Origin()),
                tokens=engine.tokens(),
                limits=Limits(response_tokens=BUDGET),
                store=TraceStore(tmp_path),
            )
    found: dict[str, Any] = {"stop": str(trace.stop_reason), "scored": trace.reward is not None}
    written = [message for message in trace.messages if message["role"] == "assistant"]
    found["turns"] = [
        {
            "content": message["content"],
            "thinking": turn.thinking,
            "calls": [{event.name: event.arguments} for event in turn.tools],
        }
        for message, turn in zip(written, trace.turns, strict=True)
    ]
    said = [message for request in api.requests[-1:] for message in request["messages"]]
    found["sent_back"] = [message for message in said if message["role"] == "assistant"]
    found["results"] = [message["tool_call_id"] for message in said if message["role"] == "tool"]
    found["sent"] = {key: api.requests[0].get(key) for key in expected.get("sent", {})} if api.requests else {}
    offered = [tool["function"]["name"] for tool in api.requests[0].get("tools", ())] if api.requests else []
    found |= {"offered": offered, "requests": len(api.requests)}
    failure = "" if trace.failure is None else trace.failure.message
    found["says"] = expected.get("says", "") if expected.get("says", "") in failure else failure
    assert {key: found[key] for key in expected} == expected
