"""Long conversations over an inference server, compared with what the server logged of every request."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from inference_servers import Generator
from mcp.server.mcpserver import MCPServer
from worlds import ROLE, environment, opened, task

from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.opening import opened_engine
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.evaluation.play import Job, Lengths, play_all
from mcp_rollout.rollout.trace.record import SpanKind, StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces


def talkative() -> MCPServer:
    """A user who never has enough."""
    server = MCPServer("talkative", log_level="ERROR")

    @server.tool(name="start", meta={ROLE: "start"})
    async def start() -> dict[str, Any]:
        return {"message": "Hello."}

    @server.tool(name="reply", meta={ROLE: "reply"})
    async def reply(seq: int, message: str) -> dict[str, Any]:
        return {"message": f"Go on, this was {seq}.", "done": False}

    return server


def jobs(made: Environment, count: int) -> list[Job]:
    prompts = [({"role": "user", "content": f"Row {row}: hello."},) for row in range(count)]
    return [Job(made, task(task=str(row), prompt=prompts[row]), Origin(row=row)) for row in range(count)]


async def played(address: str, model: Path, directory: Path, *, trajectories: int, turns: int) -> list[Trace]:
    """So many trajectories of so many turns, 16 at a time, as their traces were written."""
    servers = {"talkative": talkative()}
    made = environment(servers, user={"server": "talkative"}, limits={"assistant_turns": turns, "wall_clock_s": 1500})
    options = EngineOptions(engine=address, tokenizer=str(model))
    async with opened_engine(options) as engine, opened(made, servers) as gateway:
        assert engine.notes == []
        await play_all(
            jobs(made, trajectories),
            gateways={made.name: gateway},
            engine=engine,
            lengths=Lengths(response_tokens=16_000, context_tokens=engine.context_tokens),
            store=TraceStore(directory),
            concurrency=16,
            finished=lambda trace: None,
        )
    recorded = list(read_traces(directory))
    assert sorted(trace.origin.row for trace in recorded) == list(range(trajectories))
    assert {trace.stop_reason for trace in recorded} == {StopReason.TURN_LIMIT}
    assert {len(trace.turns) for trace in recorded} == {turns}
    return recorded


def assert_as_logged(recorded: Iterable[Trace], requests: list[dict[str, Any]]) -> None:
    """The ids and logprobs of every turn are those of the server's answer to exactly the turn's context."""
    logged = {tuple(request["prompt_ids"]): request for request in requests}
    for trace in recorded:
        assert trace.has_logprobs
        assert len(trace.response_ids) == len(trace.loss_mask) == len(trace.logprobs)
        assert sum(trace.loss_mask) == sum(turn.sampled for turn in trace.turns)
        for turn in range(len(trace.turns)):
            start, end = sampled(trace, turn)
            request = logged[tuple(trace.prompt_ids + trace.response_ids[:start])]
            assert request["token_ids"] == trace.response_ids[start:end]
            assert trace.logprobs[start:end] == pytest.approx(request["log_probs"], abs=1e-6)
            assert trace.loss_mask[start:end] == [1] * (end - start)


def assert_as_computed(recorded: Iterable[Trace], model: Path) -> None:
    """The logprobs are those of the model in transformers."""
    generator = Generator(model)
    for trace in recorded:
        expected = generator.logprobs(trace.prompt_ids, trace.response_ids, temperature=1.0, top_p=1.0, top_k=-1)
        ours = [logprob if mask else 0.0 for logprob, mask in zip(expected, trace.loss_mask, strict=True)]
        assert trace.logprobs == pytest.approx(ours, abs=1e-3)


def sampled(trace: Trace, turn: int) -> tuple[int, int]:
    """Where a turn's sampled tokens are in the response."""
    spans = [span for span in trace.spans if span.turn == turn and span.kind is not SpanKind.CONTEXT]
    return spans[0].start, spans[-1].end
