"""Policies and the engine without a model: the environment's expert, random calls, and empty turns.

They show whether an environment can be solved, and how it scores a policy that does nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pydantic import BaseModel

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role
from mcp_rollout.rollout.engines.random_arguments import random_arguments
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import call_harness
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.run_record import TokenIds
from mcp_rollout.rollout.types import Call, Completion, FinishReason, Policy, TokenBuilder

WITHOUT_MODEL = ("expert", "random", "none")

Encode = Callable[[str], list[int]]
"""(a completion's text, its end-of-turn marker included) -> token ids."""


class ScriptedPolicy:
    """Generates the given texts, turn by turn; each token has probability 1, so every logprob is 0.

    After the last text every turn is empty. A turn that is generated again continues.
    """

    def __init__(self, texts: Sequence[str], encode: Encode, *, stop: str) -> None:
        self._texts, self._encode, self._stop = texts, encode, stop
        self._turn, self._left, self._so_far = -1, list[int](), list[int]()

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if turn != self._turn or ids[: len(self._so_far)] != self._so_far:  # perhaps beside a program's conversation
            text = self._texts[turn] if turn < len(self._texts) else ""
            self._turn, self._left = turn, self._encode(text + self._stop)
        completion = _completion(self._left, max_tokens)
        self._left, self._so_far = self._left[len(completion.ids) :], [*ids, *completion.ids]
        return completion


class RandomPolicy:
    """Calls a uniformly chosen tool with random arguments that its schema allows, one call a turn."""

    def __init__(self, session: Session, encode: Encode, *, stop: str, seed: int) -> None:
        # By name, since a server may list its tools in another order the next time, and the same seed has to choose the
        # same calls.
        self._tools = sorted(session.tools.values(), key=lambda tool: tool.exposed_name)
        self._random = random.Random(seed)
        self._encode, self._stop = encode, stop

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        calls: list[Call] = []
        if self._tools:
            tool = self._random.choice(self._tools)
            calls = [Call(name=tool.exposed_name, arguments=random_arguments(tool.input_schema, self._random))]
        return _completion(self._encode(hermes.write(calls=calls) + self._stop), max_tokens)


class _ScriptTurn(BaseModel):
    thinking: str = ""
    content: str = ""
    calls: list[Call] = []


class _Script(BaseModel):
    turns: list[_ScriptTurn]


async def expert_script(session: Session, task: Task, server: str) -> list[str]:
    """The expert's completions as hermes text, from the `expert` tool of `server`.

    Raises:
        HarnessError: the server has no `expert`, refused, or violated the contract.
        GatewayError: the world broke.
    """
    script, _ = await call_harness(session, Role.EXPERT, {"task": task.task, "seed": task.seed}, _Script, server=server)
    return [hermes.write(thinking=turn.thinking, content=turn.content, calls=turn.calls) for turn in script.turns]


class WithoutModel:
    """An engine for `expert` (the environment's own script), `random` (random calls) or `none` (empty turns)."""

    context_tokens: int | None = None
    token_ids = TokenIds.BYTES

    def __init__(self, kind: str, *, seed: int = 0) -> None:
        """`seed` is the run's; with the row's and the sample it seeds `random`."""
        self.name = kind
        self._seed = seed
        self.notes: list[str] = []
        self._tokens = ByteTokens()

    def tokens(self) -> TokenBuilder:
        return self._tokens

    def check(self, environment: Environment) -> None:
        """Raises ConfigError for `expert` in an environment that has none."""
        if self.name == "expert" and not _expert_of(environment):
            remedy = "name the server with the `expert` tool there, or choose another engine: random, none or a model's"
            raise ConfigError("the environment has no expert", file=environment.file, key="tasks.server", remedy=remedy)

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        encode = self._tokens.encode
        if self.name == "expert" and (server := _expert_of(environment)):
            script = await expert_script(session, task, server)
            return ScriptedPolicy(script, encode, stop=IM_END)
        if self.name == "random":
            # Above all bits of the rest: with the run's seed 0, row and sample alone decide.
            seed = (self._seed << 64) + task.seed * 1000 + origin.sample
            return RandomPolicy(session, encode, stop=IM_END, seed=seed)
        return ScriptedPolicy([], encode, stop=IM_END)


def _completion(ids: list[int], max_tokens: int) -> Completion:
    if max_tokens < 1:
        raise EngineError(f"asked for {max_tokens} tokens")
    reason = FinishReason.STOP if len(ids) <= max_tokens else FinishReason.LENGTH
    ids = ids[:max_tokens]
    return Completion(ids=ids, logprobs=[0.0] * len(ids), finish_reason=reason)


def _expert_of(environment: Environment) -> str | None:
    return environment.tasks.server if environment.tasks else None
