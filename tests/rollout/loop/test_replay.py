"""Whole trajectories replayed: over the servers of environments, with users, failures, parallel calls; and engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp.server.mcpserver import MCPServer
from playing import read_environment
from playing_samples import played
from replaying import all_timeless, timeless
from thinking_game import SCRIPT, Logged, servers
from worlds import environment, task

from mcp_rollout.gateway.cassette.reading import Cassette
from mcp_rollout.gateway.cassette.recording import Recorder
from mcp_rollout.gateway.cassette.replaying import Replay
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.opening import opened_engine
from mcp_rollout.rollout.engines.recorded import RecordedTraces
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Policy

pytestmark = pytest.mark.anyio
TOKENS = ByteTokens()


@asynccontextmanager
async def tape(path: Path) -> AsyncIterator[Recorder]:
    recorder = Recorder(path)
    yield recorder
    recorder.close()


@pytest.mark.parametrize("name", ["calculator", "filesystem_ops", pytest.param("retail", marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["expert", "random"])
async def test_an_environment_is_replayed_byte_for_byte_without_its_servers(
    tmp_path: Path, name: str, kind: str
) -> None:
    made, path = read_environment(name), tmp_path / "a.jsonl"
    async with opened_engine(EngineOptions(engine=kind)) as engine:
        async with tape(path) as recorder, opened_environment(made, record=recorder) as gateway:
            recorded = await played(gateway, made, engine, 3, tmp_path / "recorded", split="test")
        # These programs do not exist, so a server that was started would be an error.
        gone = {name: entry.model_copy(update={"command": "/no/such"}) for name, entry in made.servers.items()}
        without = made.model_copy(update={"servers": gone})
        async with opened_environment(without, replay=Replay(Cassette.read(path))) as gateway:
            replayed = await played(gateway, made, engine, 3, tmp_path / "replayed", split="test")
    assert all_timeless(replayed) == all_timeless(recorded)
    assert all(trace.failure is None for trace in recorded)
    async with opened_engine(EngineOptions(engine=f"recorded:{tmp_path / 'recorded'}")) as engine:
        async with opened_environment(without, replay=Replay(Cassette.read(path))) as gateway:
            again = await played(gateway, made, engine, 3, tmp_path / "again", split="test")
    assert engine.name == f"recorded:{kind}"
    assert all_timeless(again, without_engine=True) == all_timeless(recorded, without_engine=True)


async def rolled_out(
    made: Environment, gateway: Gateway, policy: Policy, out: Path, *, row: Task | None = None, tokens: int = 20_000
) -> Trace:
    async def policy_for(_: object) -> Policy:
        return policy

    return await roll_out(
        Trace.begin(uuid4().hex, row or task(prompt=({"role": "user", "content": "Shout plum."},)), Origin()),
        environment=made,
        gateway=gateway,
        policy_for=policy_for,
        tokens=TOKENS,
        limits=Limits.of(made.limits, response_tokens=tokens),
        store=TraceStore(out),
    )


@asynccontextmanager
async def replay_of(made: Environment, path: Path) -> AsyncIterator[Gateway]:
    async with Gateway(made, name="test", replay=Replay(Cassette.read(path))) as gateway:
        yield gateway


async def recorded_and_replayed(
    made: Environment, running: dict[str, MCPServer], script: Sequence[str], home: Path
) -> tuple[Trace, Trace]:
    """A scripted trajectory over servers, and over the cassette by the recorded engine."""
    path, policy = home / "a.jsonl", Logged(ScriptedPolicy(script, TOKENS.encode, stop=IM_END))
    async with tape(path) as recorder:
        connect: Any = lambda _, name: running[name]  # noqa: E731
        async with Gateway(made, connect=connect, name="test", record=recorder) as gateway:
            first = await rolled_out(made, gateway, policy, home / "first")
    with Traces(home / "first") as traces:
        again = RecordedTraces(traces).policy(first.task, first.origin)
        async with replay_of(made, path) as gateway:
            second = await rolled_out(made, gateway, again, home / "second")
    return first, second


@pytest.mark.parametrize("context", ["keep", "drop_previous"])
@pytest.mark.parametrize("budget", [None, 9])
async def test_ids_and_logprobs_of_several_segments_and_of_closed_thoughts_come_again(
    tmp_path: Path, context: str, budget: int | None
) -> None:
    running = servers()
    thinking = {"context": context, "tokens_per_turn": budget}
    made = environment(running, user={"server": "user"}, thinking=thinking)
    first, second = await recorded_and_replayed(made, running, SCRIPT, tmp_path)
    assert timeless(second) == timeless(first)
    assert len(first.segments) == (1 if context == "keep" else 3) and first.stop_reason is StopReason.USER_DONE
    assert {turn.weights_version for turn in second.turns} == {(3, 4)}
    assert max(turn.generations for turn in first.turns) == (1 if budget is None else 2)
