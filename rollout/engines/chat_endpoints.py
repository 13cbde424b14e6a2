"""Chat APIs as policies: OpenAI's `/chat/completions`, which others have as well."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import structlog
from pydantic import BaseModel, ValidationError

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.mcp_wire.chat_api import Completion, with_options
from mcp_rollout.mcp_wire.control_text import break_control_text
from mcp_rollout.rollout.engines.api_names import with_api_names
from mcp_rollout.rollout.engines.chat import ChatEngine, Reply
from mcp_rollout.rollout.engines.engine import Engine, EngineOptions
from mcp_rollout.rollout.engines.http import EngineHttp, Lost
from mcp_rollout.rollout.engines.sampling import SamplingParameters
from mcp_rollout.rollout.errors import ContextExceeded, EngineError
from mcp_rollout.rollout.formats import find_format
from mcp_rollout.rollout.formats.format import Format
from mcp_rollout.rollout.types import Call, Message

log = structlog.get_logger(__name__)

CHAT_API = "chat:"
"""How `--engine` begins for a chat API; its base address follows, as in `chat:https://api.example.com/v1`."""
MODELS_SHOWN = 10
"""Of a server that lists more, in an error."""

_PATH = "/chat/completions"
_CUT = ("length", "max_tokens", "model_length", "max_output_tokens", "model_context_window_exceeded")
"""How APIs say that a limit ended a turn."""
_FIRST_THOUGHT = re.compile(r"\s*<think>((?:(?!</think>).)*)(?:</think>|\Z)|((?:(?!</?think>).)*)</think>", re.DOTALL)
"""A thought that begins a text; its opening marker may be in the prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatEndpoint:
    """A chat API and the settings of its requests."""

    http: EngineHttp
    model: str
    sampling: SamplingParameters
    max_tokens: int | None
    """Of one turn, in the API's tokens; None leaves it to the API."""
    body: Mapping[str, Any]
    """Further keys of every request, which go above all others; null removes one."""
    format: Format | None = None
    """In which the text has calls, of a server that does not parse them; None where only the API's own field has."""
    usage: Counter[str] = field(default_factory=Counter[str])
    """What the API counted, summed by its own names."""
    refused: set[str] = field(default_factory=set[str])
    """Keys that the API has refused, which are not sent again."""

    async def complete(self, messages: list[Message], tools: list[dict[str, Any]], *, seed: int) -> Reply:
        """One turn by `POST /chat/completions`.

        Raises:
            ContextExceeded: the conversation is too long.
            EngineError: the API refuses otherwise, or answers in another form.
        """
        body: dict[str, Any] = {"model": self.model, "messages": messages, "tools": tools or None, "seed": seed}
        body |= {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p}
        # Not where it excludes nothing: OpenAI's own API does not know it.
        body |= {"top_k": self.sampling.top_k} if self.sampling.top_k > 0 else {}
        body |= {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        choice = (await self._unrefused(with_options(body, self.body))).choices[0]
        message, calls = choice.message, list[Call]()
        content, thinking = message.text, message.thinking
        # The API's own template renders its texts, and may find control tokens in them.
        attached: dict[str, Any]
        attached = {k: break_control_text(v) if isinstance(v, str) else v for k, v in message.further.items()}
        for call in message.calls:
            function: dict[str, Any] = dict(call.get("function") or {})
            name, arguments = function.pop("name", None), function.pop("arguments", None)
            calls.append(_call(str(name or ""), arguments or function.get("parameters")))
            attached.setdefault("tool_calls", []).append({**call, "function": function})
        if self.format is not None:
            read = self.format.read(content, tools)
            content, thinking = read.content, thinking or read.thinking
            calls += read.calls
        elif isinstance(message.content, list) and thinking:
            attached["content"] = message.content
        elif not thinking and (found := _FIRST_THOUGHT.match(content)):
            # Of servers without a parser for thoughts. Some models (MiniMax) need it where it was.
            thought, said = found[1] or found[2] or "", content[found.end() :]
            attached["content"] = f"<think>{break_control_text(thought)}</think>{break_control_text(said)}"
            content, thinking = said.strip(), thought.strip()
        is_cut = (choice.finish_reason or "").lower() in _CUT
        return Reply(content=content, thinking=thinking, calls=calls, attached=attached, is_cut=is_cut)

    async def _unrefused(self, body: Mapping[str, Any]) -> Completion:
        """Post, once more without those keys that are not the user's and that the API's refusal names.

        They are left out of all later requests as well, if that helps.
        """
        sent = _without(body, self.refused)
        try:
            return await self._post(sent)
        except EngineError as error:
            own = {key for message in sent["messages"] if message["role"] == "assistant" for key in message}
            own = own - {"role", "content", "tool_calls"} | {"seed"} & sent.keys()
            named = {key for key in own if re.search(rf"\b{re.escape(key)}\b", str(error))}
            if isinstance(error, Lost | ContextExceeded) or not named:
                raise
            answer = await self._post(_without(sent, named))
            if not named <= self.refused:
                event = "the API refuses keys, which are no longer sent: without a seed two runs can differ"
                log.warning(event, keys=sorted(named), error=str(error))
            self.refused.update(named)
            return answer

    async def _post(self, body: Mapping[str, Any]) -> Completion:
        """Post, again while the API is busy or lost: a turn has no effect but its cost."""
        seconds = self.http.timeouts.generate_timeout_s
        try:
            # Around all attempts and their pauses, so that a turn has one bound.
            with anyio.fail_after(seconds):
                answer = await self.http.retried(partial(self.http.post_for, Completion, _PATH, body))
        except TimeoutError as error:
            raise EngineError(f"{self.http.url}{_PATH}: no answer within generate_timeout_s={seconds:g}") from error
        for name, count in (answer.usage or {}).items():
            # Details, such as cached tokens, are objects, and are contained in the totals.
            if isinstance(count, int):
                self.usage[name] += count
        return answer


def _call(name: str, arguments: object) -> Call:
    """A call with its arguments as they came, which the loop parses: they can be broken JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return Call(name=name, as_text=text.strip() or "{}")


def _without(body: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The body of a request without these keys, and its messages without them."""
    messages = [{key: value for key, value in message.items() if key not in keys} for message in body["messages"]]
    return {key: value for key, value in body.items() if key not in keys} | {"messages": messages}


@asynccontextmanager
async def opened_endpoint(options: EngineOptions) -> AsyncGenerator[Engine]:
    """The engine of a chat API, which must be reachable.

    Raises:
        ConfigError: nothing answers at the address, the key is refused, or the model has to be named.
    """
    url = options.engine.removeprefix(CHAT_API)
    if not url.startswith(("http://", "https://")):
        remedy = "the base address of the API, as in chat:https://api.example.com/v1"
        raise ConfigError(f"{url!r} is not an address", key="--engine", remedy=remedy)
    http = EngineHttp(url.rstrip("/"), options.timeouts, api_key=options.api_key, max_requests=options.max_requests)
    async with aclosing(http):
        model = await _served_model(http, options.model)
        endpoint = ChatEndpoint(
            http=http,
            model=model,
            sampling=options.sampling,
            max_tokens=options.max_tokens,
            body=options.body,
            format=find_format(options.tool_format, key="--tool-format") if options.calls_in_text else None,
        )
        yield ChatEngine(
            name=f"{CHAT_API}{model}",
            complete=with_api_names(endpoint.complete),
            usage=endpoint.usage,
            seed=options.sampling.seed,
        )


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Model] = []


async def _served_model(http: EngineHttp, named: str | None) -> str:
    """The model that was named, or else the only one that the API lists.

    Raises:
        ConfigError: nothing answers, the key is refused, or none is named where the API does not list exactly one.
    """
    listed = await http.look_up("/models")  # also where one is named: a wrong address is found before the run
    if named is not None:
        return named
    try:
        models = [model.id for model in _Models.model_validate(listed or {}).data]
    except ValidationError:
        models = []
    if len(models) != 1:
        problem = f"{http.url} lists {len(models) or 'no'} models"
        remedy = f"name one{': ' + ', '.join(models[:MODELS_SHOWN]) if models else ''}"
        raise ConfigError(problem, key="--model", remedy=remedy)
    return models[0]
