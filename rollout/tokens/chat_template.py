"""A model's tokenizer and chat template without the training stack, for counting: `tokenizers` and `jinja2`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.extras import needed
from mcp_rollout.rollout.types import Message

_STUB: list[Message] = [{"role": "user", "content": "."}]
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_STAND_IN = "tool_{}_in_this_list"
"""Name of a tool that no prompt mentions by chance."""


def read_chat_template(file: Path | None, *, key: str) -> str | None:
    """The text of a file with a chat template; None without a file.

    Raises:
        ConfigError: the file cannot be read, or is not a template.
    """
    if file is None:
        return None
    with needed("tokens", key=key):
        from jinja2 import TemplateError

        from mcp_rollout.rollout.tokens.jinja import compile_template
    remedy = "name a text file with a Jinja chat template"
    try:
        text = file.expanduser().read_text(encoding="utf-8")
        compile_template(text)
    except (OSError, ValueError, RuntimeError, TemplateError) as error:  # nested too deep
        raise ConfigError(f"cannot be read as a chat template: {error}", file=file, key=key, remedy=remedy) from error
    return text


def check_tools_rendered(
    render: Callable[[Sequence[Mapping[str, Any]]], str], tools: Sequence[Mapping[str, Any]], *, key: str
) -> None:
    """Refuse a chat template that leaves tools out: the policy would never see them.

    Args:
        render: the text of the prompt with these tools.
        tools: OpenAI-style schemas of the policy's tools.
        key: the option that replaces the template, for errors.

    Raises:
        ConfigError: a tool's name is not in the rendered prompt.
    """
    # Under other names, since the prompt may mention a tool itself.
    names = [_STAND_IN.format(number) for number in range(len(tools))]
    shown = [{**tool, "function": {**tool["function"], "name": name}} for tool, name in zip(tools, names, strict=True)]
    text = render(shown) if shown else ""
    left_out = [tool["function"]["name"] for tool, name in zip(tools, names, strict=True) if name not in text]
    if left_out:
        raise ConfigError(
            f"the model's chat template leaves out tools, which the policy would never see: {', '.join(left_out)}",
            key=key,
            remedy=f"name a file with a template that renders tools as {key}, or use another model",
        )


class ChatTemplate:
    """Renders conversations as `transformers.PreTrainedTokenizerBase.apply_chat_template` does, and counts tokens.

    Args:
        path: a directory with `tokenizer.json`, and the template in `chat_template.jinja` or `tokenizer_config.json`.
        chat_template: a template that replaces the model's own.
        key: the option that names the directory, for errors.

    Raises:
        ConfigError: there is no tokenizer, or `tokenizers` or `jinja2` is not installed.
    """

    def __init__(self, path: str | Path, *, chat_template: str | None = None, key: str = "--tokenizer") -> None:
        self._path, self._given, self._key = Path(path), chat_template, key
        with needed("tokens", key=self._key):
            import jinja2  # noqa: F401  # asked for here, so that it is missing in one message with its remedy
            from tokenizers import Tokenizer
        file, remedy = self._path / "tokenizer.json", "name a directory with tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"no tokenizer in {str(path)!r}", key=self._key, remedy=remedy)
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # the boundary of `tokenizers`, which raises the base class
            raise ConfigError(f"cannot be read: {error}", file=file, key=self._key, remedy=remedy) from error

    @cached_property
    def _config(self) -> dict[str, Any]:
        file = self._path / "tokenizer_config.json"
        try:
            return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise ConfigError(f"cannot be read: {error}", file=file, key=self._key) from error

    @cached_property
    def _template(self) -> Any:
        """The compiled template; None if the model has none."""
        from jinja2 import TemplateError

        from mcp_rollout.rollout.tokens.jinja import compile_template

        file, text = self._path / "chat_template.jinja", self._config.get("chat_template")
        if self._given is not None:
            text = self._given
        elif file.is_file():
            text = file.read_text(encoding="utf-8")
        elif isinstance(text, list):  # named templates
            named: list[dict[str, str]] = text
            text = next((entry["template"] for entry in named if entry["name"] == "default"), None)
        try:
            return None if text is None else compile_template(text)
        except (TemplateError, RecursionError) as error:
            raise ConfigError(f"its chat template is broken: {error}", file=self._path, key=self._key) from error

    @cached_property
    def _special(self) -> dict[str, str]:
        given = {name: self._config.get(name) for name in _SPECIAL}
        return {name: token["content"] if isinstance(token, dict) else token for name, token in given.items() if token}

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def count_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Tokens of the opening messages, ready for the first generation. Raises as `render`."""
        return self.count(self.render(messages, tools))

    def count_tools(self, tools: Sequence[Mapping[str, Any]]) -> int | None:
        """Tokens that these tools add to a prompt; None if the template does not render tools. Raises as `render`."""
        if self._template is None:
            return None
        added = self.count_prompt(_STUB, tools) - self.count_prompt(_STUB)
        return added if added > 0 or not tools else None

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, continues: bool = True) -> str:
        """The text of a conversation.

        Args:
            continues: whether to end it with the beginning of the policy's turn.

        Raises:
            ConfigError: the model has no chat template, or it refuses the conversation.
        """
        if self._template is None:
            remedy = "name a model with chat_template.jinja"
            raise ConfigError("has no chat template", file=self._path, key=self._key, remedy=remedy)
        try:
            return self._template.render(
                messages=list(messages), tools=list(tools) or None, add_generation_prompt=continues, **self._special
            )
        except Exception as error:  # the template's boundary: it raises errors of any class
            problem = f"the model's chat template refuses the conversation: {error}"
            raise ConfigError(problem, file=self._path, key="prompt") from error


def tool_turn(results: Sequence[tuple[str, str]], *, arguments: Mapping[str, Any]) -> tuple[Message, list[Message]]:
    """An assistant's message that calls tools, and their results, for trying out a template.

    Args:
        results: (name, text) of each call's result.
    """
    ids = [f"functions.{name}:{index}" for index, (name, _) in enumerate(results)]
    calls = [
        {"type": "function", "id": id, "function": {"name": name, "arguments": dict(arguments)}}
        for id, (name, _) in zip(ids, results, strict=True)
    ]
    answers: list[Message] = [
        {"role": "tool", "name": name, "content": text, "tool_call_id": id}
        for id, (name, text) in zip(ids, results, strict=True)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}, answers
