"""Two GRPO steps through verl's v1 trainer with two agents of an environment's own, which share the batches."""

from __future__ import annotations

from typing import Any

import pytest
from agent_training import (
    Conversation,
    Run,
    assert_every_token_is_the_engines_or_rendered,
    assert_trained_in_each_step,
    assert_trained_on,
    train_agents,
)

from mcp_rollout.rollout.agents.reflect import CRITIQUE
from mcp_rollout.rollout.agents.retry_with_feedback import FEEDBACK

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1200)]

AGENTS = {
    "retry": {"use": "mcp_rollout.rollout.agents.retry_with_feedback:RetryWithFeedback", "with": {"attempts": 3}},
    "reflect": {"use": "mcp_rollout.rollout.agents.reflect:Reflect"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_agents(tmp_path_factory.mktemp("agents"), "gsm8k_tools", AGENTS, conversation)


def conversation(prompt: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Conversation:
    """A calculation, an answer, and that it is given anew when that is asked for."""
    call = {"function": {"name": "calculate", "arguments": {"expression": "2 + 3"}}}
    again = [{"role": "user", "content": said} for said in (CRITIQUE, f"That is not right.\n\n{FEEDBACK}")]
    answer = {"role": "assistant", "content": "Answer: 5"}
    called = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "5"}]
    return [*prompt, *called, answer, again[0], answer, again[1], answer], tools


def test_both_agents_were_trained_in_both_steps(run: Run) -> None:
    assert_trained_in_each_step(run)


def test_the_agents_spoke_to_the_policy(run: Run) -> None:
    for name, text in (("retry", FEEDBACK), ("reflect", CRITIQUE)):
        said = [turn["agent_message"] for record in run.of(name) for turn in record["turns"]]
        assert {each for each in said if each} == {text}


def test_every_token_is_the_engines_or_rendered_and_only_sampled_ones_are_in_the_loss(run: Run) -> None:
    assert_every_token_is_the_engines_or_rendered(run.records, run.generations)
    assert_trained_on(run.home, run.records)


def test_the_trainer_finds_the_engines_probabilities_after_an_update(run: Run) -> None:
    for metrics in run.metrics.values():
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_mean"] < 1e-4
