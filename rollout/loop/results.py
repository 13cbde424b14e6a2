"""Convert tool results to what the policy reads: images for policies with vision, and long texts cut with a marker."""

from __future__ import annotations

import base64
from fnmatch import fnmatchcase

from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.sections import CutConfig, CutRules, Keep
from mcp_rollout.rollout.types import Shown, TokenBuilder

OVERFLOW_TOKENS = 64
"""Results that exceed the trajectory's token budget are cut until this many tokens are left, enough for a short answer.
If that would leave less than this many tokens of a result, the trajectory ends instead."""
_CHARACTERS = 64
"""Characters per kept token. Of a longer text only the ends are tokenised, and its token count is an estimate."""
_ATTEMPTS = 4


def show(result: ToolResult, *, tool: str, config: CutRules, tokens: TokenBuilder) -> Shown:
    """Select what the policy reads of a result.

    Args:
        tool: the exposed name of the tool.
    """
    seen = [block for block in result.content if block.kind is ContentKind.IMAGE and tokens.sees(block.data)]
    text = result.text_without(seen)
    cut = rule_for(tool, config)
    left_out = 0
    if cut.max_tokens is not None:
        text, left_out = shorten(text, cut.max_tokens, cut.keep, tokens)
    return Shown(text=text, cut_tokens=left_out, images=tuple(map(data_url, seen)))


def rule_for(tool: str, config: CutRules) -> CutConfig:
    """The first rule whose name or glob matches the tool, else the default rule."""
    return next((rule for pattern, rule in config.tools.items() if fnmatchcase(tool, pattern)), config)


def shorten(text: str, max_tokens: int, keep: Keep, tokens: TokenBuilder) -> tuple[str, int]:
    """Cut a text to at most `max_tokens` tokens, including the marker at the cut.

    Returns:
        The text, and the number of tokens that were cut: an estimate where only the ends of a long text were tokenised,
        for which the marker says "about".
    """
    if len(text) <= max_tokens and len(text.encode(errors="replace")) <= max_tokens:
        return text, 0  # a token has at least one byte
    reach = _CHARACTERS * max_tokens
    # Only the ends can be kept, so a text of megabytes is not tokenised as a whole.
    if len(text) <= reach:
        ids = tokens.encode_text(text)
        if len(ids) <= max_tokens:
            return text, 0
        head = tail = ids
        size, about = len(ids), ""
    else:
        head, tail = tokens.encode_text(text[: reach // 2]), tokens.encode_text(text[-(reach // 2) :])
        size, about = (len(head) + len(tail)) * len(text) // reach, "about "
    kept = max_tokens
    # Tokens merge and split where the parts are joined, so the result is measured, and cut by the excess.
    for _ in range(_ATTEMPTS):
        left_out = size - kept
        shown = _joined(head, tail, kept, keep, f"[... {about}{left_out} tokens cut ...]", tokens)
        excess = len(tokens.encode_text(shown)) - max_tokens
        if excess <= 0:
            return shown, left_out
        kept = max(0, kept - excess)
    return f"[... {about}{size} tokens cut ...]", size


def _joined(head: list[int], tail: list[int], kept: int, keep: Keep, marker: str, tokens: TokenBuilder) -> str:
    first = {Keep.HEAD: kept, Keep.TAIL: 0, Keep.BOTH: kept - kept // 2}[keep]
    last = kept - first
    # The cut may split a character that has several tokens.
    begin = tokens.decode(head[:first]).rstrip("\N{REPLACEMENT CHARACTER}") if first else ""
    end = tokens.decode(tail[-last:]).lstrip("\N{REPLACEMENT CHARACTER}") if last else ""
    return "\n".join(part for part in (begin, marker, end) if part)


def data_url(image: Content) -> str:
    return f"data:{image.mime_type or 'image/png'};base64,{base64.b64encode(image.data).decode()}"
