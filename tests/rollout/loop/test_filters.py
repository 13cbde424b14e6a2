"""Filters find what is wrong with a turn, and do what the environment says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from worlds import ROLE, play, saying

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.filters import ends_in_loop, void
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Call, Completion, FinishReason

pytestmark = pytest.mark.anyio
TOKENS = ByteTokens()
AGAIN = hermes.write(calls=[Call(name="hello", arguments={"to": "you"})])


def server() -> MCPServer:
    made = MCPServer("world", log_level="ERROR")

    @made.tool()
    async def hello(to: str) -> str:
        """Greets."""
        return f"Hello {to}."

    @made.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"score": 1.0, "parts": {}}

    return made


async def played(directory: Path, *texts: str, filters: dict[str, Any] | None = None) -> Trace:
    reward = {"server": "world"}
    return await play({"world": server()}, saying(*texts), directory, reward=reward, filters=filters or {})


async def why_void(text: str, *, cut: bool = False) -> str:
    ids = TOKENS.encode(text) + ([] if cut else TOKENS.encode(IM_END))
    reason = FinishReason.LENGTH if cut else FinishReason.STOP
    return void(Completion(ids=ids, finish_reason=reason), await TOKENS.parse(ids, ()))


@pytest.mark.parametrize(
    ("text", "cut", "why"),
    [
        ("", False, "empty"),
        ("<think>\nhm\n</think>\n\n", False, "empty"),
        ("<think>\nhm", True, "cut in mid-thought"),
        ("<tool_call>{</tool_call>", False, "broken call"),
        ("I will see. <tool_call>{", True, "broken call"),
        ("The answer i", True, "cut"),
        ("and so " * 12, False, "repeated text"),
        ("ok \x00\x01\ufffd", False, "broken text"),
        ("The answer is 4.", False, ""),
        ("Größe: 4 µm, 温度 20 °C ✓", False, ""),
        (AGAIN, False, ""),
        (AGAIN + "\n<tool_call>{", True, ""),
    ],
)
async def test_a_turn_is_void_where_it_is_neither_call_nor_answer(text: str, cut: bool, why: str) -> None:
    assert await why_void(text, cut=cut) == why


@pytest.mark.parametrize("period", [1, 3, 17])
def test_a_loop_is_found_whatever_its_period_and_a_list_is_none(period: int) -> None:
    loop = list(range(100, 100 + period)) * max(4, -(-24 // period))
    assert ends_in_loop([1, 2, 3, *loop]) and ends_in_loop([1, 2, 3, *loop, 9])
    assert not ends_in_loop([*loop, 7, 8, 9])
    assert not ends_in_loop(list(range(200)))


async def test_without_a_word_in_the_environment_turns_are_only_marked(tmp_path: Path) -> None:
    trace = await played(tmp_path, AGAIN, AGAIN, AGAIN, "<tool_call>", "Done.")
    found = [[(str(mark.kind), mark.action) for mark in turn.marks] for turn in trace.turns]
    assert found[:3] == [[], [], [("repeated_call", "mark")]]
    assert ("void", "mark") in found[3] and found[4] == []
    assert trace.reward is not None and (trace.reward.score, trace.reward.penalty) == (1.0, 0.0)
    assert trace.stop_reason is StopReason.ANSWERED and sum(trace.loss_mask) == sum(t.sampled for t in trace.turns)


async def test_a_masked_turn_leaves_the_loss_and_stays_in_the_context(tmp_path: Path) -> None:
    trace = await played(tmp_path, AGAIN, "<tool_call>", "Done.", filters={"void": "mask"})
    by_turn = [set[int](), set[int](), set[int]()]
    for span in trace.spans:
        if span.kind.is_sampled:
            by_turn[span.turn] |= set(trace.loss_mask[span.start : span.end])
    assert by_turn == [{1}, {0}, {1}]
    assert "<tool_call>" in TOKENS.decode(trace.response_ids)


async def test_a_masked_trajectory_has_no_token_in_the_loss_and_keeps_its_reward(tmp_path: Path) -> None:
    trace = await played(tmp_path, AGAIN, "<tool_call>", "Done.", filters={"void": {"action": "mask_trajectory"}})
    assert set(trace.loss_mask) == {0} and not trace.is_withdrawn
    assert trace.reward is not None and trace.reward.score == 1.0


async def test_a_penalty_is_subtracted_for_each_turn_and_is_visible(tmp_path: Path) -> None:
    filters = {"repeated_calls": {"action": "penalise", "times": 2, "penalty": 0.25}}
    trace = await played(tmp_path, AGAIN, AGAIN, AGAIN, "Done.", filters=filters)
    assert trace.reward is not None and (trace.reward.score, trace.reward.penalty) == (0.5, 0.5)


async def test_a_filter_that_ends_the_trajectory_does_so_before_the_turn_acts(tmp_path: Path) -> None:
    filters = {"repeated_calls": {"action": "end", "times": 2}}
    trace = await played(tmp_path, AGAIN, AGAIN, "Done.", filters=filters)
    assert trace.stop_reason is StopReason.FILTERED and trace.stop_reason.is_truncated
    assert [len(turn.tools) for turn in trace.turns] == [1, 0]
    assert trace.reward is not None and trace.reward.score == 1.0


async def test_over_long_thinking_is_found_by_its_tokens(tmp_path: Path) -> None:
    texts = [hermes.write(thinking="x" * 50, calls=[Call(name="hello", arguments={"to": "a"})]), "Done."]
    filters = {"long_thinking": {"action": "mask", "tokens": 40}}
    trace = await played(tmp_path, *texts, filters=filters)
    assert [str(mark.kind) for mark in trace.turns[0].marks] == ["long_thinking"]
    assert sum(trace.loss_mask) == trace.turns[1].sampled


@pytest.mark.parametrize(
    ("overlong", "texts", "penalty", "in_loss"),
    [
        ("score", [AGAIN, AGAIN], 0.0, True),
        ("mask", [AGAIN, AGAIN], 0.0, False),
        ("mask", [AGAIN, "Done."], 0.0, True),
        ("penalise", [AGAIN, AGAIN], 0.1, True),
        ("penalise", ["x" * 100], 0.0, True),
        ({"action": "penalise", "penalty": 1.0, "last_share": 1.0}, ["x" * 100], 0.505, True),
        ({"action": "penalise", "penalty": 1.0, "last_share": 0.25}, ["x" * 100], 0.0, True),
        ({"action": "penalise", "penalty": 1.0, "last_share": 0.25}, ["x" * 180], 0.62, True),
        ({"action": "penalise", "penalty": 1.0, "last_share": 0.25}, ["x" * 300], 1.0, True),
    ],
)
async def test_a_trajectory_that_a_limit_cut_is_scored_masked_or_penalised(
    overlong: Any, texts: list[str], penalty: float, in_loss: bool, tmp_path: Path
) -> None:
    """Two turns, or 200 tokens, of which a text has its bytes and the end of the turn."""
    is_call = texts[0] == AGAIN
    limits = Limits(assistant_turns=2, response_tokens=5000 if is_call else 200)
    fields = {"reward": {"server": "world"}, "filters": {"overlong": overlong}}
    trace = await play({"world": server()}, saying(*texts), tmp_path, limits=limits, **fields)
    assert trace.reward is not None and trace.reward.penalty == pytest.approx(penalty)
    assert trace.reward.score == pytest.approx(1.0 - penalty) and trace.is_in_loss == in_loss
    marks = [mark for turn in trace.turns for mark in turn.marks if mark.kind == "overlong"]
    assert bool(marks) == (penalty > 0 or not in_loss)
    cut = [] if trace.stop_reason is StopReason.ANSWERED else [str(trace.stop_reason)]
    assert [mark.detail for mark in marks if "left" not in mark.detail] == (cut if marks else [])
