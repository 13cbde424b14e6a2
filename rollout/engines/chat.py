"""Policies that take messages and return text: chat APIs and your own functions.

Such a policy has no token ids. The context is kept in bytes (`rollout.tokens.chatml`), whose markers only this library
writes, so it is read back into the messages that it was written from. Traces have no log-probabilities, and are left
out of exports that need a model's ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task, TurnSeeds
from mcp_rollout.rollout.errors import ContextExceeded
from mcp_rollout.rollout.formats.control_text import KNOWN
from mcp_rollout.rollout.tokens.chatml import ByteTokens, attached_to, split_messages, tools_of
from mcp_rollout.rollout.trace.run_record import TokenIds
from mcp_rollout.rollout.types import Call, Completion, FinishReason, Message, Policy, TokenBuilder

log = structlog.get_logger(__name__)

BUDGET = 4 * 2**20
"""Bytes of a trajectory after its prompt, by default: about a million tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One turn of a policy that writes text."""

    content: str = ""
    """Text, whatever it spells: a `<tool_call>` in it is not a call."""
    thinking: str = ""
    calls: Sequence[Call] = ()
    """A call's `as_text` has arguments as the policy wrote them; the loop parses and, if need be, refuses them."""
    attached: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further keys of the assistant's message, which later requests have too, as long as they have its thought; under
    `tool_calls` those of each call, in order. A `content` takes the place of the text."""
    is_cut: bool = False
    """Whether the turn ended at its own limit."""


Complete = Callable[..., Awaitable[Reply]]
"""(messages: `list[Message]`, OpenAI-style tool schemas: `list[dict[str, Any]]`) -> the policy's turn.

Messages are OpenAI's: `role`, `content`, an assistant's `tool_calls` with `arguments` as a JSON string, and a tool's
`tool_call_id`. Raises ContextExceeded where the conversation is too long, which ends the trajectory as `token_limit`,
and EngineError where the policy cannot answer, which withdraws it.
"""


@dataclass(frozen=True, kw_only=True)
class ChatEngine:
    """An engine whose policy is a function of messages and tools; it serves all trajectories of a run.

    Example:
        async def complete(messages, tools):
            return Reply(calls=[Call(name=tools[0]["function"]["name"], arguments={})])

        engine = ChatEngine(name="first-tool", complete=complete)
    """

    name: str
    complete: Complete
    usage: Counter[str] = field(default_factory=Counter[str])
    """Tokens as the policy's side counts them, by name; reported at the end of a run."""
    context_tokens: int | None = None
    token_ids: TokenIds = TokenIds.BYTES
    seed: int | None = None
    """Seed of the run; if given, `complete` gets each turn's own seed as the keyword `seed`."""

    @property
    def notes(self) -> list[str]:
        used = ", ".join(f"{count:,} {name}" for name, count in self.usage.items())
        lengths = f"{self.name} gives no token ids: lengths are bytes of text, and log-probabilities are left out"
        return [lengths, *([f"{self.name} counted {used}"] if used else [])]

    def tokens(self) -> TokenBuilder:
        return ByteTokens()

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        seeds = None if self.seed is None else TurnSeeds(origin, base=self.seed)
        return _ChatPolicy(self, session, task, seeds)


class _ChatPolicy:
    """One trajectory's turns: ids to messages, the reply to ids. A turn that is generated again continues."""

    def __init__(self, engine: ChatEngine, session: Session, task: Task, seeds: TurnSeeds | None) -> None:
        self._engine, self._session, self._task, self._seeds = engine, session, task, seeds
        self._tokens, self._so_far = ByteTokens(), list[int]()
        self._turn, self._left, self._is_cut = -1, list[int](), False

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        # A second generation of a turn, after its thinking budget, continues the reply: an API that is asked again
        # would give another one. A program may ask beside its conversation before the turn.
        if turn != self._turn or ids[: len(self._so_far)] != self._so_far:
            # Those of the prompt, which a program may have chosen, and those that a user's reply has named.
            named = [tool for name, tool in self._session.tools.items() if name in self._task.later_tools]
            tools = [*tools_of(ids), *(tool.openai_schema() for tool in named)]
            # The server renders them with a tokenizer that finds control tokens in any text.
            messages, shown = KNOWN.broken(await read_context(ids, self._tokens), tools)
            seed = {} if self._seeds is None else {"seed": self._seeds.next(turn)}
            told = _as_sent(messages, [attached_to(body) for _, body in split_messages(ids)])
            try:
                reply = await self._engine.complete(told, shown, **seed)
            except ContextExceeded as error:
                log.warning("the API's context is exceeded", turn=turn, error=str(error))
                return Completion(ids=[], finish_reason=FinishReason.LENGTH)
            self._left = self._tokens.encode_reply(
                thinking=reply.thinking, content=reply.content, calls=reply.calls, attached=reply.attached
            )
            self._left += [] if reply.is_cut else [self._tokens.stop_id]
            self._turn, self._is_cut = turn, reply.is_cut
        sampled, self._left = self._left[:max_tokens], self._left[max_tokens:]
        self._so_far = [*ids, *sampled]
        reason = FinishReason.LENGTH if self._is_cut or self._left else FinishReason.STOP
        return Completion(ids=sampled, finish_reason=reason)


async def read_context(ids: Sequence[int], tokens: ByteTokens) -> list[Message]:
    """The messages of a context in bytes that ends where the policy continues. Arguments of calls are objects."""
    messages: list[Message] = []
    open_calls: list[str] = []
    for role, body in split_messages(ids):
        if role == "assistant":
            parsed = await tokens.parse(body, ())
            # Nine letters and digits: Mistral's API takes no others.
            open_calls = [f"c{len(messages):04}{index:04}" for index in range(len(parsed.calls))]
            messages.append(_assistant(parsed.content, parsed.calls, open_calls))
        elif role == "tool" and open_calls:
            # Matched by order, since a context in bytes has no ids: results are appended in the order of the calls.
            messages.append({"role": role, "tool_call_id": open_calls.pop(0), "content": tokens.decode(body)})
        else:
            # Calls that a program tells anew may be fewer when they are read back, as behind a `<think>` in its text.
            # A chat API takes no result without a call.
            messages.append({"role": "user" if role == "tool" else role, "content": tokens.decode(body)})
    return messages


def _assistant(content: str, calls: Sequence[Call], call_ids: Sequence[str]) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call_id, call in zip(call_ids, calls, strict=True)
        ]
    return message


def _as_sent(messages: Sequence[Message], attached: Sequence[dict[str, Any]]) -> list[Message]:
    """Messages as chat APIs have them, with what is attached to each, and the API's ids of calls if they are unique."""
    ids: dict[str, str] = {}
    sent: list[Message] = []
    for message, further in zip(messages, attached, strict=True):
        calls: list[dict[str, Any]] = []
        attached_calls = further.pop("tool_calls", [])
        for index, call in enumerate(message.get("tool_calls", ())):
            own: dict[str, Any] = attached_calls[index] if index < len(attached_calls) else {}
            id = own.get("id")
            ids[call["id"]] = id if isinstance(id, str) and id and id not in ids.values() else call["id"]
            arguments = json.dumps(call["function"]["arguments"])
            function = {**own.get("function", {}), **call["function"], "arguments": arguments}
            calls.append({**own, **call, "id": ids[call["id"]], "function": function})
        further |= {"tool_calls": calls} if calls else {}
        further |= {"tool_call_id": ids[message["tool_call_id"]]} if "tool_call_id" in message else {}
        sent.append({**message, **further})
    return sent
