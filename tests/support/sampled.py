"""A policy that samples a script in spellings of its own, and keeps an engine's log of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_rollout.rollout.types import Completion, FinishReason


@dataclass(kw_only=True)
class Sampler:
    """Says `script`, turn by turn, each entry a text and whether the engine cuts it there for its length.

    The ids are seldom those that the tokenizer would choose: a policy samples what it samples. What turns a text back
    into ids anywhere is found out. A turn that is asked for again goes on.
    """

    tokenizer: Any
    script: Sequence[tuple[str, bool]]
    seed: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
    _turn: int = -1
    _left: list[int] = field(default_factory=list)

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        chance = random.Random(self.seed * 1000 + turn)
        text, cut = self.script[turn]
        if turn != self._turn:
            self._turn, self._left = turn, respelled(self.tokenizer, text, chance)
        sampled, self._left = self._left[:max_tokens], self._left[max_tokens:]
        logprobs = [-chance.random() for _ in sampled]
        self.log.append({"prompt_ids": list(ids), "token_ids": list(sampled), "log_probs": list(logprobs)})
        reason = FinishReason.LENGTH if cut or self._left else FinishReason.STOP
        return Completion(ids=sampled, logprobs=logprobs, finish_reason=reason)


def respelled(tokenizer: Any, text: str, chance: random.Random) -> list[int]:
    """Ids that decode to `text`; every third token of several bytes is spelled byte by byte."""
    vocabulary, added = tokenizer.get_vocab(), tokenizer.get_added_vocab()
    ids: list[int] = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        piece = tokenizer.convert_ids_to_tokens(token)
        if piece in added or chance.random() > 0.34 or not all(letter in vocabulary for letter in piece):
            ids.append(token)
        else:
            ids += [vocabulary[letter] for letter in piece]
    same = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return ids if same == text else tokenizer.encode(text, add_special_tokens=False)


@dataclass
class Counting:
    """A tokenizer that counts what it is asked for; everything else is the tokenizer's own."""

    tokenizer: Any
    rendered: int = 0
    """Tokens that came out of the chat template, or were encoded."""
    decoded: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        ids = self.tokenizer.apply_chat_template(*args, **kwargs)
        self.rendered += len(ids)
        return ids

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        ids = self.tokenizer.encode(*args, **kwargs)
        self.rendered += len(ids)
        return ids

    def decode(self, ids: list[int], **kwargs: Any) -> str:
        self.decoded += len(ids)
        return self.tokenizer.decode(ids, **kwargs)
