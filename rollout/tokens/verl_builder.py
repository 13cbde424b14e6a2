"""verl's continuous-token builder as a `TokenBuilder`, under every tool format that verl knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.tool_parser import ToolParser

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.formats import find_format
from mcp_rollout.rollout.formats.control_text import NO_CONTROL
from mcp_rollout.rollout.tokens.chat_template import tool_turn
from mcp_rollout.rollout.tokens.images import image_urls, read_image
from mcp_rollout.rollout.tokens.narrow_view import TAIL, can_narrow, edit_of, probes, render
from mcp_rollout.rollout.tokens.parsing import CompletionParser
from mcp_rollout.rollout.tokens.pieces import Pieces
from mcp_rollout.rollout.tokens.text_tokenizer import (
    TextTokenizer,
    control_text_of,
    placeholders_of,
    with_text_tokenizer,
)
from mcp_rollout.rollout.types import Edit, Message, Parsed, ThoughtMarkers

_REMEDY = "give a model directory with its tokenizer"
_CACHED = ("config.json", "tokenizer_config.json")
"""Files of a model, one of which its copy in the hub's cache has."""
_PROMPT_END = 16
"""Ids at the end of a prompt in which a template may begin a thought."""


class ContinuousTokens:
    """`ModelTokens` over `verl.utils.tokenizer.continuous_token.ContinuousTokenBuilder`.

    `rollout.formats` reads completions and drops no call; verl's own parser names the tokens that must stop the engine;
    verl's builder renders messages.

    Args:
        narrow_view: whether to show the builder only the end of a conversation; None tries it out now, in about the
            time of a hundred turns. Pass the attribute of that name to further builders with the same template.
        pieces: what the builder tokenises with; None tries it out now, too. An attribute as well.

    Raises:
        ConfigError: there is no such tool format, or the tokenizer cannot keep control tokens out of texts.
    """

    def __init__(
        self,
        builder: Any,
        tokenizer: Any,
        tool_format: str,
        *,
        narrow_view: bool | None = None,
        pieces: TextTokenizer | None = None,
    ) -> None:
        self._builder, self._tokenizer = builder, tokenizer
        self._format = find_format(tool_format, key="actor_rollout_ref.rollout.multi_turn.format")
        self._ends = {*self._ids(self._format.end_tokens), *_valid((tokenizer.eos_token_id, tokenizer.pad_token_id))}
        self._truncated_end = [self._ids([token] if token else []) for token in self._format.truncated_end]
        self._complete = self._ends.union(*self._truncated_end)
        self._opened = False
        if pieces is None:
            control = control_text_of(tokenizer, self._format)
            pieces = TextTokenizer(tokenizer, control)
            pieces.check()
            if narrow_view is None and not builder.supports_multimodal():
                pieces = Pieces.of(tokenizer, ((past + new, tools) for past, new, tools in probes()), control) or pieces
        self.pieces = builder.tokenizer = pieces
        if isinstance(pieces, Pieces):
            # The class of the instance, since verl's factory chooses among its builders and takes none of ours.
            builder.__class__ = _appending(type(builder))
        self._placeholders = NO_CONTROL
        if builder.supports_multimodal():
            builder.processor = with_text_tokenizer(builder.processor, pieces.control)
            self._placeholders = placeholders_of(builder.processor)
        self.narrow_view = can_narrow(builder, sorted(self._complete)) if narrow_view is None else narrow_view

    @property
    def thought(self) -> ThoughtMarkers | None:
        return self._format.thought

    @property
    def stop_token_ids(self) -> list[int]:
        parser = ToolParser.get_tool_parser(self._format.name, self._tokenizer)
        return sorted({*_valid(parser.stop_token_ids), *self._ids(self._format.stop_tokens)})

    @property
    def end_token_ids(self) -> list[int]:
        return sorted({*_valid((self._tokenizer.eos_token_id, self._tokenizer.pad_token_id))})

    def sees(self, image: bytes) -> bool:
        return self._builder.supports_multimodal() and read_image(image) is not None

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def encode_text(self, text: str) -> list[int]:
        return self.pieces.encode_text(self.pieces.control.mark(text))

    def decode(self, ids: Sequence[int]) -> str:
        return self.pieces.decode_ids(ids)

    def control_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int:
        return self.pieces.control.count(messages, tools)

    def encode_completion(self, text: str) -> list[int]:
        return self.encode(text + self._tokenizer.eos_token)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        marked, offered = self._marked(messages, tools)
        ids: list[int] = self._builder.build_initial_tokens(marked, tools=offered or None)
        self._note_opened(ids)
        return ids

    def completion(self, context: list[int], sampled: list[int]) -> Edit:
        return edit_of(self._builder.merge_assistant_tokens(self._seen(context), sampled))

    def messages(
        self,
        context: list[int],
        previous: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> Edit:
        # A completion truncated at its length limit lacks the end of its message.
        truncated = bool(context) and context[-1] not in self._complete
        # The format has two: before the result of a call, and before any other message.
        end = self._truncated_end[new[0]["role"] != "tool"] if truncated else []
        seen = self._seen(context) + end
        edit = render(self._builder, seen, previous, new, tools, narrow=self.narrow_view, mark=self._marked)
        self._note_opened(edit.appended)
        after = self._after_end if seen and seen[-1] in self._complete else []
        return replace(edit, inserted=end + edit.inserted + after, images=len(image_urls(new)))

    def turn_in(self, ids: Sequence[int]) -> list[int]:
        return list(ids[: next((at for at, id in enumerate(ids, 1) if id in self._complete), len(ids))])

    @cached_property
    def _after_end(self) -> list[int]:
        """What the template writes between the end of a completion and the next message, a newline in ChatML.

        verl's builders of model families insert it; its general one, for all other models, does not.
        """
        if not _merges_plainly(self._builder):
            return []
        calls, _ = tool_turn([("look", "")], arguments={})
        for said in (calls, {"role": "assistant", "content": "Well."}):
            try:
                ids = self._builder.render_delta_token_id([{"role": "user", "content": "Begin."}], [said])
            except Exception:  # the template's boundary, as in `narrow_view`: it refuses the conversation
                continue
            last = max((at for at, id in enumerate(ids, 1) if id in self._complete), default=len(ids))
            if ids[last:] and not self.decode(ids[last:]).strip():
                return ids[last:]
        return []

    async def parse(self, sampled: list[int], tools: Sequence[Mapping[str, Any]]) -> Parsed:
        ids = self._without_end(sampled)
        parser = CompletionParser(
            format=self._format, decode=self.decode, token_of=lambda marker: next(iter(self._ids([marker])), None)
        )
        return parser.parse(ids, tools, opened=self._opened)

    def _marked(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Message], list[dict[str, Any]]]:
        if self._placeholders.spellings:
            messages, tools = self._placeholders.broken(messages, tools)
        return self.pieces.control.marked(messages, tools)

    def _seen(self, context: list[int]) -> list[int]:
        return context[-TAIL:] if self.narrow_view else context

    def _note_opened(self, ids: list[int]) -> None:
        """Record whether the template has begun a thought; then a completion without an end marker is all thought."""
        self._opened = self._format.opens_thought(self.decode(ids[-_PROMPT_END:]))

    def _without_end(self, ids: list[int]) -> list[int]:
        end = len(ids)
        while end and ids[end - 1] in self._ends:
            end -= 1
        return ids[:end]

    def _ids(self, tokens: Sequence[str]) -> list[int]:
        """The ids of the tokens that are in the vocabulary."""
        found = [self._tokenizer.convert_tokens_to_ids(token) for token in tokens]
        return [token for token in _valid(found) if token != self._tokenizer.unk_token_id]


def load_tokens(
    model: str,
    *,
    tokenizer_path: str | None = None,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    tool_format: str = "hermes",
    key: str | None = None,
) -> ContinuousTokens:
    """Load the tokenizer of a model directory, or of `tokenizer_path`, and verl's builder for it.

    Args:
        key: the option that names the path, for errors.

    Raises:
        ConfigError: there is no tokenizer, or no such tool format.
    """
    from transformers import AutoConfig, AutoTokenizer
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    path = tokenizer_path or model
    for each in dict.fromkeys((path, model)):
        check_model(each, key=key)
    missing = "" if Path(path).is_dir() else "it is no directory here, and "  # but a model's name on a hub
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        kind = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code).model_type
        if chat_template:
            tokenizer.chat_template = chat_template
        kwargs = dict(template_kwargs or {})
        # The builder looks up the tokens that its templates need, which may be missing.
        builder = create_continuous_token_builder(tokenizer, hf_model_type=kind, chat_template_kwargs=kwargs)
    except (OSError, ValueError) as error:
        problem = f"{missing}no tokenizer can be loaded: {str(error).splitlines()[0]}"
        raise ConfigError(problem, file=path, key=key, remedy=_REMEDY) from error
    return ContinuousTokens(builder, tokenizer, tool_format)


def check_model(path: str, *, key: str | None = None) -> None:
    """Validate that there is such a directory, or such a model on the hub, which transformers would ask for minutes.

    Raises:
        ConfigError: there is neither, or the hub does not answer one request and its cache here has no such model.
    """
    if Path(path).is_dir():
        return
    if path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise ConfigError("no such directory", file=path, key=key, remedy=_REMEDY)
    import httpx
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        if not any(isinstance(try_to_load_from_cache(path, name), str) for name in _CACHED):
            HfApi().model_info(path, timeout=10)
    except (OSError, ValueError, httpx.HTTPError) as error:
        said = [*str(error).splitlines(), type(error).__name__][0]
        problem = f"it is no directory here, and the hub does not give it: {said}"
        raise ConfigError(problem, file=path, key=key, remedy=_REMEDY) from error


@cache
def _appending(kind: type[Any]) -> type[Any]:
    """This class of verl's builders, tokenising only what new messages add where its tokenizer is in pieces."""

    class Appending(kind):
        def render_delta_token_id(
            self, prefix_messages: list[Message], appended_messages: list[Message], **options: Any
        ) -> list[int]:
            try:
                every = {"tools": None, "add_generation_prompt": False, **self.chat_template_kwargs, **options}
                ids = self.tokenizer.appended_ids(prefix_messages, appended_messages, **every)
            except Exception:  # the template's boundary: what it refuses, verl renders in another way
                ids = None
            return super().render_delta_token_id(prefix_messages, appended_messages, **options) if ids is None else ids

    return Appending


def _merges_plainly(builder: Any) -> bool:
    """Whether new messages follow the context as they are, as in verl's general builder."""
    from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

    return type(builder)._merge_context_token_ids is ContinuousTokenBuilder._merge_context_token_ids


def _valid(tokens: Iterable[int | None]) -> list[int]:
    return [token for token in tokens if isinstance(token, int) and token >= 0]
