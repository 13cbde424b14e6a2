"""The strategy `single_turn`: each turn reads the task and a reduced history, and is a sample of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from worlds import play

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Call, Completion, Policy

pytestmark = pytest.mark.anyio
TOKENS = ByteTokens()
TURNS = 60


def reading(size: int) -> MCPServer:
    """`read` returns a page of `size` characters that begins and ends with its number."""
    server = MCPServer("pages", log_level="ERROR")

    @server.tool()
    async def read(page: int) -> str:
        """A page."""
        return f"<{page}" + "x" * size + f"{page}>"

    return server


def page(number: int) -> str:
    return hermes.write(
        thinking=f"thought {number}", content=f"aside {number}", calls=[Call(name="read", arguments={"page": number})]
    )


class Watching:
    """Says `texts`, and keeps the ids that it was given and those that it said."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self.given: list[list[int]] = []
        self.said: list[list[int]] = []

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        self.given.append(list(ids))
        self.said.append(TOKENS.encode(self._texts[turn] + IM_END))
        return Completion(ids=self.said[-1], logprobs=[-0.25] * len(self.said[-1]))


async def played(policy: Watching, server: MCPServer, directory: Path, **fields: Any) -> Trace:
    async def policy_for(_: object) -> Policy:
        return policy

    limits = Limits(response_tokens=fields.pop("response_tokens", 100_000), assistant_turns=TURNS + 1)
    single = {"use": "single_turn", "single_turn": fields.pop("single_turn", {})}
    servers = {"pages": server} | fields.pop("servers", {})
    return await play(servers, policy_for, directory, limits=limits, strategy=single, **fields)


async def test_each_turn_is_a_sample_of_what_was_given_and_said(tmp_path: Path) -> None:
    policy = Watching([*(page(number) for number in range(5)), "Done."])
    trace = await played(policy, reading(10), tmp_path)
    assert trace.stop_reason is StopReason.ANSWERED and trace.strategy.use == "single_turn"
    assert [segment.prompt_ids for segment in trace.segments] == policy.given
    assert [segment.response_ids for segment in trace.segments] == policy.said
    assert [segment.turns_sampled for segment in trace.segments] == [[turn] for turn in range(6)]
    assert all(set(segment.loss_mask) == {1} for segment in trace.segments)


async def test_the_history_has_calls_and_observations_and_neither_thinking_nor_text_beside_calls(
    tmp_path: Path,
) -> None:
    policy = Watching([page(0), page(1), "Done."])
    trace = await played(policy, reading(10), tmp_path)
    last = TOKENS.decode(trace.segments[-1].prompt_ids)
    assert last.startswith(TOKENS.decode(policy.given[0]).rpartition("<|im_start|>")[0])
    assert '"page": 0' in last and "<0xxxxxxxxxx0>" in last and '"page": 1' in last and "<1xxxxxxxxxx1>" in last
    assert "thought" not in last and "aside" not in last
    # The record has the whole conversation all the same.
    assert "aside 0" in str(trace.messages) and trace.turns[0].thinking == "thought 0"


async def test_the_context_stays_under_its_bound_at_sixty_turns(tmp_path: Path) -> None:
    policy = Watching([*(page(number) for number in range(TURNS)), "Done."])
    limit = {"history_tokens": 2000, "observations": {"max_tokens": 100}}
    trace = await played(policy, reading(800), tmp_path, single_turn=limit)
    opening = len(policy.given[0])
    assert len(policy.given) == TURNS + 1 and trace.stop_reason is StopReason.ANSWERED
    assert 1500 < max(len(ids) - opening for ids in policy.given) <= 2000
    last = TOKENS.decode(policy.given[-1])
    assert "earlier turns left out ...]" in last and "<59" + "x" * 800 + "59>" in last  # the last one is whole
    assert "<58" in last and "tokens cut ...]" in last and "x" * 101 not in last.replace("x" * 800, "")


async def test_a_last_observation_that_does_not_fit_is_cut_and_one_that_cannot_be_ends_the_trajectory(
    tmp_path: Path,
) -> None:
    trace = await played(Watching([page(0), "Done."]), reading(3000), tmp_path, single_turn={"history_tokens": 1000})
    assert trace.stop_reason is StopReason.ANSWERED and trace.turns[0].tools[0].cut_tokens > 0
    assert [mark.kind for mark in trace.turns[0].marks] == [MarkKind.RESULT_CUT]
    assert len(trace.prompt_ids) - len(trace.earlier[0].prompt_ids) <= 1000
    trace = await played(Watching([page(0), "Done."]), reading(3000), tmp_path, response_tokens=150)
    assert trace.stop_reason is StopReason.TOKEN_LIMIT
    assert [mark.kind for mark in trace.turns[0].marks] == [MarkKind.RESULT_OVERFLOW]


@pytest.mark.verl
@pytest.mark.usefixtures("imported_verl")
async def test_verl_gets_a_sample_of_each_turn_with_the_trajectorys_reward(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    from mcp_rollout.rollout.verl.output import to_outputs

    trace = await played(Watching([page(0), "Done."]), reading(10), tmp_path)
    outputs = to_outputs(trace, ())
    assert [output.response_ids for output in outputs] == [segment.response_ids for segment in trace.segments]
    assert [output.prompt_ids for output in outputs] == [segment.prompt_ids for segment in trace.segments]
    assert trace.reward is not None and {output.reward_score for output in outputs} == {trace.reward.score}
