"""Groups of trajectories over in-process servers, played side by side as verl's worker plays them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent
from worlds import ROLE, environment, opened, task

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.group import Group
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call, Completion, Policy

TOKENS = ByteTokens()
Say = Callable[[int, int], str]
"""(sample, turn) -> what the policy says."""


@dataclass
class Engine:
    """Says what `say` tells it, with a log-probability of its own for each token, and keeps a log of its requests."""

    say: Say
    surprisal: Callable[[int], float] = lambda turn: 1.0
    step: float = 1e-3
    """How much the log-probability falls from one token to the next."""
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
        logprobs = [-self.engine.surprisal(turn) - self.engine.step * place for place in range(len(said))]
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


def key(ctx: Context) -> str:
    return (ctx.request_context.meta or {})["mcp-rollout/trajectory"]


TURNS = 4


class World:
    """`add` adds to a trajectory's number; `seen` has all calls by trajectory. The score is a tenth of the number."""

    def __init__(self, *, answer: Any = None, snapshots: bool = False) -> None:
        self.server = MCPServer("world", log_level="ERROR")
        self.numbers: dict[str, int] = {}
        self.seen = Counter[str]()
        self.restored = 0
        server, numbers = self.server, self.numbers

        @server.tool(name="reset", meta={ROLE: "reset"}, structured_output=False)
        async def reset(task: str, seed: int, ctx: Context) -> str:
            numbers[key(ctx)] = 0
            return "{}"

        @server.tool(structured_output=False)
        async def add(number: int, ctx: Context) -> CallToolResult:
            """Add to the number."""
            self.seen[key(ctx)] += 1
            numbers[key(ctx)] += number
            text, meta = (answer or (lambda total: (f"{total}", {})))(numbers[key(ctx)])
            return CallToolResult(content=[TextContent(type="text", text=text)], _meta=meta)

        @server.tool(name="score", meta={ROLE: "score"})
        async def score(messages: list[dict[str, Any]], ctx: Context) -> dict[str, Any]:
            return {"score": numbers[key(ctx)] / 10, "parts": {}}

        if snapshots:

            @server.tool(name="snapshot", meta={ROLE: "snapshot"})
            async def snapshot(ctx: Context) -> dict[str, Any]:
                return {"state": {"number": numbers[key(ctx)]}}

            @server.tool(name="restore", meta={ROLE: "restore"}, structured_output=False)
            async def restore(state: dict[str, Any], ctx: Context) -> str:
                self.restored += 1
                numbers[key(ctx)] = state["number"]
                return "{}"


def adding(number: int) -> str:
    return hermes.write(thinking="hm", calls=[Call(name="add", arguments={"number": number})])


def same(sample: int, turn: int) -> str:
    """Every leaf says the same."""
    return adding(turn + 1) if turn < TURNS - 1 else "Done."


def own(sample: int, turn: int) -> str:
    """Every leaf says something of its own."""
    return adding(10 * sample + turn + 1) if turn < TURNS - 1 else f"Done, says {sample}."


SCORED = {"reward": {"server": "world"}}


def check_against(engine: Engine, traces: dict[int, Trace]) -> None:
    """Every sampled token is the engine's, in the context in which it was sampled, and was sampled once."""
    by_context = {tuple(each["prompt_ids"]): list[dict[str, Any]]() for each in engine.log}
    for each in engine.log:
        by_context[tuple(each["prompt_ids"])].append(each)
    owners = {trace.id: sample for sample, trace in traces.items()}
    for sample, trace in traces.items():
        for turn in range(len(trace.turns)):
            sampled = [span for span in trace.spans if span.turn == turn and span.kind.is_sampled]
            begin, end = sampled[0].start, sampled[-1].end
            context = tuple(trace.prompt_ids + trace.response_ids[:begin])
            is_shared = turn < trace.strategy.shared_turns
            said_by = owners[trace.origin.parent] if is_shared and trace.origin.parent else sample
            (found,) = [each for each in by_context[context] if each["sample"] == said_by]
            assert trace.response_ids[begin:end] == found["token_ids"]
            assert trace.logprobs[begin:end] == found["log_probs"]
            assert trace.loss_mask[begin:end] == [1] * (end - begin)
    generated = sum(len(trace.turns) - trace.strategy.shared_turns for trace in traces.values())
    assert len(engine.log) == generated  # nothing was sampled that no leaf has, and no beginning twice
