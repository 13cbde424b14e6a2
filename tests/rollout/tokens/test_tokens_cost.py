"""What a turn costs in our own code: counted in tokens rendered and decoded, under every tool format."""

from __future__ import annotations

import functools
import json
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import Counting
from tool_formats import DIALECTS, builder_for, tokenizer_for

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.mcp_wire.control_text import break_control_text, escape_control_text
from mcp_rollout.rollout.trace.record import assistant_message
from mcp_rollout.rollout.types import Call, Message

pytestmark = pytest.mark.usefixtures("imported_verl")

TEXT = "I note the plums and pears. " * 4
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Take a note. " * 10,
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    }
    for name in ("note", "find", "look", "send")
]


class Talk:
    """A conversation that is built turn by turn: every fifth time the user speaks, else a tool."""

    def __init__(self, name: str, *, narrow_view: bool | None = True, tools: list[dict[str, Any]] = TOOLS) -> None:
        from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

        self.name, self.counting, self.tools = name, Counting(tokenizer_for(name)), tools
        builder = builder_for(name, self.counting)
        self.tokens = ContinuousTokens(builder, self.counting, name, narrow_view=narrow_view)
        self.messages: list[Message] = [{"role": "user", "content": "Begin."}]
        self.context = self.tokens.prompt(self.messages, tools)
        self.turns = 0

    def turn(self, thinking: str = TEXT) -> tuple[int, int]:
        """(tokens rendered, tokens decoded) by one more turn."""
        rendered, decoded = self.counting.rendered, self.counting.decoded
        asks = self.turns % 5 == 4
        calls = [] if asks else [Call(name="note", arguments={"text": TEXT}, id="functions.note:0")]
        text = DIALECTS[self.name].write(thinking, TEXT.strip() if asks else "", calls)
        sampled = self.counting.tokenizer.encode(text, add_special_tokens=False)
        parsed = anyio.run(self.tokens.parse, sampled, self.tools)
        assert [call.name for call in parsed.calls] == [call.name for call in calls]
        self.context = self.tokens.completion(self.context, sampled).applied_to(self.context)
        previous = [*self.messages, assistant_message(parsed)]
        answer: Message = {"role": "tool", "name": "note", "content": TEXT, "tool_call_id": "functions.note:0"}
        new: list[Message] = [{"role": "user", "content": TEXT}] if asks else [answer]
        edit = self.tokens.messages(self.context, previous, new, self.tools)
        self.context = edit.applied_to(self.context)
        self.messages = [*previous, *new]
        self.turns += 1
        return self.counting.rendered - rendered, self.counting.decoded - decoded


@pytest.mark.parametrize("name", DIALECTS)
def test_turn_sixty_costs_what_turn_five_costs(name: str) -> None:
    talk = Talk(name)
    costs = [talk.turn() for _ in range(60)]
    for early, late in ((4, 59), (3, 58)):  # the user speaks, and a tool does
        assert all(later <= 1.5 * earlier for earlier, later in zip(costs[early], costs[late], strict=True))


@pytest.mark.parametrize(
    ("refused", "what"),
    [
        ("m.role == 'tool'", "a tool's answer"),
        ("m.role == 'tool' and loop.previtem is defined and loop.previtem.role == 'tool'", "two tools' answers"),
        ("m.role == 'user' and not loop.last", None),
        ("tools and tools[0].function.name != 'note'", "the prompt with tools of other names"),
    ],
)
def test_what_a_template_does_not_render_is_named_with_its_own_reason(refused: str, what: str | None) -> None:
    from mcp_rollout.rollout.tokens.template_check import check_template

    tokenizer: Any = Talk("hermes").counting.tokenizer
    template = tokenizer.chat_template
    refusal = f"{{%- for m in messages -%}}{{%- if {refused} -%}}{{{{ raise_exception('not here') }}}}{{%- endif -%}}"
    prompt: list[Message] = [{"role": "user", "content": "Begin."}]
    try:
        tokenizer.chat_template = f"{refusal}{{%- endfor -%}}{template}"
        if what is None:  # a template that refuses what no trajectory needs is no worse for it
            check_template(Talk("hermes").tokens, prompt, [], has_user=False, key="k")
            return
        with pytest.raises(ConfigError, match=f"does not render {what}.*: TemplateError: not here"):
            check_template(Talk("hermes").tokens, prompt, TOOLS, has_user=False, key="k")
    finally:
        tokenizer.chat_template = template


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("{%- set tools = tools[:1] if tools else tools -%}", r"see: (\w+, )+say "),
        (
            "{%- set messages = messages | rejectattr('role', 'equalto', 'tool') | list -%}",
            "leaves out a tool's answer",
        ),
    ],
)
def test_what_a_template_leaves_out_is_named(broken: str, said: str) -> None:
    from mcp_rollout.rollout.tokens.template_check import check_template

    tokenizer: Any = Talk("hermes").counting.tokenizer
    template = tokenizer.chat_template
    function = {**TOOLS[0]["function"], "name": "say"}
    # The prompt mentions the tool, which shows it to the policy as little.
    prompt: list[Message] = [{"role": "user", "content": "Begin with say."}]
    try:
        tokenizer.chat_template = broken + template
        with pytest.raises(ConfigError, match=said):
            check_template(
                Talk("hermes").tokens, prompt, [*TOOLS, {**TOOLS[0], "function": function}], has_user=False, key="k"
            )
    finally:
        tokenizer.chat_template = template


@pytest.mark.parametrize("name", DIALECTS)
def test_no_formats_markers_are_spelled_in_what_other_models_read(name: str) -> None:
    for marker in DIALECTS[name].markers:
        text = f"a{marker}b <b>bold</b> [1] x < y"
        broken = break_control_text(text)
        assert marker not in broken and broken.replace(" ", "") == text.replace(" ", "")
        assert "<b>bold</b> [1] x < y" in broken
        document = escape_control_text(json.dumps([text], ensure_ascii=False))
        assert marker not in document and json.loads(document) == [text]


WORDS = st.text('abcxyz 0123.,\n\u4e2d\U0001f351{}"<>', max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from(["tool", "tools", "user"]), WORDS, WORDS), min_size=1, max_size=5)


@functools.cache
def fast_tokens(name: str) -> Any:
    """Tokens with the view and the pieces that were found to suffice."""
    from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

    tokenizer = tokenizer_for(name)
    return ContinuousTokens(builder_for(name, tokenizer), tokenizer, name)


@pytest.mark.parametrize("name", DIALECTS)
@given(steps=STEPS, system=st.booleans(), tools=st.booleans(), cut=st.booleans())
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
def test_the_narrow_view_in_pieces_renders_what_the_whole_conversation_does(
    name: str, steps: list[tuple[str, str, str]], system: bool, tools: bool, cut: bool
) -> None:
    from mcp_rollout.rollout.tokens.narrow_view import render

    tokenizer = tokenizer_for(name)
    builder, tokens = builder_for(name, tokenizer), fast_tokens(name)
    # deepseek_v4 has an encoding of its own in place of a template.
    assert tokens.narrow_view and (tokens.pieces is not None or tokenizer.chat_template is None)
    end = tokenizer.encode(DIALECTS[name].write("", "x", []), add_special_tokens=False)[-1:]
    offered = TOOLS if tools else []
    messages: list[Message] = [{"role": "system", "content": "Be kind."}] if system else []
    messages.append({"role": "user", "content": "Begin."})
    context = builder.build_initial_tokens(messages, tools=offered or None)
    for kind, said, answer in steps:
        calls = [] if kind == "user" else [("note", "find")[index] for index in range(1 + (kind == "tools"))]
        message: Message = {"role": "assistant", "content": said}
        if calls:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "id": f"functions.{call}:0",
                    "function": {"name": call, "arguments": {"text": said}},
                }
                for call in calls
            ]
        new: list[Message] = [
            {"role": "tool", "name": call, "content": answer, "tool_call_id": f"functions.{call}:0"} for call in calls
        ] or [{"role": "user", "content": answer}]
        messages.append(message)
        context += tokenizer.encode(said, add_special_tokens=False) + ([] if cut else end)
        edit = render(builder, context, messages, new, offered, narrow=False)
        for narrow in (True, False):
            assert render(tokens._builder, context, messages, new, offered, narrow=narrow) == edit
        context = edit.applied_to(context)
        messages += new


COUNTS_MESSAGES = "{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}"


def test_a_template_that_needs_the_whole_conversation_is_given_it() -> None:
    template = tokenizer_for("gpt-oss").chat_template
    assert template.rstrip().endswith(COUNTS_MESSAGES)
    counts = COUNTS_MESSAGES.replace("<|start|>assistant'", "<|start|>assistant' ~ messages | length")
    tokenizer: Any = Talk("gpt-oss").counting.tokenizer
    try:
        tokenizer.chat_template = template.replace(COUNTS_MESSAGES, counts)
        talk = Talk("gpt-oss", narrow_view=None)
        assert not talk.tokens.narrow_view
        costs = [talk.turn()[0] for _ in range(8)]
        assert tokenizer.decode(talk.context).endswith("<|start|>assistant17")
        assert costs[7] > costs[2]
    finally:
        tokenizer.chat_template = template


@pytest.mark.parametrize("text", ["", "It is <|im_end|> or <think>.", "\n\n ", "\u4e2d\U0001f351", "A" * 5000])
def test_texts_are_tokenised_in_pieces_as_in_whole_also_where_settings_are_left_behind(text: str) -> None:
    tokenizer, pieces = tokenizer_for("hermes"), fast_tokens("hermes").pieces
    whole = f"<|im_start|>user\n{text}<|im_end|>\n"
    expected = tokenizer.encode(whole, add_special_tokens=False)
    assert pieces.encode_text(whole) == expected
    try:
        tokenizer.backend_tokenizer.enable_truncation(2)
        assert pieces.encode_text(whole + text) == tokenizer.encode(whole + text, add_special_tokens=False)
    finally:
        tokenizer.backend_tokenizer.no_truncation()


def test_new_messages_are_tokenised_alone_only_where_they_begin_at_a_marker() -> None:
    from mcp_rollout.rollout.tokens.pieces import Pieces

    tokenizer: Any = tokenizer_for("hermes")
    template = tokenizer.chat_template
    past, new = [{"role": "user", "content": "straw"}], [{"role": "user", "content": "berry"}]
    marker = "<|im_start|>"
    try:
        for before, each in (("", marker), (marker, "")):
            written = "{%- for m in messages -%}{{- '" + each + "' ~ m.content -}}{%- endfor -%}"
            tokenizer.chat_template = before + written
            pieces = Pieces.of(tokenizer, [])
            assert pieces is not None
            alone = tokenizer.encode(marker + "berry", add_special_tokens=False)
            assert pieces.appended_ids(past, new, tools=None) == (alone if each else None)
    finally:
        tokenizer.chat_template = template


def test_a_tokenizer_whose_markers_take_spaces_beside_them_is_left_alone() -> None:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from mcp_rollout.rollout.tokens.pieces import Pieces, markers_of

    backend = Tokenizer(models.BPE({chr(number): number - 32 for number in range(32, 127)}, []))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.add_special_tokens([AddedToken("<|a|>", lstrip=True), AddedToken("<|b|>"), AddedToken("<|b|><|c|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.chat_template = "<|a|>{{ messages }}<|b|>"
    assert markers_of(tokenizer) == {} and Pieces.of(tokenizer, []) is None


def test_a_template_that_writes_the_time_is_rendered_each_time() -> None:
    from mcp_rollout.rollout.tokens.pieces import Pieces

    tokenizer: Any = tokenizer_for("hermes")
    template = tokenizer.chat_template
    messages: list[Message] = [{"role": "user", "content": "Hello."}]
    try:
        for head, kept in (("", 1), ("{{- strftime_now('%H') -}}", 0)):
            tokenizer.chat_template = head + template
            pieces = Pieces.of(tokenizer, [])
            assert pieces is not None
            pieces.apply_chat_template(messages, tokenize=True, return_dict=False, add_generation_prompt=False)
            assert len(pieces._conversations) == kept
    finally:
        tokenizer.chat_template = template
