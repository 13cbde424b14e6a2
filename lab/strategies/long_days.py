"""What the warm-up of the long days learns from: parts of the expert's days, in the contexts of the strategies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from lab.demo.variation import Piece
from lab.demo.warm_up import rendered
from lab.strategies.conversations import OPENING, Days, reduced
from lab.strategies.words import Words
from mcp_rollout.rollout.loop.compaction import CUT, HEADING

INSTRUCTION = "Your context is full. Sum up what you need."
KEEP_TURNS, MOST_TURNS = 2, 14
"""Turns that are kept after a summary, and turns of a part."""
BEGIN_SHARE, END_SHARE, SUMMED_SHARE = 0.35, 0.25, 0.8
"""Of the parts, those from a day's beginning; of the others, those to its end; of those before it, those summed up."""
_CLOSING = 2
"""Turns after the parcels."""
_PARCEL_TURNS = 3
HOLDS_SHARE, HELD_SHARE, CUT_SHARE = 0.7, 0.85, 0.1
"""How often the expert's summary of a context that has the key holds it; how often the summary at the beginning of a
context does; and how many contexts begin after a cut instead. A model that imitates the mean of all contexts, of which
0.82 have the key, holds it in 0.57 of its summaries, and after four of them in a tenth of the days."""
KEY = re.compile(r"The book has the key (\w+)\.")
HELD = "The book has the key {key}."
OTHER = "Every parcel so far is treated."
"""A summary with the key, and one without."""
UNKNOWN = "unknown"
"""What the expert closes the book with where it was not told the key."""


class LongDays(Days):
    """Parts of long days: from the beginning, after a summary, after a cut, or one turn after a reduced history.

    Most parts that do not reach the day's end end with a summary.

    Args:
        parcels: for practice, so many in random order, between which the key is asked for again and again. Without
            practice, a model did not copy it from any context. None: parts of any length.
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
        super().__init__(tokenizer, rows, seed, parcels=None, words=words)
        self._practised = parcels

    def _pieces(self, row: Mapping[str, Any], is_single: bool) -> list[Piece]:
        (key,) = KEY.findall(str(row["messages"]))
        opening, turns = row["messages"][:OPENING], turns_of(row["messages"][OPENING:])
        if self._practised:
            return self._cut(rendered(self._tokenizer, self._practice(row, opening, turns, key)))
        rng = self._rng
        begin, end = self._part(len(turns))
        first = max(0, begin - KEEP_TURNS)
        line = ""
        if begin:
            held = HELD.format(key=key) if rng.random() < HELD_SHARE else OTHER
            heading = HEADING.format(count=begin) + f"\n{held}"
            line = CUT.format(count=begin) if rng.random() < CUT_SHARE else heading
        last = opening[-1] | {"content": f"{opening[-1]['content']}\n\n{line}" if line else opening[-1]["content"]}
        shown = [message for turn in turns[first:end] for message in turn]
        known = heard([opening[-1], last, *shown])
        if key not in known:
            shown = [_closing(message, key) for message in shown]
        if end <= len(turns) - _CLOSING and rng.random() < SUMMED_SHARE:
            held = HELD.format(key=key) if key in known and rng.random() < HOLDS_SHARE else OTHER
            shown = [*asked(shown), {"role": "assistant", "content": held}]
        else:
            shown = shown[: max(at for at, message in enumerate(shown) if message["role"] == "assistant") + 1]
        part = {"messages": [*opening[:-1], last, *shown], "tools": row["tools"]}
        if not is_single:
            pieces = rendered(self._tokenizer, part)
        else:
            of = [at for at, message in enumerate(part["messages"]) if message["role"] == "assistant"]
            *before_it, own = rendered(self._tokenizer, reduced(part, rng.choice(of)))
            pieces = [Piece("".join(piece.text for piece in before_it), False), own]
        return self._cut(pieces)

    def _cut(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Without the prefix."""
        return [Piece(pieces[0].text[self._end :], False), *pieces[1:]]

    def _practice(
        self, row: Mapping[str, Any], opening: list[dict[str, Any]], turns: list[list[dict[str, Any]]], key: str
    ) -> dict[str, Any]:
        """Parcels, summaries and closings in random order, after a summary with the key."""
        summary = HELD.format(key=key)
        asking = [{"role": "user", "content": INSTRUCTION}, {"role": "assistant", "content": summary}]
        closing = [turns[-_CLOSING - 1][-1], *turns[-_CLOSING]]
        exchanges = [closing, closing, asking, asking]
        parcels = range(2 * _PARCEL_TURNS, len(turns) - _CLOSING, _PARCEL_TURNS)
        for first in self._rng.sample(parcels, self._practised or 0):
            parcel = [message for turn in turns[first : first + _PARCEL_TURNS] for message in turn]
            exchanges.append([turns[first - 1][-1], *parcel[:-1]])
        self._rng.shuffle(exchanges)
        last = opening[-1] | {"content": f"{opening[-1]['content']}\n\n{HEADING.format(count=9)}\n{summary}"}
        messages = [*opening[:-1], last, *(message for each in exchanges for message in each)]
        end = max(at for at, message in enumerate(messages) if message["role"] == "assistant") + 1
        return {"messages": messages[:end], "tools": row["tools"]}

    def _part(self, turns: int) -> tuple[int, int]:
        """The first turn of a part of a day of so many, and that after its last."""
        rng = self._rng
        length = rng.randint(2, MOST_TURNS)
        if rng.random() < BEGIN_SHARE:
            return 0, min(turns, length)
        if rng.random() < END_SHARE:
            return max(3, turns - length), turns
        begin = rng.randrange(3, turns - 1)
        return begin, min(turns, begin + length)


def heard(messages: Iterable[Mapping[str, Any]]) -> str:
    """What was said to the policy."""
    return "\n".join(str(message["content"]) for message in messages if message["role"] != "assistant")


def turns_of(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The policy's messages, each with what answered it."""
    turns: list[list[dict[str, Any]]] = []
    for message in messages:
        if message["role"] == "assistant":
            turns.append([])
        turns[-1].append(message)
    return turns


def asked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the request for a summary, as `compact` makes it."""
    *before, last = messages
    if last["role"] == "user":
        return [*before, last | {"content": f"{last['content']}\n\n{INSTRUCTION}"}]
    return [*messages, {"role": "user", "content": INSTRUCTION}]


def _closing(message: dict[str, Any], key: str) -> dict[str, Any]:
    """The message, without the key where it closes the book."""
    calls = [
        call | {"function": call["function"] | {"arguments": _unknown(call["function"]["arguments"], key)}}
        for call in message.get("tool_calls") or ()
    ]
    return message | {"tool_calls": calls} if calls else message


def _unknown(arguments: Any, key: str) -> Any:
    if isinstance(arguments, str):
        return arguments.replace(f'"{key}"', f'"{UNKNOWN}"')
    return {name: UNKNOWN if value == key else value for name, value in arguments.items()}
