"""Playing the rows of a run concurrently, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from uuid import uuid4

import anyio
import structlog

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.chat import BUDGET, ChatEngine
from mcp_rollout.rollout.engines.engine import Engine
from mcp_rollout.rollout.engines.recorded import RecordedEngine
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.evaluation.resume import RunKey
from mcp_rollout.rollout.loop.group import PLAYED_EARLIER, Group
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import TokenIds
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Policy

log = structlog.get_logger(__name__)

DEFAULT_RESPONSE_TOKENS = 65536
MOST_JOBS = 1_000_000
"""Trajectories of an environment in one run, which are held in memory."""


@dataclass(frozen=True, slots=True)
class Job:
    """One trajectory to play."""

    environment: Environment
    task: Task
    origin: Origin

    def at_attempt(self, attempt: int) -> Job:
        """The same trajectory, played once more."""
        return replace(self, origin=self.origin.model_copy(update={"attempt": attempt}))

    @property
    def row(self) -> tuple[str, int]:
        """The group that the trajectory belongs to."""
        return self.environment.name, self.origin.row

    @property
    def key(self) -> RunKey:
        return RunKey.of(self.task, self.origin)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Token limits of the run and its engine, which apply beside the environment's own."""

    response_tokens: int
    tokens_per_turn: int | None = None
    context_tokens: int | None = None
    are_bytes: bool = False
    """The engine gives no tokens, so that lengths are in bytes: environments' limits in tokens do not apply."""

    def limits(self, environment: Environment) -> Limits:
        """Combine with an environment's limits; of two limits of a turn the smaller one applies."""
        own = environment.limits
        turn = [tokens for tokens in (own.tokens_per_turn, self.tokens_per_turn) if tokens is not None]
        turn = [] if self.are_bytes else turn
        return Limits.of(
            own.model_copy(update={"tokens_per_turn": min(turn, default=None)}),
            response_tokens=self.response_tokens,
            context_tokens=self.context_tokens,
        )


def counted(environment: Environment, engine: Engine) -> Environment:
    """The environment with the lengths of compaction as the engine's run counts them."""
    if engine.token_ids is TokenIds.MODEL or environment.strategy.use is not Strategy.COMPACT:
        return environment
    strategy = environment.strategy.model_copy(update={"compact": environment.strategy.compact.in_bytes})
    return environment.model_copy(update={"strategy": strategy})


def lengths_for(engine: Engine, *, response_tokens: int | None, tokens_per_turn: int | None) -> Lengths:
    """The limits of a run with this engine.

    Args:
        response_tokens: None for `DEFAULT_RESPONSE_TOKENS`, or what the engine's context has room for if that is less.
        tokens_per_turn: for an engine that gives text only this is the engine's own limit, and none of the run.
    """
    if isinstance(engine, ChatEngine) or (isinstance(engine, RecordedEngine) and engine.is_chat):
        return Lengths(response_tokens=response_tokens or BUDGET, are_bytes=True)
    most = min(DEFAULT_RESPONSE_TOKENS, engine.context_tokens or DEFAULT_RESPONSE_TOKENS)
    return Lengths(
        response_tokens=response_tokens or most,
        tokens_per_turn=tokens_per_turn,
        context_tokens=engine.context_tokens,
    )


def jobs_of(environment: Environment, tasks: Sequence[Task], samples: int, engine: str, split: str = "") -> list[Job]:
    """The trajectories to play: row by row, each with all of its samples.

    Raises:
        ConfigError: there are more than `MOST_JOBS`.
    """
    if len(tasks) * samples > MOST_JOBS:
        problem = f"{len(tasks)} rows of {environment.name} with {samples} each are more than {MOST_JOBS} trajectories"
        raise ConfigError(problem, key="--samples", remedy="give fewer, or fewer rows (-n)")
    return [
        Job(environment, task, Origin(row=row, sample=sample, engine=engine, split=split))
        for row, task in enumerate(tasks)
        for sample in range(samples)
    ]


def _groups(jobs: Sequence[Job], seed: int) -> dict[tuple[str, int], Group]:
    """A group for each row of an environment that grows trees, with the row's jobs as its members.

    Jobs are taken in order, so the roots of a branch have been taken before it. Those that an earlier run played are
    not there to be branched at.
    """
    rows: dict[tuple[str, int], list[Job]] = {}
    for job in jobs:
        if job.environment.strategy.use is Strategy.TREE:
            rows.setdefault(job.row, []).append(job)
    groups: dict[tuple[str, int], Group] = {}
    for row, own in rows.items():
        samples = {job.origin.sample for job in own}
        groups[row] = group = Group(max(samples) + 1, "/".join(map(str, row)), seed=seed)
        for sample in set(range(group.size)) - samples:
            group.leave(sample, reason=PLAYED_EARLIER)
    return groups


async def play_all(
    jobs: Iterable[Job],
    *,
    gateways: dict[str, Gateway],
    engine: Engine,
    lengths: Lengths,
    store: TraceStore,
    concurrency: int,
    finished: Callable[[Trace], None],
    runs: Mapping[str, str] = MappingProxyType({}),
    seed: int = 0,
) -> None:
    """Play every job.

    Args:
        gateways: By the environment's name.
        concurrency: Trajectories at a time, of all environments together.
        finished: Takes each trace after it has been written to disk.
        runs: Names of the run records, by the environment's name.
        seed: Seed of the run, for the branching points of trees; the engine has its own.
    """
    listed = list(jobs)
    todo, groups = iter(listed), _groups(listed, seed)

    async def player() -> None:
        # One iterator for all players, so that each job is taken once, by whichever player is free.
        for job in todo:
            trace = Trace.begin(uuid4().hex, job.task, job.origin)
            trace.run = runs.get(job.environment.name, "")

            async def policy_for(session: Session, job: Job = job, trace: Trace = trace) -> Policy:
                # The trace's own origin: a leaf of a tree that diverged begins again as another attempt.
                return await engine.policy(session, job.environment, job.task, trace.origin)

            try:
                await roll_out(
                    trace,
                    environment=counted(job.environment, engine),
                    gateway=gateways[job.environment.name],
                    policy_for=policy_for,
                    tokens=engine.tokens(),
                    limits=lengths.limits(job.environment),
                    store=store,
                    group=groups.get(job.row),
                )
            except ConfigError:  # no more traces can be written
                raise
            except Exception as error:  # boundary: as in training, a defect of this program costs one trajectory
                log.exception("trajectory could not be played", trajectory=trace.id)
                trace.fail("internal_error", f"{type(error).__name__}: {error}")
            finished(trace)

    async with anyio.create_task_group() as players:
        for _ in range(concurrency):
            players.start_soon(player)
