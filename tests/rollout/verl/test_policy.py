"""Conversion of verl's generation output to a completion."""

from __future__ import annotations

from typing import Any

import pytest

from rollout.environment.task import Origin
from rollout.types import FinishReason

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]
END = 7


class Client:
    """Stands for the Ray actors behind verl's client: gives these ids, and keeps what it was asked."""

    def __init__(self, ids: list[int], stop_reason: str | None, *, logprobs: bool = True) -> None:
        self._ids, self._stop_reason, self._logprobs = ids, stop_reason, logprobs
        self.asked: list[dict[str, Any]] = []

    async def generate(self, *, sampling_params: dict[str, Any], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.asked.append(sampling_params)
        logprobs = [-1.0] * len(self._ids) if self._logprobs else None
        return TokenOutput(token_ids=self._ids, log_probs=logprobs, stop_reason=self._stop_reason)


def policy(client: Client) -> Any:
    from rollout.verl.policy import VerlPolicy

    return VerlPolicy(client, "t", Origin(), {}, stop_token_ids=[], end_ids=[END], seed_key="seed")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "stop_reason", "expected"),
    [
        ([1, 2, END], "completed", FinishReason.STOP),
        ([1, 2, 3, 4], "completed", FinishReason.LENGTH),
        ([1, 2, 3, END], "completed", FinishReason.STOP),
        ([1, 2], "length", FinishReason.LENGTH),
        ([], "completed", FinishReason.STOP),
        ([], "aborted", FinishReason.ABORT),
        ([1], "abort", FinishReason.ABORT),
    ],
)
async def test_a_turn_that_stops_at_its_last_token_is_not_cut_and_one_without_a_token_is_no_error(
    ids: list[int], stop_reason: str, expected: FinishReason
) -> None:
    completion = await policy(Client(ids, stop_reason)).generate([5], max_tokens=4, turn=0)
    assert (completion.ids, completion.finish_reason) == (ids, expected)


@pytest.mark.parametrize(("ids", "logprobs", "expected"), [([], True, []), ([], False, []), ([1], False, None)])
async def test_a_turn_without_a_token_lacks_no_logprob(
    ids: list[int], logprobs: bool, expected: list[float] | None
) -> None:
    completion = await policy(Client(ids, "completed", logprobs=logprobs)).generate([5], max_tokens=4, turn=0)
    assert completion.logprobs == expected


async def test_a_turn_that_is_asked_for_again_is_sampled_with_another_seed() -> None:
    client = Client([1], "completed")
    asked = policy(client)
    for turn in (0, 1, 1, 2):
        await asked.generate([5], max_tokens=4, turn=turn)
    assert len({params["seed"] for params in client.asked}) == 4
