"""Continuous batching gives every sequence what it would have got alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from mcp_rollout.rollout.decoding.attention import grouped_attention
from mcp_rollout.rollout.decoding.batch import ContinuousBatch, Ending, Request
from mcp_rollout.rollout.decoding.sampling import Sampling, draw, uniform

VOCABULARY = 211
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.2,  # sharp enough that a wrong cache changes the tokens
    )
    return Qwen3ForCausalLM(config).eval()


def sequence(prompt: list[int], *, seed: int = 0, max_tokens: int = 20, **params: object) -> Request:
    sampling = Sampling.parse({"temperature": 1.0, **params})
    return Request(
        request_id=str(prompt),
        prompt_ids=prompt,
        sampling=sampling,
        max_tokens=max_tokens,
        stop_ids=sampling.stop_token_ids,
        seed=seed,
    )


def prompts(count: int, *, shared: int = 0) -> list[list[int]]:
    numbers = random.Random(1)
    head = [numbers.randrange(VOCABULARY) for _ in range(shared)]
    return [head + [numbers.randrange(VOCABULARY) for _ in range(numbers.randint(1, 40))] for _ in range(count)]


def run(batch: ContinuousBatch) -> list[Request]:
    ended: list[Request] = []
    while batch:
        ended += batch.step()
    return ended


@torch.inference_mode()
def decoded_alone(model: PreTrainedModel, like: Request) -> tuple[list[int], list[float]]:
    """The same request without batch, slots or cache: one full forward pass a token."""
    alone = sequence(like.prompt_ids, seed=like.seed)
    ids, logprobs = list(like.prompt_ids), []
    while len(logprobs) < like.max_tokens and (not logprobs or ids[-1] not in like.stop_ids):
        logits = model(input_ids=torch.tensor([ids])).logits[:, -1]
        [token], [logprob] = draw(logits, [like.sampling], [uniform(alone.seed, len(ids))])
        ids.append(token)
        logprobs.append(logprob)
    return ids[len(like.prompt_ids) :], logprobs


def assert_as_alone(model: PreTrainedModel, result: Request) -> None:
    token_ids, logprobs = decoded_alone(model, result)
    assert result.token_ids == token_ids
    assert result.logprobs == pytest.approx(logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 5}], ids=str)
def test_a_batched_sequence_equals_the_same_sequence_decoded_alone(
    model: PreTrainedModel, params: dict[str, float]
) -> None:
    batch = ContinuousBatch(model, max_sequences=16)
    wanted = [sequence(prompt, seed=index, **params) for index, prompt in enumerate(prompts(12))]
    for one in wanted:
        batch.add(one)
    assert sorted(map(id, run(batch))) == sorted(map(id, wanted))
    for one in wanted:
        assert_as_alone(model, one)


class NewTensors(TorchDispatchMode):
    """Notes the size of each tensor that is not a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in given:
            self.sizes.append(made.numel())
        return made


def test_a_step_copies_no_keys_for_the_query_heads_that_share_them(model: PreTrainedModel) -> None:
    batch = ContinuousBatch(model, max_sequences=4)
    wanted = [sequence(prompt, seed=index) for index, prompt in enumerate(prompts(4, shared=300))]
    for one in wanted:
        batch.add(one)
    batch.step()
    with NewTensors() as new:
        batch.step()
    keys = sum(len(one.ids) for one in wanted) * 2 * 16  # of one layer: heads and their width
    assert max(new.sizes) < keys
    run(batch)
    for one in wanted:
        assert_as_alone(model, one)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (9, 3), (4, 4)])
def test_grouped_attention_is_attention_with_repeated_keys(heads: int, kv_heads: int) -> None:
    torch.manual_seed(1)
    query = torch.randn(5, heads, 1, 64)
    key, value = torch.randn(5, kv_heads, 200, 64), torch.randn(5, kv_heads, 200, 64)
    visible = (torch.arange(200)[None] <= torch.tensor([3, 199, 80, 0, 120])[:, None])[:, None, None]
    repeated = [each.repeat_interleave(heads // kv_heads, dim=1) for each in (key, value)]
    wanted = torch.nn.functional.scaled_dot_product_attention(query, *repeated, attn_mask=visible)
    found, _ = grouped_attention(torch.nn.Module(), query, key, value, visible, scaling=64**-0.5)
    assert (found - wanted.transpose(1, 2)).abs().max() < 1e-6  # eight times the rounding of a float32 near 1


def test_sequences_that_join_between_steps_do_not_disturb_the_others(model: PreTrainedModel) -> None:
    batch = ContinuousBatch(model, max_sequences=8)
    lengths = random.Random(2)
    wanted = [
        sequence(prompt, seed=index, max_tokens=lengths.randint(1, 30)) for index, prompt in enumerate(prompts(20))
    ]
    ended: list[Request] = []
    for one in wanted:
        batch.add(one)
        ended += batch.step()
        ended += batch.step()
    ended += run(batch)
    assert len(ended) == len(wanted)
    for one in wanted:
        assert_as_alone(model, one)


def test_more_sequences_than_slots_wait_for_their_turn(model: PreTrainedModel) -> None:
    batch = ContinuousBatch(model, max_sequences=2)
    wanted = [sequence(prompt, seed=index) for index, prompt in enumerate(prompts(7))]
    for one in wanted:
        batch.add(one)
    run(batch)
    for one in wanted:
        assert_as_alone(model, one)


def test_siblings_that_come_together_compute_their_shared_prompt_once(model: PreTrainedModel) -> None:
    batch = ContinuousBatch(model, max_sequences=8)
    prompt = prompts(1, shared=50)[0]
    siblings = [sequence(prompt, seed=seed) for seed in range(6)]
    for one in siblings:
        batch.add(one)
    run(batch)
    assert batch.prefilled == len(prompt) + 5  # the last prompt token is always computed: the first draw needs it
    assert len({tuple(one.token_ids) for one in siblings}) == 6
    for one in siblings:
        assert_as_alone(model, one)


def test_the_next_turn_of_a_trajectory_computes_its_new_tokens_only(model: PreTrainedModel) -> None:
    batch = ContinuousBatch(model, max_sequences=4)
    trajectories = [sequence(prompt, seed=index) for index, prompt in enumerate(prompts(4, shared=30))]
    for turn in range(4):
        for one in trajectories:
            batch.add(one)
        computed = batch.prefilled
        run(batch)
        for one in trajectories:
            assert_as_alone(model, one)
        if turn:
            assert batch.prefilled - computed == 4 * (5 + 1)  # what was appended, and the last sampled token
        trajectories = [sequence(one.ids + prompts(1)[0][:5], seed=turn) for one in trajectories]


def test_new_weights_take_effect_in_the_middle_of_a_sequence(model: PreTrainedModel) -> None:
    batch = ContinuousBatch(model, max_sequences=4)
    running, before = sequence(prompts(1)[0]), {name: value.clone() for name, value in model.state_dict().items()}
    batch.add(running)
    for _ in range(5):
        batch.step()
    half = list(running.ids)
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-0.5)
        batch.forget()
        run(batch)
        with torch.inference_mode():
            logprobs = model(input_ids=torch.tensor([running.ids])).logits.log_softmax(-1)[0]
        expected = [
            logprobs[position - 1, running.ids[position]].item() for position in range(len(half), len(running.ids))
        ]
        assert running.logprobs[5:] == pytest.approx(expected, abs=TOLERANCE)
    finally:
        model.load_state_dict(before)


def test_an_aborted_sequence_keeps_its_tokens_and_can_be_resumed(model: PreTrainedModel) -> None:
    batch = ContinuousBatch(model, max_sequences=1)
    running, waiting = sequence(prompts(2)[0], temperature=0), sequence(prompts(2)[1], temperature=0)
    batch.add(running)
    batch.add(waiting)
    for _ in range(7):
        batch.step()
    assert batch.abort() == [running, waiting]
    assert not batch
    assert (running.ending, waiting.ending) == (Ending.ABORTED, Ending.ABORTED)
    assert (len(running.token_ids), waiting.token_ids) == (7, [])
    resumed = sequence(running.ids, temperature=0, max_tokens=13)
    batch.add(resumed)
    run(batch)
    whole = sequence(running.prompt_ids, temperature=0)
    assert running.token_ids + resumed.token_ids == decoded_alone(model, whole)[0]


def test_a_sampled_sequence_that_is_aborted_and_resumed_draws_what_it_would_have_drawn(model: PreTrainedModel) -> None:
    batch, prompt = ContinuousBatch(model, max_sequences=2), prompts(1)[0]
    running = sequence(prompt, seed=5)
    batch.add(running)
    for _ in range(7):
        batch.step()
    batch.abort()
    resumed = sequence(running.ids, seed=5, max_tokens=13)
    batch.add(resumed)
    run(batch)
    assert running.token_ids + resumed.token_ids == decoded_alone(model, sequence(prompt, seed=5))[0]
    assert resumed.token_ids[:7] != running.token_ids


def test_a_sequence_ends_at_its_stop_token_or_at_its_length(model: PreTrainedModel) -> None:
    batch = ContinuousBatch(model, max_sequences=4)
    long = sequence(prompts(1)[0], temperature=0)
    batch.add(long)
    run(batch)
    assert (long.ending, len(long.token_ids)) == (Ending.LENGTH, 20)
    stop = long.token_ids[6]
    short = sequence(prompts(1)[0], temperature=0, stop_token_ids=[stop])
    batch.add(short)
    run(batch)
    first = long.token_ids.index(stop)
    assert (short.ending, short.token_ids) == (Ending.COMPLETED, long.token_ids[: first + 1])


def test_a_model_whose_layers_forget_their_past_is_refused() -> None:
    config = Qwen3Config(
        vocab_size=8,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=0,
    )
    with pytest.raises(ValueError, match="only full-attention models"):
        ContinuousBatch(Qwen3ForCausalLM(config), max_sequences=1)
