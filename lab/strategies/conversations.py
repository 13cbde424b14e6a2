"""What the warm-up learns from: the expert's days at the depot, as chains and as single turns."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from lab.demo.variation import Piece
from lab.demo.warm_up import Conversation, rendered, tokenize
from lab.strategies.words import Words, exchange

_CODE = re.compile(r"\b[A-Z]\d\d\b")
_LETTERS = "ABCDEFGHKLMNPRSTVW"
_USER = "<|im_start|>user"
SINGLE_SHARE = 0.5
"""Share of the drawn conversations that are single turns."""
OPENING, MESSAGES_OF_PARCEL = 2, 6
"""Messages before the first parcel's, and of each parcel."""


class Days:
    """Variants of the expert's days with other parcel codes, so that the model copies codes instead of knowing them.

    Half of them are whole days, as a chain's context has them. The others are one turn after a reduced history, as
    `single_turn` has it: a run of either strategy begins with contexts that the model knows.

    Args:
        rows: what `trace export --sft` wrote.
        parcels: of each day, only so many parcels; None takes them all.
        words: the words that are exchanged.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rows: Sequence[Mapping[str, Any]],
        seed: int,
        *,
        parcels: int | None,
        words: Words,
    ) -> None:
        self._tokenizer, self._rng = tokenizer, random.Random(seed)
        self._words: Words = words
        end = None if parcels is None else OPENING + MESSAGES_OF_PARCEL * parcels - 1  # with an assistant's message
        self._rows = [{**row, "messages": row["messages"][:end]} for row in rows]
        first = rendered(tokenizer, rows[0])[0].text
        # Before a special token, at which a text may be cut without changing its tokens.
        self._end = first.index(_USER)
        self.prefix: list[int] = tokenizer.encode(first[: self._end], add_special_tokens=False)

    def draw(self, count: int) -> list[Conversation]:
        """Variants of `count` days, without the prefix."""
        return self._variants(count, SINGLE_SHARE)

    def conversations(self, count: int) -> list[Conversation]:
        """Variants of `count` whole days."""
        return self._variants(count, 0.0)

    def _variants(self, count: int, single_share: float) -> list[Conversation]:
        chosen = [(row, self._rng.random() < single_share) for row in self._rng.sample(self._rows, count)]
        return [tokenize(self._tokenizer, self._varied(self._pieces(row, is_single))) for row, is_single in chosen]

    def _pieces(self, row: Mapping[str, Any], is_single: bool) -> list[Piece]:
        if is_single:
            turns = [index for index, message in enumerate(row["messages"]) if message["role"] == "assistant"]
            *before, last = rendered(self._tokenizer, reduced(row, self._rng.choice(turns)))
            pieces = [Piece("".join(piece.text for piece in before), False), last]
        else:
            pieces = rendered(self._tokenizer, row)
        return [Piece(pieces[0].text[self._end :], False), *pieces[1:]]

    def _varied(self, pieces: Sequence[Piece]) -> list[Piece]:
        codes = dict.fromkeys(code for piece in pieces for code in _CODE.findall(piece.text))
        new = {code: f"{self._rng.choice(_LETTERS)}{self._rng.randint(10, 99)}" for code in codes}
        varied = [Piece(_CODE.sub(lambda found: new[found.group()], piece.text), piece.sampled) for piece in pieces]
        return exchange(varied, self._words, self._rng)


def reduced(row: Mapping[str, Any], turn: int) -> dict[str, Any]:
    """The conversation up to the message `turn`, before which thinking and text beside calls are left out."""
    before = [_reduced(message) for message in row["messages"][:turn]]
    return {"messages": [*before, row["messages"][turn]], "tools": row["tools"]}


def _reduced(message: Mapping[str, Any]) -> dict[str, Any]:
    left = {key: value for key, value in message.items() if key not in ("reasoning_content", "thinking")}
    return left | ({"content": ""} if left.get("tool_calls") else {})
