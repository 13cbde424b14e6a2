"""Whole environments as their YAML files state them, played by policies without a model."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import third_party
from mcp.server.mcpserver import MCPServer

from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.random_arguments import random_arguments
from mcp_rollout.rollout.engines.scripted import RandomPolicy, ScriptedPolicy, expert_script
from mcp_rollout.rollout.environment.config import Environment, load_environment
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import PolicyFor, roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call, Completion, Policy

ENVIRONMENTS = Path(__file__).parents[2] / "configs" / "environments"


@dataclass
class Stage:
    """An environment with its servers running."""

    environment: Environment
    gateway: Gateway
    traces: Path
    directories: dict[str, str] = field(default_factory=dict)
    """By trajectory, the directory of its lease."""
    _listed: dict[tuple[str, int | None], list[Task]] = field(default_factory=dict)
    """By split and count: a list takes a lease, which may start processes."""

    async def tasks(self, split: str, count: int | None = None) -> list[Task]:
        if (split, count) not in self._listed:
            self._listed[split, count] = await environment_tasks(self.environment, self.gateway, split, count)
        return self._listed[split, count]

    async def play(self, task: Task, policy_for: PolicyFor) -> Trace:
        async def noted(session: Session) -> Policy:
            self.directories[session.trajectory] = str(session.lease_dir or "")
            return await policy_for(session)

        trace = await roll_out(
            Trace.begin(uuid4().hex, task, Origin()),
            environment=self.environment,
            gateway=self.gateway,
            policy_for=noted,
            tokens=ByteTokens(),
            limits=Limits.of(self.environment.limits, response_tokens=1_000_000),
            store=TraceStore(self.traces),
        )
        assert trace.failure is None, trace.failure
        return trace

    def heard(self, trace: Trace) -> list[str]:
        """What was said, without the name of the trajectory's directory, which is another one each time."""
        texts = [json.dumps(message) for message in trace.messages]
        directory = self.directories[trace.id]
        return [text.replace(directory, "DIRECTORY") if directory else text for text in texts]

    def engine(self, name: str, task: Task) -> PolicyFor:
        """`expert`, `random` or `none`, as `mcp-rollout run --engine` has them, or `chatter`."""

        async def policy_for(session: Session) -> Policy:
            encode = ByteTokens().encode
            if name == "random":
                return RandomPolicy(session, encode, stop=IM_END, seed=task.seed * 1000)
            if name == "chatter":
                return Chatter(session, seed=task.seed * 1000)
            assert self.environment.tasks is not None
            script = await expert_script(session, task, self.environment.tasks.server) if name == "expert" else []
            return ScriptedPolicy(script, encode, stop=IM_END)

        return policy_for

    async def mean(self, engine: str, tasks: Sequence[Task]) -> float:
        scores = [score_of(await self.play(task, self.engine(engine, task))) for task in tasks]
        return sum(scores) / len(scores)


class Chatter:
    """Every other turn it calls a random tool, mostly with words that it has read for text, and else it speaks to the
    user: words and values that it has read, at times in the form of an answer."""

    def __init__(self, session: Session, *, seed: int) -> None:
        self._random = Random(seed)
        self._tools = sorted(session.tools.values(), key=lambda tool: tool.exposed_name)

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        rng, read = self._random, re.findall(r"[\w@.:#$/-]+", ByteTokens().decode(ids)) or ["Hello"]
        if rng.random() < 0.5 or not self._tools:
            many = " ".join(rng.choice(read) for _ in range(rng.randint(1, 40)))
            text = f"Answer: {rng.choice(read)}" if rng.random() < 0.2 else many
        else:
            tool = rng.choice(self._tools)
            arguments = random_arguments(tool.input_schema, rng)
            for key, value in arguments.items():
                if isinstance(value, str) and rng.random() < 0.7:
                    arguments |= {key: rng.choice(read)}
            text = hermes.write(calls=[Call(name=tool.exposed_name, arguments=arguments)])
        return await ScriptedPolicy([text], ByteTokens().encode, stop=IM_END).generate(
            ids, max_tokens=max_tokens, turn=0
        )


class Watched:
    """A policy that asks before each of its turns."""

    def __init__(self, policy: Policy, before: Any) -> None:
        self._policy, self._before = policy, before

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        await self._before(turn)
        return await self._policy.generate(ids, max_tokens=max_tokens, turn=turn)


def score_of(trace: Trace) -> float:
    assert trace.reward is not None
    return trace.reward.score


def read_environment(name: str) -> Environment:
    """As on disk, except that npm's servers are the pinned ones of tests/third_party, which need no network.

    Beside them, a harness with a process for each trajectory is forked: importing it again takes a second.
    """
    environment = load_environment(name, ENVIRONMENTS)
    servers = dict(environment.servers)
    for server, entry in servers.items():
        if entry.command == "npx":
            package = entry.args[1].removeprefix("@modelcontextprotocol/").partition("@")[0]
            pinned = third_party.npm(package, *entry.args[2:])
            servers[server] = entry.model_copy(update={"command": pinned["command"], "args": tuple(pinned["args"])})
        elif entry.scope == "process":
            servers[server] = entry.model_copy(update={"start": "fork"})
    return environment.model_copy(update={"servers": servers})


@asynccontextmanager
async def staged(name: str, traces: Path, *, within: dict[str, MCPServer] | None = None) -> AsyncIterator[Stage]:
    """The environment over processes of its own; servers in `within` run in this one."""
    environment = read_environment(name)
    connect = None if within is None else lambda _, server: within.get(server)
    async with Gateway(environment, connect=connect) as gateway:
        yield Stage(environment, gateway, traces)
