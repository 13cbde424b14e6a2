"""What the context is like without the thinking of earlier turns, as the templates that models are served with drop it.

The sampled ids of calls and answers stay as they were sampled: rendering the messages anew would put what the template
makes of them in their place, and lose what could not be read as a call.

Dropping costs a copy of the context at each user message, and no less is to be had: what follows the first thought that
goes is at another place from then on, and the engine reads all of it anew, which costs far more.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import ConfigError
from rollout.environment.config import Environment, ThinkingContext
from rollout.formats import FORMATS
from rollout.trace.segment import Segment, Span, SpanKind
from rollout.types import ThoughtMarkers, TokenBuilder

_MARKER_TOKENS = 8
"""Most tokens that an opening marker and the newlines around it take."""


def check_thoughts(environment: Environment, tool_format: str) -> None:
    """Whether thoughts of this format can be taken out and ended, where the environment wants it.

    Raises:
        ConfigError: they are messages of their own (gpt-oss), without a marker that ends the thought alone.
    """
    known, thinking = FORMATS.get(tool_format), environment.thinking
    if known is None or known.thought is not None:
        return
    for key, is_used in {
        "thinking.context": thinking.context is ThinkingContext.DROP_PREVIOUS,
        "thinking.tokens_per_turn": thinking.tokens_per_turn is not None,
    }.items():
        if is_used:
            raise ConfigError(
                f"needs thinking between two markers, and models of the format {tool_format!r} think in messages",
                file=environment.file,
                key=key,
                remedy="leave it out",
            )


def markers(tokens: TokenBuilder) -> ThoughtMarkers:
    """Raises ConfigError where the policy's format has none; `check_thoughts` says so before."""
    if tokens.thought is None:
        raise ConfigError("the policy's thoughts have no markers", key="thinking", remedy="keep context, and no budget")
    return tokens.thought


def without_thinking(segment: Segment, tokens: TokenBuilder) -> list[int]:
    """Prompt and response, each thought left out with its markers and with the newlines behind it.

    An opening marker that the template had put into the generation prompt goes with the thought that it opened.

    Raises:
        ConfigError: the policy's thoughts have no markers.
    """
    opening = markers(tokens).opening
    ids = list(segment.prompt_ids)
    thought: Span | None = None
    for span in segment.spans:
        own = segment.response_ids[span.start : span.end]
        if span.kind is SpanKind.THINKING:
            thought = span
            ids = _without_opening(ids, opening, tokens)
        elif span.kind is SpanKind.FORCED:
            continue
        elif span.kind is SpanKind.COMPLETION and thought is not None and thought.turn == span.turn:
            ids += _without_newlines(own, tokens)
        else:
            ids += own
    return ids


def _without_opening(ids: list[int], opening: str, tokens: TokenBuilder) -> list[int]:
    """The context before a thought, without an opening marker at its end."""
    for count in range(1, min(_MARKER_TOKENS, len(ids)) + 1):
        tail = tokens.decode(ids[-count:])
        if tail.strip() == opening:
            del ids[-count:]
            return ids
        if not opening.endswith(tail.strip()):
            return ids
    return ids


def _without_newlines(ids: Sequence[int], tokens: TokenBuilder) -> Sequence[int]:
    """A completion's tokens behind its thought; one that holds more than newlines stays whole."""
    begin = 0
    while begin < len(ids) and (text := tokens.decode(ids[begin : begin + 1])) and not text.strip("\n"):
        begin += 1
    return ids[begin:]
