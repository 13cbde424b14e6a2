"""What verl's configuration says about an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment

pytestmark = pytest.mark.usefixtures("imported_verl")

ENVIRONMENT = Environment.model_validate({"name": "e", "servers": {"s": {"factory": "a:b"}}})


def test_the_section_of_a_run_goes_above_the_environments_own() -> None:
    from mcp_rollout.rollout.verl.settings import Settings

    given = {"environments_dir": ".", "trace_dir": ".", "environment": {"limits": {"tell_budget": True}}}
    assert Settings.model_validate(given).apply(ENVIRONMENT).limits.tell_budget
    wrong = Settings.model_validate(given | {"environment": {"limits": {"tell_bugdet": True}}})
    with pytest.raises(
        ConfigError, match=r"^actor_rollout_ref\.rollout\.custom\.mcp\.environment\.limits\.tell_bugdet: "
    ):
        wrong.apply(ENVIRONMENT)


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
    limits = limits_for(ENVIRONMENT, OmegaConf.create(rollout | {"name": engine}))
    assert (limits.context_tokens, limits.prompt_tokens, limits.response_tokens) == (expected, 200, 200)


def test_the_parts_of_the_reward_are_those_of_the_runs_weights(tmp_path: Path) -> None:
    from mcp_rollout.rollout.verl.settings import Settings

    (tmp_path / "e.yaml").write_text("servers: {s: {factory: 'a:b'}}\nreward: {weights: {format: 1}}\n")
    given = {"environments_dir": tmp_path, "trace_dir": tmp_path}
    assert Settings.model_validate(given).reward_parts == ("format",)
    weighted = given | {"environment": {"reward": {"weights": {"format": None, "valid_calls": 0.1}}}}
    assert Settings.model_validate(weighted).reward_parts == ("valid_calls",)
