"""Conversion of verl's generation output to a completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from mcp.server.mcpserver import MCPServer
from omegaconf import OmegaConf
from worlds import ROLE, play

from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.types import Call, FinishReason

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]
END = 7


class Client:
    """Replaces the Ray actors behind verl's client: gives these ids, and keeps what it was asked."""

    def __init__(self, ids: list[int], stop_reason: str | None, *, logprobs: bool = True) -> None:
        self._ids, self._stop_reason, self._logprobs = ids, stop_reason, logprobs
        self.asked: list[dict[str, Any]] = []

    async def generate(self, *, sampling_params: dict[str, Any], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.asked.append(sampling_params)
        logprobs = [-1.0] * len(self._ids) if self._logprobs else None
        return TokenOutput(token_ids=self._ids, log_probs=logprobs, stop_reason=self._stop_reason)


def policy(client: Any, origin: Origin = Origin(), run_seed: int = 0, **params: Any) -> Any:  # noqa: B008 - frozen
    from mcp_rollout.rollout.verl.policy import VerlPolicy

    return VerlPolicy(client, "t", origin, params, stop_token_ids=[], end_ids=[END], seed_key="seed", seed=run_seed)


@pytest.mark.parametrize(
    ("ids", "stop_reason", "expected"),
    [
        ([1, 2, END], "completed", FinishReason.STOP),
        ([1, 2, 3, 4], "completed", FinishReason.LENGTH),
        ([1, 2, 3, END], "completed", FinishReason.STOP),
        ([1, 2], "length", FinishReason.LENGTH),
        ([], "completed", FinishReason.STOP),
        ([], "aborted", FinishReason.ABORT),
        ([1], "abort", FinishReason.ABORT),
    ],
)
async def test_a_turn_that_stops_at_its_last_token_is_not_cut_and_one_without_a_token_is_no_error(
    ids: list[int], stop_reason: str, expected: FinishReason
) -> None:
    completion = await policy(Client(ids, stop_reason)).generate([5], max_tokens=4, turn=0)
    assert (completion.ids, completion.finish_reason) == (ids, expected)
    assert completion.request_ids == ()  # verl's client does not say which it used


@pytest.mark.parametrize(("ids", "logprobs", "expected"), [([], True, []), ([], False, []), ([1], False, None)])
async def test_a_turn_without_a_token_lacks_no_logprob(
    ids: list[int], logprobs: bool, expected: list[float] | None
) -> None:
    completion = await policy(Client(ids, "completed", logprobs=logprobs)).generate([5], max_tokens=4, turn=0)
    assert completion.logprobs == expected


async def test_the_seed_of_the_run_gives_other_draws_and_seed_0_those_of_a_run_without_one() -> None:
    asked: dict[int, list[int]] = {}
    for seed in (0, 1, 2):
        client = Client([END], "completed")
        for sample in range(2):
            origin = Origin(row=4, sample=sample, step=1)
            await policy(client, origin, seed).generate([5], max_tokens=4, turn=0)
        asked[seed] = [params["seed"] for params in client.asked]
    assert asked[0] == [233462025, 1659566179]
    assert len({*asked[0], *asked[1], *asked[2]}) == 6


async def test_a_turn_that_is_asked_for_again_is_sampled_with_another_seed() -> None:
    client = Client([1], "completed")
    asked = policy(client)
    for turn in (0, 1, 1, 2):
        await asked.generate([5], max_tokens=4, turn=turn)
    assert len({params["seed"] for params in client.asked}) == 4


class Server:
    """Replaces verl's server actor, behind verl's own client: returns two tokens."""

    def __init__(self, logprobs: list[float] | None) -> None:
        self._logprobs = logprobs
        self.generate = self

    async def remote(self, **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        return TokenOutput(token_ids=[1, END], log_probs=self._logprobs, stop_reason="completed", extra_fields={})


def asynchronous_client(server: Server) -> Any:
    """The client of verl's asynchronous trainer modes, without its load balancer."""
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    class Client(FullyAsyncLLMServerClient):
        async def _acquire_server(self, request_id: str, **_: Any) -> tuple[str, Any]:
            return "server", server

        def _release_server(self, server_id: str, request_id: str | None = None) -> None:
            pass

    return Client(OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "sglang"}}}))


async def test_asynchronous_modes_generate_without_logprobs_where_none_are_requested() -> None:
    asked = policy(asynchronous_client(Server(None)), logprobs=False)
    completion = await asked.generate([5], max_tokens=4, turn=0)
    assert (completion.ids, completion.logprobs) == ([1, END], None)


async def test_logprobs_that_were_requested_and_are_missing_fail_the_turn() -> None:
    with pytest.raises(EngineError, match="0 logprobs for 2 tokens"):
        await policy(asynchronous_client(Server(None)), logprobs=True).generate([5], max_tokens=4, turn=0)


class Slow(Client):
    """A server that needs longer than the trajectory's time, and keeps which requests it ended."""

    def __init__(self, clock: Clock, ids: list[int], stop_reason: str) -> None:
        super().__init__(ids, stop_reason)
        self.ended: list[int] = []
        self._clock = clock

    async def generate(self, *, sampling_params: dict[str, Any], **_: Any) -> Any:
        await self._clock.advance(60)
        self.ended.append(sampling_params["max_tokens"])
        return await super().generate(sampling_params=sampling_params)


@pytest.mark.parametrize("budget", [None, 8])
async def test_a_generation_outlasts_the_clock_and_is_recorded_scored_and_in_the_loss(
    tmp_path: Path, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an abort, a cancelled request would go on in a server that verl takes for idle."""
    thought = ByteTokens().encode("<think>\n")
    client = Slow(Clock(monkeypatch), thought, "length")
    server = MCPServer("world", log_level="ERROR")

    @server.tool(meta={ROLE: "score"})
    async def judge(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"score": 0.25}

    async def policy_for(_: object) -> Any:
        return policy(client)

    limits = Limits(response_tokens=5000, wall_clock_s=60)
    fields: dict[str, Any] = {"reward": {"server": "world"}, "thinking": {"tokens_per_turn": budget}}
    trace = await play({"world": server}, policy_for, tmp_path, limits=limits, **fields)
    assert len(client.ended) == len(client.asked) == 1
    assert trace.stop_reason is StopReason.TIME_LIMIT and not trace.is_withdrawn
    assert trace.response_ids == thought and trace.loss_mask == [1] * len(thought)
    assert trace.logprobs == [-1.0] * len(thought)
    assert trace.reward is not None and trace.reward.score == 0.25


async def test_calls_that_were_sampled_after_the_time_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []
    server = MCPServer("world", log_level="ERROR")

    @server.tool()
    async def hello() -> str:
        """Greets."""
        called.append(True)
        return "Hello."

    sampled = ByteTokens().encode(hermes.write(calls=[Call(name="hello", arguments={})]))
    client = Slow(Clock(monkeypatch), sampled, "completed")

    async def policy_for(_: object) -> Any:
        return policy(client)

    trace = await play({"world": server}, policy_for, tmp_path, limits=Limits(response_tokens=5000, wall_clock_s=60))
    assert trace.stop_reason is StopReason.TIME_LIMIT and trace.ends_undelivered and called == []
