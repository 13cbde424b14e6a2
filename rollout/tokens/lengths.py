"""How long prompts and recorded trajectories are under a tokenizer: traces of an expert have no model's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from gateway.errors import ConfigError
from rollout.environment.task import Task
from rollout.formats import hermes
from rollout.tokens.verl_builder import ContinuousTokens
from rollout.trace.record import Trace
from rollout.trace.stats import Lengths
from rollout.types import Call, Edit


def prompt_length(tokens: ContinuousTokens, task: Task, tools: Sequence[Mapping[str, Any]]) -> int:
    """Tokens of a row's prompt with these tools, as the trainer will render it.

    Raises:
        ConfigError: the model's chat template refuses the prompt.
    """
    try:
        return len(tokens.prompt(task.prompt, tools))
    except TemplateError as error:
        raise ConfigError(f"the model's chat template refuses the prompt: {error}", key="prompt") from error


def lengths_under(tokens: ContinuousTokens, trace: Trace, tools: Sequence[Mapping[str, Any]]) -> Lengths:
    """The trajectory's lengths had a policy with this tokenizer said the same, in the hermes format.

    Built turn by turn as in a rollout, so that templates which drop earlier thinking are counted as the policy sees
    them while it plays.
    """
    messages, done = trace.messages, trace.opening
    context = tokens.prompt(messages[:done], tools)
    prompt, completions = len(context), list[int]()
    for turn in trace.turns:
        calls = [Call(name=event.name, arguments=event.arguments) for event in turn.tools]
        sampled = tokens.encode_completion(hermes.write(thinking=turn.thinking, content=turn.content, calls=calls))
        completions.append(len(sampled))
        context = _applied(context, tokens.completion(context, sampled))
        following = messages[done + 1 : done + 1 + len(turn.tools) + (turn.user is not None)]
        if following and len(completions) < len(trace.turns):
            context = _applied(context, tokens.messages(context, messages[: done + 1], following, tools))
        done += 1 + len(following)
    return Lengths(prompt=prompt, response=len(context) - prompt, completions=tuple(completions))


def _applied(context: list[int], edit: Edit) -> list[int]:
    return [*context[: len(context) - edit.removed], *edit.inserted, *edit.appended]
