"""What a sampled token's log-probability means, and what a request may ask for."""

from __future__ import annotations

import pytest
import torch

from mcp_rollout.rollout.decoding.sampling import Sampling, draw, uniform

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])


def frequencies(sampling: Sampling, draws: int = 4000) -> list[float]:
    # Half of the numbers are one seed's by position, the others those of many seeds in one position.
    half = draws // 2
    uniforms = [uniform(0, position) for position in range(half)] + [uniform(seed, 9) for seed in range(1, half + 1)]
    ids, _ = draw(LOGITS.repeat(draws, 1), [sampling] * draws, uniforms)
    return [ids.count(token) / draws for token in range(len(LOGITS))]


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    expected = (LOGITS / 0.5).softmax(-1).tolist()
    assert frequencies(Sampling(temperature=0.5)) == pytest.approx(expected, abs=0.02)


def test_the_logprob_is_that_of_the_temperature_scaled_logits() -> None:
    [token], [logprob] = draw(LOGITS[None], [Sampling(temperature=0.5)], [0.99])
    assert logprob == pytest.approx((LOGITS / 0.5).log_softmax(-1)[token].item(), abs=1e-6)


def test_the_logprob_of_a_likely_token_is_exact_in_a_large_vocabulary() -> None:
    logits = 2 * torch.randn(8, 49_152, generator=torch.Generator().manual_seed(0))
    logits[:, 5] = 20
    ids, logprobs = draw(logits, [Sampling()] * 8, [0.5] * 8)
    exact = logits.double().log_softmax(-1)
    assert logprobs == pytest.approx([exact[row, each].item() for row, each in enumerate(ids)], abs=3e-6)


def test_temperature_zero_takes_the_likeliest_token_with_its_logprob_at_temperature_one() -> None:
    ids, logprobs = draw(LOGITS[None], [Sampling(temperature=0, top_k=3, top_p=0.1)], [0.999])
    assert ids == [0]
    assert logprobs == pytest.approx([LOGITS.log_softmax(-1)[0].item()], abs=1e-6)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=2), [0, 1]),
        (Sampling(top_p=0.6), [0]),
        (Sampling(top_p=0.7), [0, 1]),
        (Sampling(top_k=1, top_p=0.9), [0]),
        (Sampling(top_k=99), [0, 1, 2, 3, 4]),
    ],
    ids=str,
)
def test_truncated_sampling_draws_and_scores_from_the_tokens_it_leaves(sampling: Sampling, kept: list[int]) -> None:
    expected = LOGITS[kept].log_softmax(-1)
    for number in (0.0, 0.2, 0.5, 0.8, 1 - 2**-53):
        [token], [logprob] = draw(LOGITS[None], [sampling], [number])
        assert token in kept
        assert logprob == pytest.approx(expected[kept.index(token)].item(), abs=1e-6)


def test_a_row_is_drawn_the_same_beside_any_other_rows() -> None:
    samplings = [Sampling(), Sampling(temperature=0), Sampling(top_k=1), Sampling(temperature=3.0)]
    uniforms = [0.9, 0.5, 0.7, 0.95]
    together = draw(LOGITS.repeat(4, 1), samplings, uniforms)
    alone = [draw(LOGITS[None], [s], [u]) for s, u in zip(samplings, uniforms, strict=True)]
    assert together[0] == [ids[0] for ids, _ in alone]
    assert together[1] == pytest.approx([logprobs[0] for _, logprobs in alone], abs=1e-7)


def test_drawing_leaves_the_logits_as_they_were() -> None:
    logits = LOGITS[None].clone()
    draw(logits, [Sampling(temperature=1.0, top_k=1)], [0.5])
    assert torch.equal(logits, LOGITS[None])


def test_parameters_as_verl_sends_them_are_read() -> None:
    sampling = Sampling.parse(
        {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
        | {"max_tokens": 8, "max_new_tokens": 5, "stop_token_ids": [3], "seed": 7}
    )
    assert sampling == Sampling(
        temperature=0.7, top_p=0.9, logprobs=True, max_tokens=5, stop_token_ids=frozenset({3}), seed=7
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"temperature": -1}, "out of range"),
        ({"top_p": 0}, "out of range"),
        ({"top_k": -2}, "out of range"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be_honoured_are_refused(params: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling.parse(params)
