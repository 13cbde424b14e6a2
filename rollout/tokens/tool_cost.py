"""What tools cost in a prompt, under a model's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import ConfigError


class ChatTokens:
    """A transformers tokenizer as a counter of tools.

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
        if self._tokenizer.chat_template is None or not tools:
            return 0 if self._tokenizer.chat_template is not None else None
        added = self._length(list(tools)) - self._length(None)
        return added if added > 0 else None

    def _length(self, tools: list[Mapping[str, Any]] | None) -> int:
        messages = [{"role": "user", "content": "."}]
        rendered = self._tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True
        )
        return self.text(rendered)
