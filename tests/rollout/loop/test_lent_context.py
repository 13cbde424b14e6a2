"""A policy is given the trajectory's own list of ids; what it does with the list changes no trace."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import MCPServer
from worlds import ROLE, play

from rollout.formats import hermes
from rollout.loop.limits import Limits
from rollout.process import exempt
from rollout.tokens.chatml import IM_END, ByteTokens
from rollout.trace.record import StopReason, Trace
from rollout.trace.store import read_traces
from rollout.types import Call, Completion, FinishReason, Policy

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


async def test_a_policy_that_keeps_or_extends_its_ids_leaves_the_same_trace(tmp_path: Path) -> None:
    plain = Doing(len)
    expected = ids_of(await played(plain, tmp_path / "plain"))
    kept: list[list[int]] = []
    keeping, extending = Doing(kept.append), Doing(lambda ids: ids.extend([7, 8, 9]))
    assert ids_of(await played(keeping, tmp_path / "keeping")) == expected
    assert ids_of(await played(extending, tmp_path / "extending")) == expected
    assert keeping.read == extending.read == plain.read


async def test_a_policy_that_changes_what_it_kept_fails_its_trajectory(tmp_path: Path) -> None:
    kept: list[list[int]] = []

    def change_what_was_kept(ids: list[int]) -> None:
        if kept:
            kept[0][0] += 1
        kept.append(ids)

    trace = await played(Doing(change_what_was_kept), tmp_path)
    assert trace.failure is not None and "changed the context" in trace.failure.message and trace.reward is None


async def test_a_policy_that_removes_ids_fails_its_trajectory(tmp_path: Path) -> None:
    trace = await played(Doing(lambda ids: ids.pop()), tmp_path)
    assert trace.failure is not None and "removed ids" in trace.failure.message
    assert trace.turns == [] and trace.response_ids == []


async def test_what_a_policy_appended_before_its_time_was_over_is_removed(tmp_path: Path) -> None:
    class Stalled(Doing):
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
            completion = await super().generate(ids, max_tokens=max_tokens, turn=turn)
            if turn == 1:
                await anyio.sleep_forever()
            return completion

    stalled = Stalled(lambda ids: ids.extend([7, 8, 9]))
    trace = await played(stalled, tmp_path, Limits(wall_clock_s=1.0, response_tokens=20_000))
    assert trace.failure is None and trace.stop_reason is StopReason.TIME_LIMIT
    assert trace.context == trace.prompt_ids + trace.response_ids == stalled.read[1]


def sort(ids: list[int]) -> None:
    ids.sort()


def change_the_last(ids: list[int]) -> None:
    ids[-1] += 1


@pytest.mark.parametrize("act", [sort, change_the_last])
async def test_a_policy_that_changes_ids_in_place_fails_its_trajectory(
    act: Callable[[list[int]], None], tmp_path: Path
) -> None:
    trace = await played(Doing(act), tmp_path)
    assert trace.failure is not None and trace.failure.kind == "engine_error"
    assert "changed the context" in trace.failure.message and trace.reward is None


async def test_what_a_policy_appended_is_not_read_by_the_second_request_of_a_turn(tmp_path: Path) -> None:
    class Decoding:
        """Appends each id as it samples it."""

        def __init__(self) -> None:
            self.read: list[list[int]] = []

        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
            self.read.append(list(ids))
            text = ByteTokens().encode("Done." + IM_END if len(self.read) > 1 else "<think>\nlong thought")
            ids += text[:max_tokens]
            reason = FinishReason.LENGTH if len(text) > max_tokens else FinishReason.STOP
            return Completion(ids=text[:max_tokens], logprobs=[-0.5] * len(text[:max_tokens]), finish_reason=reason)

    policy = Decoding()
    trace = await played(policy, tmp_path, thinking={"tokens_per_turn": 9})
    assert trace.turns[0].content == "Done." and len(policy.read) == 2
    assert policy.read[1] == trace.context[: len(policy.read[1])]


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


async def test_what_is_no_completion_fails_the_trajectory(tmp_path: Path) -> None:
    class Speaking:
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Any:
            return "Hello."

    trace = await played(Speaking(), tmp_path)
    assert trace.failure is not None and trace.failure.kind == "engine_error"
    assert trace.failure.message == "the policy returned str in place of a Completion"


async def test_a_policy_is_given_no_copy(tmp_path: Path) -> None:
    given: list[int] = []
    await played(Doing(lambda ids: given.append(id(ids))), tmp_path)
    assert len(given) == TURNS and len(set(given)) == 1


async def test_a_thread_of_the_policy_that_goes_on_changes_nothing_that_a_score_reads(tmp_path: Path) -> None:
    kept: list[list[int]] = []
    scoring, changed = Event(), Event()

    def change() -> None:
        scoring.wait(timeout=30)
        for ids in kept:
            ids[0] += 1
            ids.append(7)
        changed.set()

    server = MCPServer("world", log_level="ERROR")
    server.add_tool(lambda n: f"Number {n}.", name="number", description="Says a number.")

    @server.tool(name="score", meta={ROLE: "score"})
    def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        scoring.set()
        assert changed.wait(timeout=30)
        return {"score": 1.0}

    async def policy_for(_: object) -> Policy:
        return Doing(kept.append)

    thread = Thread(target=change)
    thread.start()
    try:
        trace = await play({"world": server}, policy_for, tmp_path, reward={"server": "world"})
    finally:
        scoring.set()
        thread.join()
    assert trace.reward is not None and trace.reward.score == 1.0 and len(kept) == TURNS
    ids_of(trace)


async def test_the_collector_looks_at_none_of_a_traces_numbers(tmp_path: Path) -> None:
    kept: list[list[int]] = []
    for act in (len, kept.append):
        trace = await played(Doing(act), tmp_path)
        numbers = (trace.prompt_ids, trace.response_ids, trace.loss_mask, trace.logprobs, trace.context)
        assert [gc.is_tracked(each) for each in numbers] == [False] * 5
    trace.open([1, 2])
    assert not gc.is_tracked(trace.context) and not gc.is_tracked(trace.response_ids)


def test_what_is_no_list_is_left_to_the_collector() -> None:
    numbers: Any = deque([1, 2])
    exempt(numbers)
    assert gc.is_tracked(numbers)
