"""The formats in which policies write thoughts and tool calls; none drops a call that it cannot read."""

from __future__ import annotations

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.formats.format import Format
from mcp_rollout.rollout.formats.gemma import GEMMA4
from mcp_rollout.rollout.formats.harmony import GPT_OSS
from mcp_rollout.rollout.formats.hermes import HERMES
from mcp_rollout.rollout.formats.kimi import KIMI
from mcp_rollout.rollout.formats.markup import DEEPSEEK_V4, GLM, MINIMAX, QWEN3_CODER, SEED

FORMATS: dict[str, Format] = {
    known.name: known for known in (HERMES, QWEN3_CODER, GPT_OSS, GLM, SEED, MINIMAX, KIMI, DEEPSEEK_V4, GEMMA4)
}
"""By the names that verl gives them in `rollout.multi_turn.format`."""


def find_format(name: str, *, key: str) -> Format:
    """Raises ConfigError: no format has this name; `key` is the option that gave it."""
    if name not in FORMATS:
        raise ConfigError(f"no tool format {name!r}", key=key, remedy=f"one of {', '.join(sorted(FORMATS))}")
    return FORMATS[name]
