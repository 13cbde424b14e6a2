"""Thinking policies with a real tokenizer and verl's own builder, every position compared with the engine's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from thinking_game import play

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory, imported_verl: None) -> Any:
    from mcp_rollout.rollout.tokens.verl_builder import load_tokens
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    return load_tokens(str(make_tiny_model(tmp_path_factory.mktemp("model"), hidden=64, layers=1)))


async def test_each_segment_is_one_output_with_the_same_keys_and_reward(tmp_path: Path, tokens: Any) -> None:
    from mcp_rollout.rollout.verl.output import to_outputs

    thinking = {"context": "drop_previous"}
    trace, log = await play(tmp_path, tokens, tokens.encode, stop="<|im_end|>", thinking=thinking)
    outputs = to_outputs(trace, ("part",))
    assert len(outputs) == len(trace.segments) > 1
    assert sum(sum(output.response_mask) for output in outputs) == sum(len(each["token_ids"]) for each in log)
    assert len({frozenset(output.as_dict()) for output in outputs}) == 1
    assert {output.reward_score for output in outputs} == {trace.reward.score if trace.reward else None}
    assert {output.extra_fields["min_global_steps"] for output in outputs} == {3}


async def test_the_last_output_has_a_token_in_the_loss_where_any_has(tmp_path: Path, tokens: Any) -> None:
    """verl takes the trajectory's advantage from the last output's first token in the loss."""
    from mcp_rollout.rollout.verl.output import to_outputs

    trace, _ = await play(tmp_path, tokens, tokens.encode, stop="<|im_end|>", thinking={"context": "drop_previous"})
    whole = len(trace.segments)
    trace.mask(len(trace.turns) - 1)
    outputs = to_outputs(trace, ())
    assert len(outputs) == whole - 1 and 1 in outputs[-1].response_mask
    for segment in (*trace.earlier, trace):
        segment.mask()
    (output,) = to_outputs(trace, ())
    assert set(output.response_mask) == {0} and output.response_ids == trace.response_ids
