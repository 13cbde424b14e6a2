# pyright: basic
# verl's dataset and pandas have no complete types.
"""Compare a trace with the tokens that verl's SFT dataset makes of its conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp_rollout.rollout.trace.record import Trace


def template_check(model: str, *, chat_template: str | None = None) -> Callable[[Trace, Mapping[str, Any]], bool]:
    """Whether verl's `MultiTurnSFTDataset` yields a trace's ids and loss mask, with the tokenizer of `model`.

    Two differences are the template's own: tokens after the last end of a turn, and the newline that it writes after an
    assistant's end of turn, which the dataset counts as the assistant's.
    """
    import pandas as pd
    from transformers import AutoTokenizer
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
    from verl.utils.tokenizer.chat_template import extract_system_prompt_and_generation

    tokenizer = AutoTokenizer.from_pretrained(model)
    if chat_template is not None:
        tokenizer.chat_template = chat_template

    class Conversation(MultiTurnSFTDataset):
        """One conversation, without a Parquet file."""

        def __init__(self, row: Mapping[str, Any]) -> None:
            self._row = row
            super().__init__([], tokenizer, {"pad_mode": "no_padding", "max_length": 1 << 30})  # pyright: ignore

        def _read_files_and_process(self) -> None:
            self.dataframe = pd.DataFrame({"messages": [self._row["messages"]]})
            self.messages, self.tools = [self._row["messages"]], [self._row["tools"] or None]
            self.enable_thinking = None
            self.system_prompt, self.generation_prompt = extract_system_prompt_and_generation(tokenizer)

    def reproduces(trace: Trace, row: Mapping[str, Any]) -> bool:
        try:
            rendered = Conversation(row)[0]
        except (AssertionError, ValueError):  # the dataset itself refuses the row
            return False
        ids, mask = rendered["input_ids"].tolist(), rendered["loss_mask"].tolist()
        return same_tokens(trace, ids, mask, end=tokenizer.eos_token_id)

    return reproduces


def same_tokens(trace: Trace, ids: list[int], mask: list[int], *, end: int) -> bool:
    """Whether a conversation has the trace's ids up to its last end of turn, and its mask beside template tokens.

    The mask may have 1 where the trace has 0 only from the end of a turn to the next token that the trace sampled, and
    there only for one token: the newline of the template.
    """
    own_ids = trace.prompt_ids + trace.response_ids
    own_mask = [0] * len(trace.prompt_ids) + trace.loss_mask
    last = max((at for at, bit in enumerate(own_mask) if bit), default=-1) + 1
    if last == 0 or ids[:last] != own_ids[:last] or sum(mask[last:]) > 1:
        return False
    differing = [at for at in range(last) if mask[at] != own_mask[at]]
    return all(own_mask[at] == 0 and own_mask[at - 1] == 1 and ids[at - 1] == end for at in differing)
