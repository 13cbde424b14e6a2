"""Groups of trajectories over in-process servers, played side by side as verl's worker plays them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from worlds import environment, opened, task

from gateway.leases.session import Session
from rollout.environment.task import Origin
from rollout.loop.group import Group
from rollout.loop.limits import Limits
from rollout.loop.trajectory import roll_out
from rollout.tokens.chatml import IM_END, ByteTokens
from rollout.trace.record import Trace
from rollout.trace.store import TraceStore
from rollout.types import Completion, Policy

TOKENS = ByteTokens()
Say = Callable[[int, int], str]
"""(sample, turn) -> what the policy says."""


@dataclass
class Engine:
    """Says what `say` tells it, with a log-probability of its own for each token, and keeps a log of its requests."""

    say: Say
    surprisal: Callable[[int], float] = lambda turn: 1.0
    before: Callable[[int, int], Awaitable[None]] | None = None
    """Awaited with sample and turn before each generation; what it raises, the engine raises."""
    log: list[dict[str, Any]] = field(default_factory=list)

    def policy(self, sample: int) -> Policy:
        return _Seat(self, sample)


@dataclass
class _Seat:
    engine: Engine
    sample: int

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if self.engine.before is not None:
            await self.engine.before(self.sample, turn)
        said = TOKENS.encode(self.engine.say(self.sample, turn) + IM_END)
        logprobs = [-self.engine.surprisal(turn) - 1e-3 * place for place in range(len(said))]
        self.engine.log.append(
            {"sample": self.sample, "prompt_ids": list(ids), "token_ids": said, "log_probs": logprobs}
        )
        return Completion(ids=said, logprobs=logprobs, weights_version=(self.sample + 5, self.sample + 5))


async def grow(
    servers: Mapping[str, MCPServer],
    engine: Engine,
    directory: Path,
    *,
    leaves: int,
    tree: Mapping[str, Any],
    absent: Sequence[int] = (),
    scopes: dict[int, anyio.CancelScope] | None = None,
    limits: Limits | None = None,
    **fields: Any,
) -> dict[int, Trace]:
    """Play a group of `leaves`, all at once, and return its traces by sample.

    Args:
        absent: samples that never begin, as rows that cannot be parsed do not.
        scopes: gets the cancel scope of each trajectory.
    """
    made = environment(servers, strategy={"use": "tree", "tree": tree}, **fields)
    group, traces = Group(leaves, "group"), dict[int, Trace]()
    store = TraceStore(directory)

    async def play(sample: int) -> None:
        async def policy_for(_: Session) -> Policy:
            return engine.policy(sample)

        trace = traces[sample] = Trace.begin(f"leaf-{sample}", task(), Origin(sample=sample, uid="group"))
        with anyio.CancelScope() as scope:
            if scopes is not None:
                scopes[sample] = scope
            await roll_out(
                trace,
                environment=made,
                gateway=gateway,
                policy_for=policy_for,
                tokens=TOKENS,
                limits=limits or Limits(response_tokens=100_000),
                store=store,
                group=group,
            )

    async with opened(made, servers) as gateway:
        async with anyio.create_task_group() as tasks:
            for sample in range(leaves):
                if sample not in absent:
                    tasks.start_soon(play, sample)
            for sample in absent:
                group.leave(sample)
    return traces
