"""Trajectories over the real SGLang server, compared with what the server itself logged of every request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from ending_model import make_ending_model
from inference_servers import Generator
from mcp.server.mcpserver import MCPServer
from watched import Watched
from worlds import ROLE, environment, opened, task

from rollout.engines.engine import EngineOptions
from rollout.engines.opening import opened_engine
from rollout.engines.sampling import SamplingParameters
from rollout.environment.config import Environment
from rollout.environment.task import Origin
from rollout.evaluation.play import Job, Lengths, play_all
from rollout.trace.record import SpanKind, StopReason, Trace
from rollout.trace.store import TraceStore, read_traces
from rollout.types import FinishReason

# SGLang's own support comes with its environment; without it there is no real server to talk to.
sglang_server = pytest.importorskip("sglang_server")
requests_logged, running_sglang = sglang_server.requests_logged, sglang_server.running_sglang

pytestmark = [pytest.mark.anyio, pytest.mark.full, sglang_server.needs_sglang, pytest.mark.timeout(1800)]

TRAJECTORIES, TURNS = 100, 15


@pytest.fixture(scope="module")
def ending_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ending_model(tmp_path_factory.mktemp("ending"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module")
def sglang(ending_model: Path, home: Path) -> Iterator[str]:
    with running_sglang(ending_model, home) as address:
        yield address


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


async def test_a_hundred_trajectories_of_fifteen_turns_are_recorded_as_the_server_saw_them(
    sglang: str, ending_model: Path, home: Path, tmp_path: Path
) -> None:
    servers = {"talkative": talkative()}
    made = environment(servers, user={"server": "talkative"}, limits={"assistant_turns": TURNS, "wall_clock_s": 1500})
    options = EngineOptions(engine=sglang, tokenizer=str(ending_model), sampling=SamplingParameters(temperature=0.9))
    traces: list[Trace] = []
    async with opened_engine(options) as engine, opened(made, servers) as gateway:
        assert engine.notes == []
        await play_all(
            jobs(made, TRAJECTORIES),
            gateways={made.name: gateway},
            engine=engine,
            lengths=Lengths(response_tokens=16_000, context_tokens=engine.context_tokens),
            store=TraceStore(tmp_path),
            concurrency=16,
            finished=traces.append,
        )
    recorded = list(read_traces(tmp_path))
    assert sorted(trace.origin.row for trace in recorded) == list(range(TRAJECTORIES))
    assert {trace.stop_reason for trace in traces} == {StopReason.TURN_LIMIT}
    # SGLang's request to itself, when it warms up, is a text.
    requests = [request for request in requests_logged(home / "requests") if request["prompt_ids"] is not None]
    logged = {tuple(request["prompt_ids"]): request for request in requests}
    for trace in recorded:
        assert len(trace.turns) == TURNS and trace.has_logprobs
        assert len(trace.response_ids) == len(trace.loss_mask) == len(trace.logprobs)
        assert sum(trace.loss_mask) == sum(turn.sampled for turn in trace.turns)
        for turn in range(TURNS):
            start, end = sampled(trace, turn)
            request = logged[tuple(trace.prompt_ids + trace.response_ids[:start])]
            assert request["token_ids"] == trace.response_ids[start:end]
            assert trace.logprobs[start:end] == pytest.approx(request["log_probs"], abs=1e-6)
            assert trace.loss_mask[start:end] == [1] * (end - start)
    generator = Generator(ending_model)
    for trace in recorded[:5]:
        expected = generator.logprobs(trace.prompt_ids, trace.response_ids, temperature=0.9, top_p=1.0, top_k=-1)
        ours = [logprob if mask else 0.0 for logprob, mask in zip(expected, trace.loss_mask, strict=True)]
        assert trace.logprobs == pytest.approx(ours, abs=1e-3)


def sampled(trace: Trace, turn: int) -> tuple[int, int]:
    """Where a turn's sampled tokens are in the response."""
    spans = [span for span in trace.spans if span.turn == turn and span.kind is not SpanKind.CONTEXT]
    return spans[0].start, spans[-1].end


@pytest.mark.parametrize("way", ["cancelled", "aborted at the server"])
async def test_a_request_aborted_in_mid_generation_is_recorded_with_its_partial_tokens(
    way: str, sglang: str, ending_model: Path, home: Path, tmp_path: Path
) -> None:
    servers = {"talkative": talkative()}
    made = environment(servers, user={"server": "talkative"})
    options = EngineOptions(engine=sglang, tokenizer=str(ending_model), sampling=SamplingParameters(temperature=0))
    finished: list[Trace] = []
    async with (
        opened_engine(options) as opened_at,
        opened(made, servers) as gateway,
        anyio.create_task_group() as playing,
    ):
        engine = Watched(opened_at)

        async def play() -> None:
            await play_all(
                jobs(made, 1),
                gateways={made.name: gateway},
                engine=engine,
                lengths=Lengths(response_tokens=30_000, context_tokens=engine.context_tokens),
                store=TraceStore(tmp_path),
                concurrency=1,
                finished=finished.append,
            )

        playing.start_soon(play)
        await engine.in_the_midst()
        if way == "cancelled":
            playing.cancel_scope.cancel()
        else:
            await abort_all(sglang)
    (trace,) = read_traces(tmp_path)
    assert trace.is_withdrawn and (way == "cancelled" or trace.stop_reason is StopReason.ABORTED)
    (turn,) = trace.turns
    assert turn.finish_reason is FinishReason.ABORT and 0 < turn.sampled < 30_000
    assert len(trace.response_ids) == len(trace.logprobs) == sum(trace.loss_mask) == turn.sampled
    (request,) = [
        request
        for request in requests_logged(home / "requests")
        if request["prompt_ids"] == trace.prompt_ids and request["token_ids"] == trace.response_ids
    ]
    assert request["finish_reason"]["type"] == "abort"
    assert trace.logprobs == pytest.approx(request["log_probs"], abs=1e-6)


async def abort_all(address: str) -> None:
    async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
        await client.post("/abort_request", json={"abort_all": True})
