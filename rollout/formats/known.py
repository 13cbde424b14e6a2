"""The formats by the names that verl gives them in `rollout.multi_turn.format`."""

from __future__ import annotations

import re

from rollout.formats import gemma, glm, hermes, kimi
from rollout.formats.blocks import BlockFormat
from rollout.formats.harmony import Harmony
from rollout.formats.markup import Element, Markup, by_schema, by_schema_in_lines
from rollout.formats.reading import Format
from rollout.formats.values import decode_json

_THINK = ("<think>", "</think>")
_DSML = "\uff5cDSML\uff5c"

_FUNCTION = Element(opening=re.compile(r"<function=([^>\n]*)>"), ending="</function>")
_PARAMETER = Element(opening=re.compile(r"<parameter=([^>\n]*)>"), ending="</parameter>")
_CODER_SHAPE = "write <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>"
_SEED_SHAPE = "write <seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></seed:tool_call>"
_MINIMAX_SHAPE = (
    'write <minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke></minimax:tool_call>'
)
_DEEPSEEK_SHAPE = (
    f'write <{_DSML}tool_calls><{_DSML}invoke name="NAME"><{_DSML}parameter name="KEY" string="true or false">VALUE'
    f"</{_DSML}parameter></{_DSML}invoke></{_DSML}tool_calls>"
)


def _deepseek_value(tag: re.Match[str], text: str, _: object) -> object:
    return text if tag.group(2) == "true" else decode_json(text)


_CODER = BlockFormat(
    name="qwen3_coder",
    think=_THINK,
    call=("<tool_call>", "</tool_call>"),
    read_block=Markup(function=_FUNCTION, parameter=_PARAMETER, shape=_CODER_SHAPE, value=by_schema_in_lines),
    shape=_CODER_SHAPE,
    strays=("<function=",),
    ends=("<|im_end|>", "<|endoftext|>"),
    closing=("<|im_end|>", "<|im_end|>"),
    ends_optional=True,
)
_GLM = BlockFormat(
    name="glm",
    think=_THINK,
    call=("<tool_call>", "</tool_call>"),
    read_block=glm.read_block,
    shape=glm.SHAPE,
    strays=("<arg_key>",),
    ends=("<|observation|>", "<|user|>", "<|endoftext|>"),
    stops=("<|user|>",),
    closing=(None, None),  # the next message's opening marker ends a turn
    around_ending=("", "\n"),
)
_SEED = BlockFormat(
    name="seed",
    think=("<seed:think>", "</seed:think>"),
    call=("<seed:tool_call>", "</seed:tool_call>"),
    read_block=Markup(function=_FUNCTION, parameter=_PARAMETER, shape=_SEED_SHAPE, value=by_schema),
    shape=_SEED_SHAPE,
    strays=("<function=",),
    ends=("<seed:eos>",),
    closing=("<seed:eos>", "<seed:eos>"),
    around_ending=("", ""),
)
_MINIMAX = BlockFormat(
    name="minimax",
    think=_THINK,
    call=("<minimax:tool_call>", "</minimax:tool_call>"),
    read_block=Markup(
        function=Element(opening=re.compile(r'<invoke name="([^"]*)">'), ending="</invoke>"),
        parameter=Element(opening=re.compile(r'<parameter name="([^"]*)">'), ending="</parameter>"),
        shape=_MINIMAX_SHAPE,
        value=by_schema,
    ),
    shape=_MINIMAX_SHAPE,
    strays=("<invoke ",),
    ends=("[e~[",),
    closing=("[e~[", "[e~["),
)
_KIMI = BlockFormat(
    name="kimi",
    think=_THINK,
    call=kimi.SECTION,
    read_block=kimi.read_block,
    shape=kimi.SHAPE,
    strays=(kimi.BEGIN,),
    ends=("<|im_end|>", "[EOS]"),
    closing=("<|im_end|>", "<|im_end|>"),
    ends_optional=True,
    around_ending=("", ""),
)
_DEEPSEEK = BlockFormat(
    name="deepseek_v4",
    think=_THINK,
    call=(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"),
    read_block=Markup(
        function=Element(opening=re.compile(rf'<{_DSML}invoke name="([^"]*)">'), ending=f"</{_DSML}invoke>"),
        parameter=Element(
            opening=re.compile(rf'<{_DSML}parameter name="([^"]*)" string="(true|false)">'),
            ending=f"</{_DSML}parameter>",
        ),
        shape=_DEEPSEEK_SHAPE,
        value=_deepseek_value,
    ),
    shape=_DEEPSEEK_SHAPE,
    strays=(f"<{_DSML}invoke",),
    ends=("<\uff5cend\u2581of\u2581sentence\uff5c>",),
    closing=(None, None),  # verl's builder ends the turn itself
    around_ending=("", ""),
)
_GEMMA = BlockFormat(
    name="gemma4",
    think=("<|channel>thought", "<channel|>"),
    call=("<|tool_call>", "<tool_call|>"),
    read_block=gemma.read_block,
    shape=gemma.SHAPE,
    ends=("<turn|>", "<|tool_response>", "<eos>"),
    closing=("<tool_call|>", "<turn|>"),
    around_ending=("", ""),
)

FORMATS: dict[str, Format] = {
    known.name: known for known in (hermes.HERMES, _CODER, Harmony(), _GLM, _SEED, _MINIMAX, _KIMI, _DEEPSEEK, _GEMMA)
}
