"""Text that spells a chat template's control tokens; `gateway.control_text` has the same pattern."""

from __future__ import annotations

import re

_WORD = r"</?SYS>>|function=|invoke |/?(?:s|bos|eos|pad|unk|mask|cls|sep|sop|eop|think|image|unused\d+)>"
_TAG = rf"/?(?:[^\W_]|\u2581)*[_:|\uff5c][\w:|\uff5c\u2581\"]*>|{_WORD}"
_BRACKET = r"\[(?=\|\w+\||/?[A-Z][A-Z_]{2,}\]|[gs]MASK\]|e~\[)|\](?=~)"
SPELLING = re.compile(rf"<(?=[|\uff5c]|{_TAG})|\uff5c(?=[\w\u2581]+\uff5c)|{_BRACKET}")


def break_control_text(text: str) -> str:
    """The text with a space in each control token that it spells: `< |im_end|>`.

    For what a policy wrote, before it is a message to a model: its server would read the spelling as the token.
    """
    return SPELLING.sub(r"\g<0> ", text)
