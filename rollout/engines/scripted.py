"""Policies without a model: the environment's own expert, a random one, and one that does nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pydantic import BaseModel

from gateway.leases.session import Session
from gateway.types import Role
from rollout.engines.random_arguments import random_arguments
from rollout.environment.harness import call_harness
from rollout.environment.task import Task
from rollout.errors import EngineError
from rollout.formats import hermes
from rollout.types import Call, Completion, FinishReason

Encode = Callable[[str], list[int]]
"""Text of a completion, its end-of-turn marker included, to token ids."""


class ScriptedPolicy:
    """Says what it was given, turn by turn; each token had probability 1, so every logprob is 0.

    After its last line it ends every turn at once, without a word. A turn that is asked for again goes on.
    """

    def __init__(self, texts: Sequence[str], encode: Encode, *, stop: str) -> None:
        self._texts, self._encode, self._stop = texts, encode, stop
        self._turn, self._left = -1, list[int]()

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if turn != self._turn:
            text = self._texts[turn] if turn < len(self._texts) else ""
            self._turn, self._left = turn, self._encode(text + self._stop)
        said = _completion(self._left, max_tokens)
        self._left = self._left[len(said.ids) :]
        return said


class RandomPolicy:
    """Calls a uniformly chosen tool with random arguments that its schema allows, one call a turn."""

    def __init__(self, session: Session, encode: Encode, *, stop: str, seed: int) -> None:
        self._tools = sorted(session.tools.values(), key=lambda tool: tool.exposed_name)
        self._random = random.Random(seed)
        self._encode, self._stop = encode, stop

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        calls: list[Call] = []
        if self._tools:
            tool = self._random.choice(self._tools)
            calls = [Call(name=tool.exposed_name, arguments=random_arguments(tool.input_schema, self._random))]
        return _completion(self._encode(hermes.write(calls=calls) + self._stop), max_tokens)


class _ScriptCall(BaseModel):
    name: str
    arguments: dict[str, object] = {}


class _ScriptTurn(BaseModel):
    thinking: str = ""
    content: str = ""
    calls: list[_ScriptCall] = []


class _Script(BaseModel):
    turns: list[_ScriptTurn]


async def expert_script(session: Session, task: Task, server: str) -> list[str]:
    """The expert's completions as hermes text, from the `expert` tool of `server`.

    Raises:
        HarnessError: the server has no `expert`, refused, or answered off contract.
        GatewayError: the world broke.
    """
    script, _ = await call_harness(session, Role.EXPERT, {"task": task.task, "seed": task.seed}, _Script, server=server)
    return [
        hermes.write(
            thinking=turn.thinking,
            content=turn.content,
            calls=[Call(name=call.name, arguments=dict(call.arguments)) for call in turn.calls],
        )
        for turn in script.turns
    ]


def _completion(ids: list[int], max_tokens: int) -> Completion:
    if max_tokens < 1:
        raise EngineError(f"asked for {max_tokens} tokens")
    reason = FinishReason.STOP if len(ids) <= max_tokens else FinishReason.LENGTH
    ids = ids[:max_tokens]
    return Completion(ids=ids, logprobs=[0.0] * len(ids), finish_reason=reason)
