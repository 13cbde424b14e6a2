"""Counting without the training stack gives what transformers and verl's builder give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate
from mcp_rollout.rollout.tokens.counting import trajectory_lengths
from mcp_rollout.rollout.trace.record import Trace, UserEvent
from mcp_rollout.rollout.types import Call, Completion, Edit, Parsed

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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, imported_verl: None) -> Path:
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    corpus = ["Look at the tea. It is green. Thanks. " * 20]
    return make_tiny_model(tmp_path_factory.mktemp("model"), corpus=corpus, hidden=32, layers=1)


def test_a_trajectory_has_the_lengths_of_a_rollout(model: Path) -> None:
    from mcp_rollout.rollout.tokens.verl_builder import load_tokens

    tokens = load_tokens(str(model))
    trace = Trace.begin("t", Task(environment="shop", task="a", seed=3, prompt=tuple(OPENING)), Origin())
    context = tokens.prompt(OPENING, TOOLS)
    prompt, completions = len(context), list[int]()
    turns = [
        ("I look.", "", [Call(name="look", arguments={"what": "tea"})]),
        ("", "It is green.", []),
        ("Hm.", "Bye.", []),
    ]
    for thinking, content, calls in turns:
        sampled = tokens.encode_completion(hermes.write(thinking=thinking, content=content, calls=calls))
        completions.append(len(sampled))
        parsed = Parsed(content=content, thinking=thinking, calls=tuple(calls))
        trace.add_completion(Completion(ids=[1]), parsed, Edit(appended=[1]), mask_thinking=False)
        context = tokens.completion(context, sampled).applied_to(context)
        if calls:
            green = ToolResult(content=(Content(kind=ContentKind.TEXT, text="green"),))
            trace.messages += trace.add_calls(calls, [green])
        elif len(completions) < len(turns):
            trace.turns[-1].user = UserEvent(seq=1, message="Thanks.", done=False)
            trace.messages.append({"role": "user", "content": "Thanks."})
        else:
            break
        messages, new = trace.messages[:-1], trace.messages[-1:]
        context = tokens.messages(context, messages, new, TOOLS).applied_to(context)
    found = trajectory_lengths(ChatTemplate(model), trace, TOOLS)
    assert found.prompt == prompt and found.response == len(context) - prompt
    assert list(found.completions) == completions
