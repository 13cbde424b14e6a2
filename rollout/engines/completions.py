"""What every engine's completion is held to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from rollout.errors import EngineError
from rollout.types import Completion

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""What a server may say for one: tokenizers read no other number."""


def checked(completion: Completion, logprobs: Sequence[float | None] | None) -> Completion:
    """The completion with these logprobs, if it can stand in a trace.

    Raises:
        EngineError: logprobs are missing, too many or not finite.
    """
    if logprobs is None:
        return completion
    if len(logprobs) != len(completion.ids):
        raise EngineError(f"{len(logprobs)} logprobs for {len(completion.ids)} tokens")
    numbers = [logprob for logprob in logprobs if logprob is not None and math.isfinite(logprob)]
    if len(numbers) != len(logprobs):
        raise EngineError("the engine returned a logprob that is not a finite number")
    return replace(completion, logprobs=numbers)


def version_number(version: str | int | None) -> int | None:
    """The trainer step in a server's name for its weights; None where that is another kind of name."""
    text = str(version)
    return int(text) if text.isascii() and text.isdigit() else None
