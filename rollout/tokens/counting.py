"""Token counts under a model's tokenizer and chat template: prompts, recorded trajectories, tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.segment import Lengths
from mcp_rollout.rollout.types import Call, TokenBuilder


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


def trajectory_lengths(template: ChatTemplate, trace: Trace, tools: Sequence[Mapping[str, Any]]) -> Lengths:
    """The lengths of a recorded trajectory if a policy with this tokenizer had written it, in the hermes format.

    For traces without a model's tokens, such as an expert's. What the policy wrote stays in the context, its thinking
    too, as in a rollout.

    Raises:
        ConfigError: the model's chat template refuses the conversation.
    """
    response, completions = 0, list[int]()
    for number, turn in enumerate(trace.turns):
        calls = [Call(name=event.name, arguments=event.arguments) for event in turn.tools]
        text = hermes.write(thinking=turn.thinking, content=turn.content, calls=calls)
        completions.append(template.count_completion(text))
        following = trace.messages_of(number)[1:]
        # What follows the last completion is read by no generation, so it is in no context.
        if following and len(completions) < len(trace.turns):
            response += template.count_following(following)
    prompt = template.count_prompt(trace.messages[: trace.opening], tools)
    return Lengths(prompt=prompt, response=response + sum(completions), completions=tuple(completions))
