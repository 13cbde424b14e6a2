"""Thoughts found in the text of what a policy sampled, by code that shares nothing with the code under test."""

from __future__ import annotations

import re
from typing import Any

_CALL = "<tool_call>"
# What is within a call is the call's, and is matched so that no thought begins there.
_THINK = re.compile(
    rf"\A\s*<think>.*?(?:</think>|\Z)|<think>.*?(?:</think>|\Z)|{_CALL}.*?(?:</tool_call>|\Z)", re.DOTALL
)
THOUGHTS = {
    "gpt-oss": re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>|\Z)", re.DOTALL),
    "seed": re.compile(r"<seed:think>.*?(?:</seed:think>|\Z)", re.DOTALL),
    "gemma4": re.compile(r"<\|channel>thought.*?(?:<channel\|>|\Z)", re.DOTALL),
    # The prompt has begun the first one.
    "minimax": re.compile(r"\A.*?(?:</think>|\Z)|<think>.*?(?:</think>|\Z)", re.DOTALL),
}


def thought_tokens(name: str, tokenizer: Any, ids: list[int]) -> list[bool]:
    """Of each id, whether it spells a part of a thought.

    Token by token: an id spells what the text gains by it; one in the middle of a character, that character.
    """
    text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    matches = THOUGHTS.get(name, _THINK).finditer(text)
    places = [match.span() for match in matches if not match.group().startswith(_CALL)]
    found: list[bool] = []
    done = 0
    for count in range(1, len(ids) + 1):
        said = tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False)
        reached = next(
            (at for at, (a, b) in enumerate(zip(said, text, strict=False)) if a != b), min(len(said), len(text))
        )
        found.append(any(start < max(reached, done + 1) and done < end for start, end in places))
        done = reached
    return found


def without_thoughts(name: str, tokenizer: Any, before: list[int], ids: list[int]) -> list[int]:
    """What is left of a context and of the turn behind it when its thoughts go, with the newlines behind them."""
    thought = thought_tokens(name, tokenizer, ids)
    if name == "minimax" and thought[:1] == [True]:
        before = before[: last_begin(tokenizer, before, "<think>")]
    kept: list[int] = []
    behind = False
    for token, is_thought in zip(ids, thought, strict=True):
        behind = is_thought or (behind and not tokenizer.decode([token]).strip("\n"))
        kept += [] if behind else [token]
    return before + kept


def last_begin(tokenizer: Any, ids: list[int], marker: str) -> int:
    """Where the marker, a token of its own, is for the last time."""
    token = tokenizer.convert_tokens_to_ids(marker)
    return max(index for index, other in enumerate(ids) if other == token)
