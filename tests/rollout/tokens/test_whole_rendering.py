"""A rollout has the ids of the template's whole rendering, or the preflight says where they part."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from conversations import EVERYTHING, Said, played
from structlog.testing import capture_logs
from tool_formats import DIALECTS, Dialect, builder_for, tokenizer_for

from mcp_rollout.gateway.types import CallFault
from mcp_rollout.rollout.types import Message

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

PROMPT: list[Message] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Begin."}]
TOOL = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "note", "description": "Take a note.", "parameters": TOOL}}]


def tokens_of(name: str, *, model_type: str | None = None) -> Any:
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

    logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)
    tokenizer = tokenizer_for(name)
    if model_type is None:
        return ContinuousTokens(builder_for(name, tokenizer), tokenizer, name)
    return ContinuousTokens(create_continuous_token_builder(tokenizer, hf_model_type=model_type), tokenizer, name)


def found_by_preflight(tokens: Any) -> list[str]:
    from mcp_rollout.rollout.tokens.template_check import check_template

    with capture_logs() as logs:
        check_template(tokens, PROMPT, TOOLS, has_user=True, key="--chat-template")
    return [str(entry["where"]) for entry in logs if entry["event"].startswith("a rollout's ids differ")]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("model_type", ["llama", "smollm3", "qwen3"])
def test_chatml_has_its_newline_after_each_message_whatever_the_model_type_is(name: str, model_type: str) -> None:
    tokens, tokenizer = tokens_of(name, model_type=model_type), tokenizer_for(name)
    assert found_by_preflight(tokens) == []
    call = {"type": "function", "function": {"name": "note", "arguments": {"text": "plum"}}}
    messages: list[Message] = list(PROMPT)
    context = tokens.prompt(messages, TOOLS)
    for said, new in (
        ({"content": "", "tool_calls": [call]}, {"role": "tool", "name": "note", "content": "Noted."}),
        ({"content": "Done."}, {"role": "user", "content": "And?"}),
    ):
        messages.append({"role": "assistant", **said})
        text = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
        written = text[len(tokenizer.decode(context)) :].removesuffix("\n")
        for ending in ("", "<|im_end|>"):  # a completion cut at its length, and a whole one
            ids = [*context, *tokens.encode(written.removesuffix("<|im_end|>") + ending)]
            following = tokens.messages(ids, messages, [new], TOOLS).applied_to(ids)
            expected = tokenizer.apply_chat_template(
                [*messages, new], tools=TOOLS, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            assert following == expected
        context = following
        messages.append(new)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_preflight_says_where_a_rollout_parts_from_the_templates_rendering(name: str) -> None:
    # minimax's prompt begins a thought and gemma's an empty one, which their templates leave out of what is past.
    parted = {"minimax": "'<think>\\n' in a rollout", "gemma4": "'<|channel>thought\\n<channel|>' in a rollout"}
    found = found_by_preflight(tokens_of(name))
    assert len(found) == (name in parted)
    assert not found or (parted[name] in found[0] and "the prompt before a tool's answer" in found[0])


class Unreadable(Said):
    """A call without its arguments, or else the dialect's half call."""

    def text(self, dialect: Dialect) -> tuple[str, bool]:
        if dialect.name != "kimi":
            return dialect.half, True
        call = "<|tool_call_begin|>note<|tool_call_end|>"
        return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|><|im_end|>", False


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["hermes", "gpt-oss", "kimi"])
async def test_an_unreadable_call_is_rendered_again_where_each_turn_has_a_prompt_of_its_own(
    tmp_path: Path, name: str
) -> None:
    broken = Unreadable(thinking="", content="", calls=(), half=True)
    trace, sampler = await played(name, [broken, *EVERYTHING], tmp_path, strategy={"use": "single_turn"})
    assert trace.failure is None and len(trace.segments) == len(sampler.log) == 1 + len(EVERYTHING)
    assert trace.turns[0].tools[0].fault is CallFault.UNREADABLE
