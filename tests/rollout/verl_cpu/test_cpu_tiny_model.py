"""The tiny model is a complete Qwen3 as far as verl and transformers can tell."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

TOOL = {
    "type": "function",
    "function": {
        "name": "find_order",
        "description": "Look an order up by its number.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
    },
}
CALL = {"type": "function", "function": {"name": "find_order", "arguments": {"order_id": "#W1"}}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a clerk."},
    {"role": "user", "content": "Where is order #W1?"},
    {"role": "assistant", "content": "", "reasoning_content": "I must look.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": '{"status": "sent"}'},
    {"role": "tool", "content": '{"status": "sent"}'},
    {"role": "assistant", "content": "It was sent.", "reasoning_content": "Now I know."},
    {"role": "user", "content": "Thanks ✓"},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=64, layers=2)


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(path)


def rendered(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    return tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=True, return_dict=False, **options)


def test_every_id_the_model_can_sample_has_text(path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer)
    assert model.get_output_embeddings().weight.shape[0] == len(tokenizer)


def test_any_text_survives_encoding_and_decoding(tokenizer: PreTrainedTokenizerFast) -> None:
    text = 'naïve "日本語" \x00\t\n <tool_call>{"a": [1, 2.5]}</tool_call> <think>'
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_markers_are_single_tokens_that_decoding_keeps(tokenizer: PreTrainedTokenizerFast) -> None:
    for marker in ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"):
        assert len(tokenizer.encode(marker)) == 1
        assert tokenizer.decode(tokenizer.encode(marker), skip_special_tokens=True) == marker
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>"), skip_special_tokens=True) == "a"


def test_the_template_shows_tools_calls_results_and_thinking(tokenizer: PreTrainedTokenizerFast) -> None:
    text = tokenizer.decode(rendered(tokenizer, CONVERSATION, add_generation_prompt=True))
    call = '<tool_call>\n{"name": "find_order", "arguments": {"order_id": "#W1"}}\n</tool_call>'
    result = '<tool_response>\n{"status": "sent"}\n</tool_response>'
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert f"<|im_start|>assistant\n<think>\nI must look.\n</think>\n\n{call}\n{call}<|im_end|>\n" in text
    assert f"<|im_start|>user\n{result}\n{result}<|im_end|>\n" in text
    assert text.endswith("Thanks ✓<|im_end|>\n<|im_start|>assistant\n")


def test_verl_appends_tool_results_and_user_turns_as_the_template_renders_them(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen3")
    ids = builder.build_initial_tokens(CONVERSATION[:2], tools=[TOOL])
    for start, stop in ((2, 5), (5, 7)):
        before = rendered(tokenizer, CONVERSATION[:start], add_generation_prompt=True)
        # What the policy samples: the assistant's message up to the end-of-turn token, without the newline after it.
        sampled = rendered(tokenizer, CONVERSATION[: start + 1])[len(before) : -1]
        ids = builder.merge_assistant_tokens(ids, sampled).token_ids
        merged = builder.merge_context_tokens(CONVERSATION[: start + 1], CONVERSATION[:stop], ids, tools=[TOOL])
        ids = merged.token_ids
    assert ids == rendered(tokenizer, CONVERSATION, add_generation_prompt=True)


def digests(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}


def test_the_same_arguments_give_the_same_files(tmp_path: Path) -> None:
    corpus = ["return_delivered_order_items " * 50]
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        make_tiny_model(tmp_path / name, corpus=corpus, hidden=32, layers=1, seed=seed)
    one, two, three = (digests(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two
    assert {name for name in one if one[name] != three[name]} == {"model.safetensors"}


def test_a_corpus_makes_its_own_text_short(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    text = "".join(f'{{"name": "exchange_delivered_order_items", "item_ids": ["{n}"]}}\n' for n in range(40))
    learned = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path, corpus=[text], hidden=32, layers=1))
    assert len(learned.encode(text)) < len(tokenizer.encode(text)) / 1.5
