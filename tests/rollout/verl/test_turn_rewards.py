"""Turn rewards: the tokens that they are placed at, and the advantages that verl's own estimators compute from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace
from mcp_rollout.rollout.types import Completion, Edit, Parsed

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

TASK = Task(environment="e", task="t", seed=1, prompt=({"role": "user", "content": "Begin."},))


def played(*turns: tuple[int, float], score: float, thinking: int = 0, mask_thinking: bool = False) -> Trace:
    """A trajectory whose turns have this many sampled tokens and earned this much, with two context tokens between."""
    trace = Trace.begin("t", TASK, Origin())
    trace.prompt_ids = [1, 2, 3]
    for sampled, _ in turns:
        if trace.turns:
            trace.add_context(Edit(appended=[7, 7]))
        ids = list(range(10, 10 + sampled))
        completion = Completion(ids=ids, logprobs=[-1.0] * sampled)
        parsed = Parsed(content="", thoughts=((0, thinking),))
        trace.add_completion(completion, parsed, Edit(appended=ids), mask_thinking=mask_thinking)
    trace.stop_reason = StopReason.ANSWERED
    trace.reward = Reward(score=score, turns=[earned for _, earned in turns])
    return trace


def token_level(trace: Trace) -> torch.Tensor:
    """`rm_scores` as verl's v1 worker writes them.  # [response]"""
    from mcp_rollout.rollout.verl.output import to_outputs

    return to_outputs(trace, ())[0].as_dict()["rm_scores"]


def test_each_turn_is_rewarded_at_its_last_token_and_the_rest_at_the_very_last() -> None:
    trace = played((3, 0.25), (2, 0.0), (2, 0.5), score=1.75)
    assert token_level(trace).tolist() == [0, 0, 0.25, 0, 0, 0, 0, 0, 0, 0, 1.5]


def test_the_sum_is_the_score_for_every_outcome() -> None:
    for trace in (played((3, 0.0), score=0.7), played((3, -0.5), (4, 0.5), score=0.0), played((1, 0.3), score=0.3)):
        assert token_level(trace).sum().item() == pytest.approx(trace.reward.score if trace.reward else 0.0)
    unscored = played((2, 0.0), score=0.0)
    unscored.reward = None
    assert token_level(unscored).sum().item() == 0.0


def test_no_reward_stands_on_a_token_that_is_not_trained_on() -> None:
    """verl's estimators pass over masked tokens, and with them over what was earned there."""
    from mcp_rollout.rollout.verl.output import turn_rewards

    masked = played((2, 0.25), (3, 0.5), score=1.0, thinking=2, mask_thinking=True)
    assert masked.loss_mask == [0, 0, 0, 0, 0, 0, 1]
    assert turn_rewards(masked) == {6: 1.0}
    ended_by_the_user = played((2, 0.25), (3, 0.0), score=1.0)
    ended_by_the_user.add_context(Edit(appended=[8, 8]))
    assert turn_rewards(ended_by_the_user) == {1: 0.25, 6: 0.75}


def test_an_estimator_that_goes_by_tokens_sees_when_a_reward_was_earned() -> None:
    """verl's GAE without a critic, undiscounted: a token's return is what is still to come."""
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    trace = played((3, 0.25), (2, 0.0), (2, 0.5), score=1.75)
    rewards, mask = token_level(trace)[None], torch.tensor([trace.loss_mask], dtype=torch.float32)
    _, returns = compute_gae_advantage_return(rewards, torch.zeros_like(rewards), mask, gamma=1.0, lam=1.0)
    trained = [value for value, counts in zip(returns[0].tolist(), trace.loss_mask, strict=True) if counts]
    assert trained == [1.75, 1.75, 1.75, 1.5, 1.5, 1.5, 1.5]


def test_an_outcome_estimator_gets_the_sum() -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    late, early = played((3, 0.0), (2, 0.0), score=0.5), played((3, 0.5), (2, 0.0), score=0.5)
    for first, second in ((late, early), (early, late)):
        rewards = torch.stack([token_level(first), token_level(second)])
        mask = torch.tensor([first.loss_mask, second.loss_mask], dtype=torch.float32)
        advantages, _ = compute_grpo_outcome_advantage(rewards, mask, index=np.array(["g", "g"]))
        assert advantages.abs().max().item() == 0.0
