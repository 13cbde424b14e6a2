"""A policy that changes the ids which it is given fails its trajectory, and what it returns is checked."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from worlds import play

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Call, Completion, Policy

pytestmark = pytest.mark.anyio
TURNS = 4


class Doing:
    """Calls a tool three times and then answers; `act` has each turn's ids before that."""

    def __init__(self, act: Callable[[list[int]], object]) -> None:
        self._act = act
        self.read: list[list[int]] = []
        """Copies of what it was given."""

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        self.read.append(list(ids))
        self._act(ids)
        calls = [Call(name="number", arguments={"n": turn})] if turn < TURNS - 1 else []
        sampled = ByteTokens().encode(hermes.write(content="" if calls else "Done.", calls=calls) + IM_END)
        return Completion(ids=sampled, logprobs=[-0.5] * len(sampled))


async def played(policy: Policy, home: Path, limits: Limits | None = None, **fields: Any) -> Trace:
    server = MCPServer("world", log_level="ERROR")
    server.add_tool(lambda n: f"Number {n}.", name="number", description="Says a number.")

    async def policy_for(_: object) -> Policy:
        return policy

    return await play({"world": server}, policy_for, home, limits=limits, **fields)


def ids_of(trace: Trace) -> list[int]:
    assert trace.failure is None and len(trace.turns) == TURNS
    assert trace.context == trace.prompt_ids + trace.response_ids
    return trace.context


async def test_a_policy_that_keeps_its_ids_leaves_the_same_trace(tmp_path: Path) -> None:
    plain = Doing(len)
    expected = ids_of(await played(plain, tmp_path / "plain"))
    kept: list[list[int]] = []
    keeping = Doing(kept.append)
    assert ids_of(await played(keeping, tmp_path / "keeping")) == expected
    assert keeping.read == plain.read


def change_the_last(ids: list[int]) -> None:
    ids[-1] += 1


@pytest.mark.parametrize("act", [list.sort, change_the_last, lambda ids: ids.append(7), list.pop])
async def test_a_policy_that_changes_its_ids_fails_its_trajectory(
    act: Callable[[list[int]], object], tmp_path: Path
) -> None:
    trace = await played(Doing(act), tmp_path)
    assert trace.failure is not None and trace.failure.kind == "engine_error"
    assert "changed the ids" in trace.failure.message and trace.reward is None


@pytest.mark.parametrize("odd", [float("nan"), float("-inf"), None])
async def test_logprobs_that_are_no_finite_numbers_fail_the_trajectory(odd: Any, tmp_path: Path) -> None:
    class Odd:
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
            return Completion(ids=[65, 66], logprobs=[-0.5, odd])

    trace = await played(Odd(), tmp_path)
    assert trace.failure is not None and "not finite numbers" in trace.failure.message
    assert len(list(read_traces(tmp_path))) == 1  # a line that can be read


@pytest.mark.parametrize("logprobs", [1, 3])
async def test_logprobs_that_do_not_fit_the_ids_fail_the_trajectory(logprobs: int, tmp_path: Path) -> None:
    class Misaligned:
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
            return Completion(ids=[65, 66], logprobs=[-0.5] * logprobs)

    trace = await played(Misaligned(), tmp_path)
    assert trace.failure is not None and trace.response_ids == []
    assert trace.failure.message == f"the policy returned {logprobs} logprobs for 2 ids"


async def test_the_collector_looks_at_none_of_a_traces_numbers(tmp_path: Path) -> None:
    kept: list[list[int]] = []
    for act in (len, kept.append):
        trace = await played(Doing(act), tmp_path)
        numbers = (trace.prompt_ids, trace.response_ids, trace.loss_mask, trace.logprobs, trace.context)
        assert [gc.is_tracked(each) for each in numbers] == [False] * 5
    trace.open([1, 2])
    assert not gc.is_tracked(trace.context) and not gc.is_tracked(trace.response_ids)


async def test_what_is_no_completion_fails_the_trajectory(tmp_path: Path) -> None:
    class Speaking:
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Any:
            return "Hello."

    trace = await played(Speaking(), tmp_path)
    assert trace.failure is not None and trace.failure.kind == "engine_error"
    assert trace.failure.message == "the policy returned str in place of a Completion"
