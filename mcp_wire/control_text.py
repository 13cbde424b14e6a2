"""Text that spells a chat template's control tokens, for models whose tokenizer is not known here.

A server that renders `<|im_end|>` in a message into its own template reads the end of the message there.
"""

from __future__ import annotations

import re

# Names with `_`, `:` or a bar are not HTML's; `<b>` stays as it is.
_WORD = r"</?SYS>>|function=|invoke |/?(?:s|bos|eos|pad|unk|mask|cls|sep|sop|eop|think|image|unused\d+)>"
_TAG = rf"/?(?:[^\W_]|\u2581)*[_:|\uff5c][\w:|\uff5c\u2581\"]*>|{_WORD}"
_BRACKET = r"\[(?=\|\w+\||/?[A-Z][A-Z_]{2,}\]|[gs]MASK\]|e~\[)|\](?=~)"
SPELLING = re.compile(rf"<(?=[|\uff5c]|{_TAG})|\uff5c(?=[\w\u2581]+\uff5c)|{_BRACKET}")
"""The first character of a control token as it is spelled by the models known today."""
_IN_JSON = re.compile(rf"[<\uff5c]|{_BRACKET}")


def break_control_text(text: str) -> str:
    """The text with a space in each control token that it spells: `< |im_end|>`."""
    return SPELLING.sub(r"\g<0> ", text)


def escape_control_text(document: str) -> str:
    """The same JSON document without a control token's spelling: `\\u003c|im_end|>`."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)
