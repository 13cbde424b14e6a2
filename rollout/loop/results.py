"""From a tool's result to what the policy reads of it: images where it can see, and long texts cut, visibly."""

from __future__ import annotations

import base64
from fnmatch import fnmatchcase

from gateway.types import Content, ContentKind, ToolResult
from rollout.environment.config import CutConfig, Keep, ResultsConfig
from rollout.types import Shown, TokenBuilder

_CHARACTERS = 64
"""Per token that is kept: of a longer text only the ends are tokenised, and its size is an estimate."""
_ATTEMPTS = 4


def show(result: ToolResult, *, tool: str, config: ResultsConfig, tokens: TokenBuilder) -> Shown:
    """What the policy is shown of a result of `tool`.

    Args:
        tool: the name that the policy knows.
    """
    seen = [block for block in result.content if block.kind is ContentKind.IMAGE and tokens.sees(block.data)]
    text = result.text_without(seen)
    cut = rule_for(tool, config)
    left_out = 0
    if cut.max_tokens is not None:
        text, left_out = shorten(text, cut.max_tokens, cut.keep, tokens)
    return Shown(text=text, cut_tokens=left_out, images=tuple(map(data_url, seen)))


def rule_for(tool: str, config: ResultsConfig) -> CutConfig:
    """The first of the tools' own rules whose name or glob fits, else the general one."""
    for pattern, rule in config.tools.items():
        if fnmatchcase(tool, pattern):
            return rule
    return config


def shorten(text: str, max_tokens: int, keep: Keep, tokens: TokenBuilder) -> tuple[str, int]:
    """The text in at most `max_tokens` tokens, marker included, and how many tokens were cut out.

    The marker says how many, or about how many where the text is so long that only its ends were tokenised.
    """
    if len(text) <= max_tokens and len(text.encode(errors="replace")) <= max_tokens:
        return text, 0  # no token is less than a byte
    reach = _CHARACTERS * max_tokens
    if len(text) <= reach:
        ids = tokens.encode(text)
        if len(ids) <= max_tokens:
            return text, 0
        head = tail = ids
        size, about = len(ids), ""
    else:
        head, tail = tokens.encode(text[: reach // 2]), tokens.encode(text[-(reach // 2) :])
        size, about = (len(head) + len(tail)) * len(text) // reach, "about "
    kept = max_tokens
    for _ in range(_ATTEMPTS):
        left_out = size - kept
        shown = _joined(head, tail, kept, keep, f"[... {about}{left_out} tokens cut ...]", tokens)
        excess = len(tokens.encode(shown)) - max_tokens
        if excess <= 0:
            return shown, left_out
        kept = max(0, kept - excess)
    return f"[... {about}{size} tokens cut ...]", size


def _joined(head: list[int], tail: list[int], kept: int, keep: Keep, marker: str, tokens: TokenBuilder) -> str:
    first = {Keep.HEAD: kept, Keep.TAIL: 0, Keep.BOTH: kept - kept // 2}[keep]
    last = kept - first
    # A character of several tokens may have been cut through.
    begin = tokens.decode(head[:first]).rstrip("\N{REPLACEMENT CHARACTER}") if first else ""
    end = tokens.decode(tail[-last:]).lstrip("\N{REPLACEMENT CHARACTER}") if last else ""
    return "\n".join(part for part in (begin, marker, end) if part)


def data_url(image: Content) -> str:
    return f"data:{image.mime_type or 'image/png'};base64,{base64.b64encode(image.data).decode()}"
