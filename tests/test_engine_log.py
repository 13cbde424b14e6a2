"""The independent derivation itself: it must find a trajectory's own generations, and must be able to fail."""

from __future__ import annotations

from typing import Any

import pytest
from engine_log import derive


def generation(prompt: list[int], tokens: list[int], logprob: float = -0.5) -> dict[str, Any]:
    return {"prompt_ids": prompt, "token_ids": tokens, "log_probs": [logprob] * len(tokens)}


def record(logprob: float = -0.5) -> dict[str, Any]:
    return {
        "prompt_ids": [1, 2],
        "response_ids": [3, 9, 9, 4],
        "logprobs": [logprob, 0.0, 0.0, logprob],
        "turns": [{}, {}],
    }


def turns(logprob: float = -0.5) -> list[dict[str, Any]]:
    return [generation([1, 2], [3], logprob), generation([1, 2, 3, 9, 9], [4], logprob)]


def test_siblings_with_one_conversation_are_told_apart_by_their_logprobs() -> None:
    log = [*reversed(turns(-0.5)), *turns(-0.25)]
    for logprob in (-0.25, -0.5):
        ids, mask, logprobs = derive(record(logprob), log)
        assert (ids, mask) == ([3, 9, 9, 4], [1, 0, 0, 1])
        assert logprobs == record(logprob)["logprobs"]
    assert log == []


def test_a_sibling_that_is_ahead_in_the_log_is_no_obstacle() -> None:
    first, second = turns()
    log = [first, second, first, second]
    log.insert(0, log.pop(1))
    for _ in range(2):
        assert derive(record(), log)[0] == [3, 9, 9, 4]


def test_a_token_that_the_engine_did_not_give_is_found_out() -> None:
    with pytest.raises(AssertionError, match="never continued"):
        derive(record() | {"response_ids": [3, 9, 9, 5]}, turns())
