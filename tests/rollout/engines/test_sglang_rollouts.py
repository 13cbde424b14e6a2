"""Trajectories over the real SGLang server, compared with what the server itself logged of every request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest
from ending_model import make_ending_model
from engine_trajectories import assert_as_computed, assert_as_logged, jobs, played, talkative
from watched import Watched
from worlds import environment, opened

from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.opening import opened_engine
from mcp_rollout.rollout.engines.sampling import SamplingParameters
from mcp_rollout.rollout.evaluation.play import Lengths, play_all
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import FinishReason

# SGLang's own support comes with its environment; without it there is no real server to talk to.
sglang_server = pytest.importorskip("sglang_server")
requests_logged, running_sglang = sglang_server.requests_logged, sglang_server.running_sglang

pytestmark = [pytest.mark.anyio, pytest.mark.full, sglang_server.needs_sglang, pytest.mark.timeout(1800)]


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


async def test_a_hundred_trajectories_of_fifteen_turns_are_recorded_as_the_server_saw_them(
    sglang: str, ending_model: Path, home: Path, tmp_path: Path
) -> None:
    recorded = await played(sglang, ending_model, tmp_path, trajectories=100, turns=15)
    # SGLang's request to itself, when it warms up, is a text.
    requests = [request for request in requests_logged(home / "requests") if request["prompt_ids"] is not None]
    assert_as_logged(recorded, requests)
    assert_as_computed(recorded[:5], ending_model)


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
