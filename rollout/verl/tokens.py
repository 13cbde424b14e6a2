"""verl's continuous-token builder and tool parsers as a `TokenBuilder`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser

from gateway.errors import ConfigError
from rollout import hermes
from rollout.types import Call, Edit, Message, Parsed
from rollout.verl.images import image_urls, read_image, with_images


class ContinuousTokens:
    """`TokenBuilder` over `verl.utils.tokenizer.continuous_token.ContinuousTokenBuilder`.

    The hermes format is read by `rollout.hermes`, which loses no call; every other format of verl by verl's own parser.
    """

    def __init__(self, builder: Any, tokenizer: Any, tool_format: str) -> None:
        self._builder, self._tokenizer = builder, tokenizer
        self._parser = None if tool_format == "hermes" else ToolParser.get_tool_parser(tool_format, tokenizer)
        self._special = frozenset(tokenizer.all_special_ids)
        self._opened = False

    @property
    def stop_token_ids(self) -> list[int]:
        """Ids after which generation must stop so that a call can be read."""
        return [] if self._parser is None else list(self._parser.stop_token_ids)

    def sees(self, image: bytes) -> bool:
        return self._builder.supports_multimodal() and read_image(image) is not None

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids))

    def encode_completion(self, text: str) -> list[int]:
        """Ids of what a policy might have sampled, its end-of-turn token included."""
        return self._tokenizer.encode(text + self._tokenizer.eos_token, add_special_tokens=False)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        ids: list[int] = self._builder.build_initial_tokens(list(messages), tools=list(tools) or None)
        # Some templates begin the thought themselves; then a completion without a closing marker is all thought.
        self._opened = self._tokenizer.decode(ids[-8:]).rstrip().endswith(hermes.THINK_OPEN)
        return ids

    def completion(self, context: list[int], sampled: list[int]) -> Edit:
        return _edit(self._builder.merge_assistant_tokens(context, sampled))

    def messages(
        self,
        context: list[int],
        previous: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> Edit:
        before = with_images(previous)
        after = [*before, *with_images(new)]
        merge = self._builder.merge_context_tokens(before, after, context, tools=list(tools) or None)
        return replace(_edit(merge), images=len(image_urls(new)))

    async def parse(self, sampled: list[int], tools: Sequence[Mapping[str, Any]]) -> Parsed:
        ids = self._without_stop(sampled)
        thinking_tokens = self._thinking_tokens(ids)
        if self._parser is None:
            return hermes.read(self._tokenizer.decode(ids), thinking_tokens=thinking_tokens, opened=self._opened)
        content, calls = await self._parser.extract_tool_calls(sampled)
        thinking, content = hermes.split_thinking(content, opened=self._opened)
        return Parsed(
            content=content.strip(),
            thinking=thinking,
            thinking_tokens=thinking_tokens,
            calls=tuple(_call(call) for call in calls),
        )

    def _without_stop(self, ids: list[int]) -> list[int]:
        end = len(ids)
        while end and ids[end - 1] in self._special:
            end -= 1
        return ids[:end]

    def _thinking_tokens(self, ids: list[int]) -> int:
        """The marker may be one token or several, alone or merged with its neighbours: its end is found in the text."""
        text = self._tokenizer.decode(ids)
        if hermes.THINK_CLOSE not in text:
            return len(ids) if self._opened or hermes.THINK_OPEN in text else 0
        return bisect_left(range(len(ids)), True, key=lambda n: hermes.THINK_CLOSE in self._tokenizer.decode(ids[:n]))


def load_tokens(
    model: str,
    *,
    tokenizer_path: str | None = None,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    key: str | None = None,
) -> ContinuousTokens:
    """The tokenizer of a model directory, or of `tokenizer_path`, in the hermes format.

    Raises:
        ConfigError: there is none; `key` says where the path was given.
    """
    from transformers import AutoConfig, AutoTokenizer
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    path = tokenizer_path or model
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        kind = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code).model_type
    except (OSError, ValueError) as error:
        problem = f"no tokenizer can be loaded: {str(error).splitlines()[0]}"
        raise ConfigError(problem, file=path, key=key, remedy="give a model directory") from error
    if chat_template:
        tokenizer.chat_template = chat_template
    kwargs = dict(template_kwargs or {})
    builder = create_continuous_token_builder(tokenizer, hf_model_type=kind, chat_template_kwargs=kwargs)
    return ContinuousTokens(builder, tokenizer, "hermes")


def _edit(merge: Any) -> Edit:
    """A `MergeResult` says what changed at the junction; the appended ids are the tail of its stream."""
    ids = merge.token_ids
    return Edit(
        appended=ids[len(ids) - merge.appended_token_count :],
        inserted=list(merge.inserted_token_ids),
        removed=merge.removed_prefix_token_count,
    )


def _call(call: FunctionCall) -> Call:
    try:
        arguments = hermes.decode_json(call.arguments)
    except ValueError as error:
        return Call(name=call.name, id=call.tool_call_id, problem=f"The arguments are not valid JSON: {error}.")
    read = hermes.call_from({"name": call.name, "arguments": arguments})
    return Call(name=read.name, arguments=read.arguments, id=call.tool_call_id, problem=read.problem)
