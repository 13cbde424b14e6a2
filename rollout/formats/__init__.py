"""The formats in which policies write thoughts and tool calls; none drops a call that it cannot read."""

from __future__ import annotations

from rollout.formats.format import Format
from rollout.formats.gemma import GEMMA4
from rollout.formats.harmony import GPT_OSS
from rollout.formats.hermes import HERMES
from rollout.formats.kimi import KIMI
from rollout.formats.markup import DEEPSEEK_V4, GLM, MINIMAX, QWEN3_CODER, SEED

FORMATS: dict[str, Format] = {
    known.name: known for known in (HERMES, QWEN3_CODER, GPT_OSS, GLM, SEED, MINIMAX, KIMI, DEEPSEEK_V4, GEMMA4)
}
"""By the names that verl gives them in `rollout.multi_turn.format`."""
