"""Counting without the training stack gives what transformers and verl's builder give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.rollout.tokens.chat_template import ChatTemplate

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]
NAMES = ["gemma4", "glm", "gpt-oss", "hermes", "kimi", "minimax", "qwen3_coder", "seed"]
"""verl's tool formats but deepseek_v4, which verl renders in Python, without a template."""
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at <it> & say what you sée.",
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
        },
    }
]
OPENING = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look at the tea, thé."}]
CALL = {"id": "functions.look:0", "type": "function", "function": {"name": "look", "arguments": {"what": "tea"}}}
CONVERSATION = [
    *OPENING,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "green", "tool_call_id": CALL["id"], "name": "look"},
    {"role": "assistant", "content": "It is green."},
    {"role": "user", "content": "Thanks."},
]


@pytest.mark.parametrize("name", NAMES)
def test_texts_and_counts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    from tool_formats import tokenizer_for

    tokenizer = tokenizer_for(name)
    tokenizer.save_pretrained(tmp_path)
    template = ChatTemplate(tmp_path)
    for messages, tools in ((OPENING, TOOLS), (OPENING, None), (CONVERSATION, TOOLS)):
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        assert template.render(messages, tools or ()) == text
        assert template.count_prompt(messages, tools or ()) == len(tokenizer.encode(text, add_special_tokens=False))
    user = OPENING[1:]
    costs = template.count_prompt(user, TOOLS) - template.count_prompt(user)
    counted = template.count_tools(TOOLS)
    assert counted is not None and abs(counted - costs) <= 1  # another user's text, which can merge with its neighbours
