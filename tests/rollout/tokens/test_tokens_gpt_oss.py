"""How verl writes a tool's answer for gpt-oss: its token builder, which we follow, and its older helper."""

from __future__ import annotations

import json

import pytest
from tool_formats import builder_for, tokenizer_for

from mcp_rollout.rollout.types import Message

pytestmark = pytest.mark.usefixtures("imported_verl")

ANSWER: Message = {"role": "tool", "name": "note", "content": 'two\n"plums"'}
CALL = {"type": "function", "function": {"name": "note", "arguments": {}}}
PAST: list[Message] = [
    {"role": "user", "content": "Begin."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
]


def test_the_builder_quotes_an_answer_as_json_and_the_helper_does_not() -> None:
    from verl.experimental.agent_loop.utils import build_gpt_oss_tool_response_text

    from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

    tokenizer = tokenizer_for("gpt-oss")
    tokens = ContinuousTokens(builder_for("gpt-oss", tokenizer), tokenizer, "gpt-oss")
    context = tokens.prompt(PAST[:1], []) + tokenizer.encode("x<|call|>", add_special_tokens=False)
    ours = tokens.decode(tokens.messages(context, PAST, [ANSWER], []).appended)
    helper = build_gpt_oss_tool_response_text([ANSWER], ["note"])
    header = "<|start|>functions.note to=assistant<|channel|>commentary<|message|>"
    assert ours == header + json.dumps(ANSWER["content"]) + "<|end|><|start|>assistant"
    assert helper == header + ANSWER["content"] + "<|end|><|start|>assistant"
    # The public template writes `content | tojson`: the builder's text is the model's own, the helper's is not.
    rendered = tokenizer.apply_chat_template([*PAST, ANSWER], tokenize=False, add_generation_prompt=True)
    assert rendered.endswith(ours) and not rendered.endswith(helper)
