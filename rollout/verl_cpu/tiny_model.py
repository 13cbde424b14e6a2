# pyright: basic
"""A Qwen3 with random weights, small enough to train on two CPU cores, and its tokenizer; made offline.

    python -m mcp_rollout.rollout.verl_cpu.tiny_model OUT [--corpus FILE ...] [--hidden 128] [--layers 4]

It cannot do anything yet; it is for running rollouts and training end to end without a download or a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from mcp_rollout.rollout.extras import install_command

try:
    import torch
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
except ImportError as error:
    if __name__ == "__main__":
        raise SystemExit(f"a model needs {error.name}, which is not installed ({install_command('verl')})") from None
    raise

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Added but not special, as in Qwen3: decoding with `skip_special_tokens` keeps them.
_MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

# The longest pieces that may become one token: a word with the punctuation around it, or up to three digits. Tool
# schemas are mostly punctuation, and splitting it from the words, as most tokenizers do, doubles a prompt's length.
_PIECE = r"\d{1,3}|[^A-Za-z0-9]*[A-Za-z_]+[^A-Za-z0-9\n]*"

_CORPUS = (
    '{"type": "function", "function": {"name": "add", "description": "Add two integers.", "parameters": '
    '{"type": "object", "properties": {"a": {"type": "integer", "title": "A"}, "b": {"type": "number", '
    '"default": null, "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "boolean"}}, '
    '{"type": "null"}]}}, "required": ["a", "b"], "additionalProperties": false, "enum": []}}}',
    '{"name": "add", "arguments": {"a": 1, "b": 2}}',
    "What is 12 plus 34? The answer is 46. I need to look up the order first, then I can answer the user.",
)


def make_tiny_model(
    path: str | Path,
    *,
    corpus: Iterable[str] = (),
    vocab_size: int = 4096,
    min_frequency: int = 0,
    hidden: int = 128,
    layers: int = 4,
    heads: int | None = None,
    seed: int = 0,
) -> Path:
    """Write a random Qwen3 and its tokenizer to the directory `path`.

    The same arguments give the same files. The model's vocabulary is exactly the tokenizer's, so every id that it can
    sample has a text.

    Args:
        corpus: Texts to learn the vocabulary from, in addition to a few lines of English and JSON. The more they
            resemble the text to be tokenised, the shorter are the prompts.
        vocab_size: Upper bound; a small corpus has fewer pieces to learn.
        min_frequency: How often a pair of pieces has to occur in the texts to become one piece.
        hidden: Model width, a multiple of 64.
        heads: Attention heads of width 32, one for every 64 of the model's width by default.

    Returns:
        `path`.
    """
    path = Path(path)
    tokenizer = _tokenizer([CHAT_TEMPLATE.read_text(encoding="utf-8"), *_CORPUS, *corpus], vocab_size, min_frequency)
    tokenizer.save_pretrained(path)
    end, padding = tokenizer.get_vocab()["<|im_end|>"], tokenizer.get_vocab()["<|endoftext|>"]
    # Prompts are long and the model is narrow, so attention dominates the cost: few heads, and none shared.
    heads = heads or max(hidden // 64, 1)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=32,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=padding,
        architectures=["Qwen3ForCausalLM"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=padding)
    model.save_pretrained(path)
    return path


def _tokenizer(corpus: Sequence[str], vocab_size: int, min_frequency: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which encodes and decodes any text without loss."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(_MARKERS),
        min_frequency=min_frequency,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(_SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in _MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mcp_rollout.rollout.verl_cpu.tiny_model", description=__doc__)
    parser.add_argument("out", type=Path, help="directory to write, made if it is missing")
    parser.add_argument("--corpus", type=Path, nargs="*", default=[], metavar="FILE", help="texts to learn pieces from")
    parser.add_argument("--hidden", type=int, default=128, help="model width, a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    corpus = [file.read_text(encoding="utf-8") for file in options.corpus]
    make_tiny_model(options.out, corpus=corpus, hidden=options.hidden, layers=options.layers)


if __name__ == "__main__":
    main()
