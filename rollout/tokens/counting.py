"""Token counts under a model's tokenizer and chat template: prompts, recorded trajectories, tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.errors import ConfigError
from rollout.environment.task import Task
from rollout.formats import hermes
from rollout.trace.lengths import Lengths
from rollout.trace.record import Trace
from rollout.types import Call

if TYPE_CHECKING:
    from rollout.tokens.verl_builder import ContinuousTokens


def prompt_length(tokens: ContinuousTokens, task: Task, tools: Sequence[Mapping[str, Any]]) -> int:
    """Tokens of a row's prompt with these tools, as the trainer will render it.

    Raises:
        ConfigError: the model's chat template refuses the prompt.
    """
    from jinja2 import TemplateError

    try:
        return len(tokens.prompt(task.prompt, tools))
    except TemplateError as error:
        raise ConfigError(f"the model's chat template refuses the prompt: {error}", key="prompt") from error


def trajectory_lengths(tokens: ContinuousTokens, trace: Trace, tools: Sequence[Mapping[str, Any]]) -> Lengths:
    """The lengths of a recorded trajectory if a policy with this tokenizer had written it, in the hermes format.

    For traces without a model's tokens, such as an expert's. Built turn by turn as in a rollout, so that templates
    which drop earlier thinking are counted as the policy sees them.
    """
    messages, done = trace.messages, trace.opening
    context = tokens.prompt(messages[:done], tools)
    prompt, completions = len(context), list[int]()
    for turn in trace.turns:
        calls = [Call(name=event.name, arguments=event.arguments) for event in turn.tools]
        sampled = tokens.encode_completion(hermes.write(thinking=turn.thinking, content=turn.content, calls=calls))
        completions.append(len(sampled))
        context = tokens.completion(context, sampled).applied_to(context)
        following = messages[done + 1 : done + turn.messages]
        if following and len(completions) < len(trace.turns):
            context = tokens.messages(context, messages[: done + 1], following, tools).applied_to(context)
        done += 1 + len(following)
    return Lengths(prompt=prompt, response=len(context) - prompt, completions=tuple(completions))


class ToolTokenCounter:
    """Counts what tools cost in a prompt, with a transformers tokenizer and its chat template.

    Args:
        path: A directory with a tokenizer, or a model's name on the hub.

    Raises:
        ConfigError: there is no tokenizer there, or transformers is not installed.
    """

    def __init__(self, path: str) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            remedy = "pip install -c constraints/cpu.txt '.[verl]'"
            raise ConfigError("needs transformers", key="--tokenizer", remedy=remedy) from error
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, KeyError) as error:
            problem = f"no tokenizer in {path!r}: {str(error).splitlines()[0][:200]}"
            raise ConfigError(problem, key="--tokenizer", remedy="name a directory with tokenizer.json") from error

    def text(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> int | None:
        """Tokens that these tools add to a prompt; None where the template does not render tools."""
        if self._tokenizer.chat_template is None:
            return None
        if not tools:
            return 0
        added = self._rendered(list(tools)) - self._rendered(None)
        return added if added > 0 else None

    def _rendered(self, tools: list[Mapping[str, Any]] | None) -> int:
        messages = [{"role": "user", "content": "."}]
        prompt = self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        return self.text(prompt)
