"""Every tool format as a policy writes it, with a small tokenizer that carries its public template's structure.

A real tokenizer takes the small one's place where `MCP_ROLLOUT_TOKENIZERS` names a directory that has one of the
format's name in it, with a `config.json` that says `model_type`.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.types import Call

HERE = Path(__file__).parent
REAL = os.environ.get("MCP_ROLLOUT_TOKENIZERS")
BAR = "\uff5c"

Write = Callable[[str, str, Sequence[Call]], str]
"""Text of a completion from thinking, content and calls, as a policy samples it after the prompt, its end included."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One format: what its tokenizer has, and how its policies write."""

    name: str
    model_type: str
    write: Write
    markers: tuple[str, ...]
    eos: str
    half: str
    """A completion that ends inside a call of `note`."""
    many: bool = True
    """Whether one completion can hold several calls: gpt-oss and gemma4 stop after the first."""
    stands_in: frozenset[str] = frozenset()
    """Sampled ends that are the next message's opening as well; verl takes them out when the conversation goes on."""


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _hermes(thinking: str, content: str, calls: Sequence[Call]) -> str:
    return hermes.write(thinking=thinking, content=content, calls=calls) + "<|im_end|>"


def _coder(thinking: str, content: str, calls: Sequence[Call]) -> str:
    text = (f"<think>\n{thinking}\n</think>\n\n" if thinking else "") + content
    for index, call in enumerate(calls):
        text += ("\n" if content or index else "") + f"<tool_call>\n<function={call.name}>\n"
        text += "".join(f"<parameter={k}>\n{text_of(v)}\n</parameter>\n" for k, v in call.arguments.items())
        text += "</function>\n</tool_call>"
    return text + "<|im_end|>"


def _glm(thinking: str, content: str, calls: Sequence[Call]) -> str:
    text = f"\n<think>{thinking}</think>" + (f"\n{content}" if content else "")
    for call in calls:
        pairs = "".join(
            f"<arg_key>{k}</arg_key>\n<arg_value>{text_of(v)}</arg_value>\n" for k, v in call.arguments.items()
        )
        text += f"\n<tool_call>{call.name}\n{pairs}</tool_call>"
    return text + ("<|observation|>" if calls else "<|user|>")


def _seed(thinking: str, content: str, calls: Sequence[Call]) -> str:
    text = (f"<seed:think>{thinking}</seed:think>" if thinking else "") + content
    for call in calls:
        pairs = "".join(f"<parameter={k}>{text_of(v)}</parameter>\n" for k, v in call.arguments.items())
        text += f"\n<seed:tool_call>\n<function={call.name}>\n{pairs}</function>\n</seed:tool_call>"
    return text + "<seed:eos>"


def _minimax(thinking: str, content: str, calls: Sequence[Call]) -> str:
    text = f"{thinking}\n</think>\n\n{content}"  # the prompt has begun the thought
    for index, call in enumerate(calls):
        pairs = "".join(f'<parameter name="{k}">{text_of(v)}</parameter>\n' for k, v in call.arguments.items())
        text += ("" if index else "\n<minimax:tool_call>\n") + f'<invoke name="{call.name}">\n{pairs}</invoke>\n'
    return text + ("</minimax:tool_call>" if calls else "") + "[e~["


def _kimi(thinking: str, content: str, calls: Sequence[Call]) -> str:
    text = (f"<think>{thinking}</think>" if thinking else "") + content
    blocks = "".join(
        f"<|tool_call_begin|>functions.{call.name}:{index}<|tool_call_argument_begin|>"
        f"{json.dumps(call.arguments, ensure_ascii=False)}<|tool_call_end|>"
        for index, call in enumerate(calls)
    )
    section = f"<|tool_calls_section_begin|>{blocks}<|tool_calls_section_end|>" if calls else ""
    return text + section + "<|im_end|>"


def _deepseek(thinking: str, content: str, calls: Sequence[Call]) -> str:
    dsml = f"{BAR}DSML{BAR}"
    text = (f"<think>{thinking}</think>" if thinking else "") + content
    for index, call in enumerate(calls):
        pairs = "\n".join(
            f'<{dsml}parameter name="{k}" string="{str(isinstance(v, str)).lower()}">{text_of(v)}</{dsml}parameter>'
            for k, v in call.arguments.items()
        )
        text += ("\n" if index else f"\n\n<{dsml}tool_calls>\n") + f'<{dsml}invoke name="{call.name}">\n{pairs}\n'
        text += f"</{dsml}invoke>"
    return text + (f"\n</{dsml}tool_calls>" if calls else "") + f"<{BAR}end\u2581of\u2581sentence{BAR}>"


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_gemma_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, value)) + "]"
    return json.dumps(value)


def _gemma(thinking: str, content: str, calls: Sequence[Call]) -> str:
    text = (f"<|channel>thought\n{thinking}<channel|>" if thinking else "") + content
    text += "".join(f"<|tool_call>call:{call.name}{_gemma_value(call.arguments)}<tool_call|>" for call in calls)
    return text if calls else text + "<turn|>"


def _harmony(thinking: str, content: str, calls: Sequence[Call]) -> str:
    messages = [f"<|channel|>analysis<|message|>{thinking}<|end|>"] if thinking else []
    if not calls:
        messages.append(f"<|channel|>final<|message|>{content}<|return|>")
    elif content:
        messages.append(f"<|channel|>commentary<|message|>{content}<|end|>")
    for call in calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        header = f"<|channel|>commentary to=functions.{call.name} <|constrain|>json"
        messages.append(f"{header}<|message|>{arguments}<|call|>")
    return "<|start|>assistant".join(messages)


_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            name="hermes",
            model_type="qwen3",
            write=_hermes,
            markers=_CHATML,
            eos="<|im_end|>",
            half='<tool_call>\n{"name": "note", "arguments": {"text": "plu',
        ),
        Dialect(
            name="qwen3_coder",
            model_type="qwen3_5",
            write=_coder,
            markers=_CHATML,
            eos="<|im_end|>",
            half="<tool_call>\n<function=note>\n<parameter=text>\nplu",
        ),
        Dialect(
            name="gpt-oss",
            model_type="gpt_oss",
            write=_harmony,
            markers=(
                *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
                "<|endoftext|>",
            ),
            eos="<|return|>",
            half='<|channel|>commentary to=functions.note <|constrain|>json<|message|>{"text": "plu',
            many=False,
        ),
        Dialect(
            name="glm",
            model_type="glm4_moe",
            write=_glm,
            markers=(
                *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
                *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>"),
                *("</arg_value>", "<tool_response>", "</tool_response>"),
            ),
            eos="<|endoftext|>",
            half="\n<think></think>\n<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>plu",
            stands_in=frozenset({"<|observation|>", "<|user|>"}),
        ),
        Dialect(
            name="seed",
            model_type="seed_oss",
            write=_seed,
            markers=(
                *("<seed:bos>", "<seed:eos>", "<seed:pad>", "<seed:think>", "</seed:think>", "<seed:tool_call>"),
                "</seed:tool_call>",
            ),
            eos="<seed:eos>",
            half="\n<seed:tool_call>\n<function=note>\n<parameter=text>plu",
        ),
        Dialect(
            name="minimax",
            model_type="minimax_m2",
            write=_minimax,
            markers=(
                *("]~!b[", "]~b]", "[e~[", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
                "<|endoftext|>",
            ),
            eos="[e~[",
            half='</think>\n<minimax:tool_call>\n<invoke name="note">\n<parameter name="text">plu',
        ),
        Dialect(
            name="kimi",
            model_type="kimi_k2",
            write=_kimi,
            markers=(
                *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "[EOS]"),
                *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
                *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "[PAD]"),
            ),
            eos="[EOS]",
            half="<|tool_calls_section_begin|><|tool_call_begin|>functions.note:0<|tool_call_argument_begin|>"
            '{"text": "plu',
        ),
        Dialect(
            name="deepseek_v4",
            model_type="deepseek_v4",
            write=_deepseek,
            markers=(
                *(f"<{BAR}begin\u2581of\u2581sentence{BAR}>", f"<{BAR}end\u2581of\u2581sentence{BAR}>"),
                *(f"<{BAR}User{BAR}>", f"<{BAR}Assistant{BAR}>", "<think>", "</think>", f"{BAR}DSML{BAR}"),
            ),
            eos=f"<{BAR}end\u2581of\u2581sentence{BAR}>",
            half=f'\n\n<{BAR}DSML{BAR}tool_calls>\n<{BAR}DSML{BAR}invoke name="note">\n'
            f'<{BAR}DSML{BAR}parameter name="text" string="true">plu',
        ),
        Dialect(
            name="gemma4",
            model_type="gemma4",
            write=_gemma,
            markers=(
                *("<bos>", "<eos>", "<pad>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>"),
                *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
            ),
            eos="<eos>",
            half='<|tool_call>call:note{text:<|"|>plu',
            many=False,
        ),
    )
}


@functools.cache
def tokenizer_for(name: str) -> Any:
    """The real tokenizer where there is one, else the small one."""
    from transformers import AutoTokenizer

    if REAL and (Path(REAL) / name).is_dir():
        return AutoTokenizer.from_pretrained(Path(REAL) / name)
    return _small(DIALECTS[name])


def builder_for(name: str, tokenizer: Any, **template_kwargs: Any) -> Any:
    """verl's own choice of builder for the format's model type."""
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    kind = DIALECTS[name].model_type
    if REAL and (config := Path(REAL) / name / "config.json").is_file():
        kind = json.loads(config.read_text())["model_type"]
    logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)
    return create_continuous_token_builder(tokenizer, hf_model_type=kind, chat_template_kwargs=template_kwargs)


def _small(dialect: Dialect) -> Any:
    """Byte-level BPE with merges enough that a text has many spellings; every marker is a token of its own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from mcp_rollout.rollout.verl_cpu.tiny_model import CHAT_TEMPLATE

    template = HERE / "templates" / f"{dialect.name}.jinja"
    chat = CHAT_TEMPLATE if dialect.name == "hermes" else template
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    words = ["I note the plums and pears, the answer and what the user asked for. "] * 4
    tokenizer.train_from_iterator([*words, *DIALECTS[dialect.name].half.split(), json.dumps({"text": 1})], trainer)
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in dialect.markers])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=dialect.eos,
        pad_token=dialect.markers[-1] if "pad" in dialect.markers[-1].lower() else dialect.eos,
        chat_template=chat.read_text() if chat.exists() else None,
    )
