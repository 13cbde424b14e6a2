"""The trainer's section overrides an environment's, key by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import FilterAction, ThinkingContext, ThinkingReward

pytestmark = pytest.mark.usefixtures("imported_verl")


def applied(**section: Any) -> Environment:
    from mcp_rollout.rollout.verl.settings import Settings

    environment = Environment.model_validate(
        {
            "name": "e",
            "servers": {"s": {"factory": "a:b"}},
            "thinking": {"reward": "include", "tokens_per_turn": 9},
            "filters": {
                "void": {"action": "penalise", "penalty": 0.5},
                "repeated_calls": {"action": "end", "times": 5},
            },
        }
    )
    return Settings.model_validate({"environments_dir": ".", "trace_dir": ".", **section}).apply(environment)


def test_what_is_not_given_stays_as_the_environment_has_it() -> None:
    nothing: dict[str, Any] = {"filters": {"void": {"action": None, "penalty": None}}, "tell_budget": None}
    for made in (applied(), applied(**nothing)):
        assert (made.thinking.reward, made.thinking.tokens_per_turn) == (ThinkingReward.INCLUDE, 9)
        assert made.filters.void.action is FilterAction.PENALISE and made.filters.repeated_calls.times == 5
        assert made.limits.tell_budget is False


@pytest.mark.parametrize(
    ("engine", "longest", "expected"), [("vllm", 300, 300), ("sglang", 300, 299), ("sglang", None, None)]
)
def test_the_engines_context_is_a_limit_of_the_trajectory(
    engine: str, longest: int | None, expected: int | None
) -> None:
    from omegaconf import OmegaConf

    from mcp_rollout.rollout.verl.settings import limits_for

    turns = {"max_assistant_turns": None, "max_user_turns": None}
    rollout = {"prompt_length": 200, "response_length": 200, "max_model_len": longest, "multi_turn": turns}
    limits = limits_for(applied(), OmegaConf.create(rollout | {"name": engine}))
    assert (limits.context_tokens, limits.prompt_tokens, limits.response_tokens) == (expected, 200, 200)


def test_what_is_given_counts() -> None:
    filters = {"void": {"penalty": 2.0}, "long_thinking": {"tokens": 4, "action": "mask"}}
    agent = {"use": "a:B", "with": {"x": 1}}
    made = applied(thinking={"context": "drop_previous"}, filters=filters, tell_budget=True, agent=agent)
    assert made.agent is not None and made.agent.model_dump(by_alias=True) == agent
    assert made.thinking.context is ThinkingContext.DROP_PREVIOUS and made.thinking.tokens_per_turn == 9
    assert (made.filters.void.action, made.filters.void.penalty) == (FilterAction.PENALISE, 2.0)
    assert (made.filters.long_thinking.tokens, made.filters.long_thinking.action) == (4, FilterAction.MASK)
    assert made.limits.tell_budget is True


def test_other_weights_of_the_reward_replace_the_environments_own() -> None:
    assert applied().reward.weights == {}
    assert applied(reward_weights={"score": 0.5, "turns": 0.25}).reward.weights == {"score": 0.5, "turns": 0.25}
    with pytest.raises(ConfigError, match="weights names no_such_part"):
        applied(reward_weights={"no_such_part": 1.0})
    with pytest.raises(ConfigError, match=r"weights\.score: .*finite"):
        applied(reward_weights={"score": float("nan")})


@pytest.mark.parametrize(
    ("section", "key", "said"),
    [
        ({"strategy": {"tree": {"roots": 4}}}, "strategy.tree", "the strategy is chain"),
        ({"strategy": {"single_turn": {"observations": {"max_tokens": 32}}}}, "strategy.single_turn", "is not used"),
        ({"filters": {"repeated_calls": {"penalty": 0.5}}}, "filters.repeated_calls", "`action: end` does not use"),
        ({"filters": {"long_thinking": {"action": "mask"}}}, "filters.long_thinking", "matches no turn without tokens"),
    ],
)
def test_an_option_without_an_effect_is_refused_as_in_an_environments_file(
    section: dict[str, Any], key: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        applied(**section)
    assert caught.value.key == f"actor_rollout_ref.rollout.custom.mcp.{key}" and said in caught.value.problem


def test_an_option_of_the_environment_may_lose_its_effect() -> None:
    made = applied(filters={"void": {"action": "mask"}}, strategy={"use": "chain", "tree": {"roots": 4}})
    assert made.filters.void.action is FilterAction.MASK and made.strategy.use == "chain"


def test_the_parts_of_the_reward_are_those_of_the_runs_weights(tmp_path: Path) -> None:
    from mcp_rollout.rollout.verl.settings import Settings

    (tmp_path / "e.yaml").write_text("servers: {s: {factory: 'a:b'}}\nreward: {weights: {format: 1}}\n")
    given = {"environments_dir": tmp_path, "trace_dir": tmp_path}
    assert Settings.model_validate(given).reward_parts == ("format",)
    weighted = given | {"reward_weights": {"score": 1.0, "valid_calls": 0.1}}
    assert Settings.model_validate(weighted).reward_parts == ("valid_calls",)


def test_the_settings_of_a_run_change_the_environments_strategy() -> None:
    given: dict[str, Any] = {"use": "tree", "tree": {"branch_at": "entropy"}}
    strategy = applied(strategy=given | {"single_turn": {"observations": {"max_tokens": 32}}}).strategy
    assert (strategy.use, strategy.tree.branch_at, strategy.tree.roots) == ("tree", "entropy", 2)
    assert strategy.single_turn.observations.max_tokens == 32 and strategy.single_turn.history_tokens == 2048
