"""Token counts of prompts under a model's tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.types import TokenBuilder


def prompt_length(tokens: TokenBuilder, task: Task, tools: Sequence[Mapping[str, Any]]) -> int:
    """Tokens of a row's prompt with these tools, as the trainer will render it.

    Raises:
        ConfigError: the model's chat template refuses the prompt.
    """
    from jinja2 import TemplateError

    try:
        return len(tokens.prompt(task.prompt, tools))
    except TemplateError as error:
        raise ConfigError(f"the model's chat template refuses the prompt: {error}", key="prompt") from error
