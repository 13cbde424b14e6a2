"""Keys that a trainer or a command gives go above those of an environment's file, and are validated with them."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.overrides import overridden

FILE: dict[str, Any] = {
    "name": "e",
    "file": "e.yaml",
    "servers": {"s": {"factory": "a:b"}},
    "system": "Be brief.",
    "limits": {"assistant_turns": 4, "tool_calls": 9},
    "thinking": {"reward": "include", "tokens_per_turn": 9},
    "filters": {"void": {"action": "penalise", "penalty": 0.5}, "repeated_calls": {"action": "end", "times": 5}},
    "strategy": {"use": "tree", "tree": {"branch_at": "entropy"}},
    "agent": {"use": "a:B", "with": {"x": 1, "y": 2}},
    "hosts": {"ray": {"min": 2, "max": 4}},
}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"max_sessions": 3, "lease_timeout_s": 5}, {"max_sessions": 3, "lease_timeout_s": 5}),
        ({"limits": {"tell_budget": True}}, {"limits": {"assistant_turns": 4, "tool_calls": 9, "tell_budget": True}}),
        ({"limits": {"tool_calls": None}}, {"limits": {"assistant_turns": 4}}),
        ({"limits": None}, {"limits": {}}),
        ({"thinking": {"context": "drop_previous"}}, {"thinking": FILE["thinking"] | {"context": "drop_previous"}}),
        (
            {"filters": {"void": {"penalty": 2.0}, "repeated_calls": "mask"}},
            {"filters": {"void": {"action": "penalise", "penalty": 2.0}, "repeated_calls": {"action": "mask"}}},
        ),
        (
            {"strategy": {"tree": {"roots": 4}}},
            {"strategy": {"use": "tree", "tree": {"branch_at": "entropy", "roots": 4}}},
        ),
        (
            {"strategy": {"use": "compact", "compact": {"keep_turns": 1}}},
            {"strategy": {"use": "compact", "compact": {"keep_turns": 1}}},
        ),
        ({"strategy": "chain"}, {"strategy": {"use": "chain"}}),
        ({"agent": {"with": {"y": 3, "x": None}}}, {"agent": {"use": "a:B", "with": {"y": 3}}}),
        ({"agent": {"use": "c:D"}}, {"agent": {"use": "c:D"}}),
        ({"agent": None}, {"agent": None}),
        ({"reward": {"weights": {"turns": 0.5}}}, {"reward": {"weights": {"turns": 0.5}}}),
        ({"hosts": {"ray": {"max": 8}}}, {"hosts": {"ray": {"min": 2, "max": 8}}}),
        ({"hosts": ["http://a:1/mcp"]}, {"hosts": ["http://a:1/mcp"]}),
    ],
)
def test_given_keys_go_above_the_files_own(given: dict[str, Any], changed: dict[str, Any]) -> None:
    made = overridden(Environment.model_validate(FILE), given, key="KEY")
    assert made == Environment.model_validate(FILE | changed)


@pytest.mark.parametrize(
    ("given", "key", "said"),
    [
        ({"limts": {}}, "limts", "did you mean 'limits'"),
        ({"limits": {"wall_clok_s": 1}}, "limits.wall_clok_s", "did you mean 'wall_clock_s'"),
        ({"servers": {"s": {"factory": "c:d"}}}, "servers", "change it in e.yaml"),
        ({"strategy": {"single_turn": {"history_tokens": 99}}}, "strategy.single_turn", "the strategy is tree"),
        ({"strategy": {"use": "chain", "tree": {"roots": 4}}}, "strategy.tree", "the strategy is chain"),
        ({"filters": {"void": {"action": "mask"}}}, "filters.void", "`action: mask` does not use"),
        ({"filters": {"long_thinking": {"action": "mask"}}}, "filters.long_thinking", "matches no turn without tokens"),
        ({"reward": {"weights": {"no_part": 1.0}}}, "reward", "weights names no_part"),
        ({"reward": {"weights": {"score": float("nan")}}}, "reward.weights.score", "finite"),
        ({"user": {"server": "t"}}, "", "user.server names 't'"),
        ({"agent": {"use": "no colon"}}, "agent.use", "names no class"),
        ({"agent": {"use": None, "with": {"x": 1}}}, "agent.use", "missing key"),
    ],
)
def test_what_a_file_may_not_have_is_refused_with_key_and_remedy(given: Any, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overridden(Environment.model_validate(FILE), given, key="KEY")
    assert caught.value.key == f"KEY.{key}".removesuffix(".") and str(caught.value).startswith("KEY")
    assert said in str(caught.value)
