"""Score stored traces again: under a changed `reward:`, and with a cassette by a changed `score` tool."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel
from pydantic import ValidationError

from mcp_rollout.gateway.cassette.lines import RecordedCall
from mcp_rollout.gateway.cassette.reading import Cassette, CassetteLease, lease_key
from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.reward_config import CUSTOM_PART, Component, RewardConfig
from mcp_rollout.rollout.environment.sections import FilterAction, FiltersConfig, Overlong
from mcp_rollout.rollout.errors import RewardError
from mcp_rollout.rollout.loop.filters import penalty_share
from mcp_rollout.rollout.loop.reward import Judged, judge, own_parts, weigh
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.outcome import ROUNDING
from mcp_rollout.rollout.trace.record import Reward, Trace
from mcp_rollout.rollout.trace.run_record import RunRecord, environment_identity
from mcp_rollout.rollout.trace.store import TraceStore

_DIGITS = 12
"""Decimal places of a server's score that is computed back from a sum of floats."""
_NOT_SENT = frozenset({Role.RESET, Role.SCORE, Role.TASKS, Role.EXPERT, Role.ELICIT})
"""Roles of recorded calls that are not sent again: the lease resets, and servers ask their questions again."""
_FILTERS = {MarkKind.VOID: "void", MarkKind.REPEATED_CALL: "repeated_calls", MarkKind.LONG_THINKING: "long_thinking"}
_OF_TURNS = ("limits", "thinking", "results", "strategy")
"""Sections of an environment that shape turns, and not what they earn."""


class NotRescored(Exception):
    """The inputs of the new reward were not recorded; the message says which."""


@dataclass(kw_only=True, slots=True)
class Rescored:
    """What became of the traces."""

    done: int = 0
    changed: int = 0
    """Of those, with another reward than before."""
    before: float = 0.0
    """Sum of the earlier rewards of the rescored traces."""
    after: float = 0.0
    differing_calls: int = 0
    """Calls that servers answered otherwise than recorded."""
    calls: int = 0
    not_done: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Ids of the others by reason."""


Judge = Callable[[Trace], Awaitable[Judged]]


async def rescore(
    traces: Iterable[Trace],
    environment: Environment,
    records: Mapping[str, RunRecord],
    store: TraceStore,
    *,
    judgements: Path,
    judged: Judge | None = None,
    concurrency: int = 8,
    finished: Callable[[], None] = lambda: None,
) -> Rescored:
    """Write each trace with its reward under `environment` to `store`; the rest of the record stays as it is.

    Args:
        records: run records of the traces, by name.
        judgements: the directory of a rubric's judgements; the same conversation is not judged again.
        judged: gives the server's score now; None takes the recorded one.
        finished: called after each trace.
    """
    total, runs = Rescored(), dict[str, str]()
    todo = iter(traces)

    async def player() -> None:
        for trace in todo:
            try:
                record = records.get(trace.run)
                reward = await _reward(trace, environment, record, judged, judgements)
            except (NotRescored, ConfigError, GatewayError, RewardError) as error:
                total.not_done.setdefault(str(error), []).append(trace.id)
            else:
                assert trace.reward is not None
                if record is not None and trace.run not in runs:
                    runs[trace.run] = store.describe(_new_record(record, environment))
                total.done += 1
                total.changed += abs(reward.score - trace.reward.score) > ROUNDING
                total.before, total.after = total.before + trace.reward.score, total.after + reward.score
                again = copy.copy(trace)
                again.reward, again.run = reward, runs.get(trace.run, "")
                store.append(again)
            finished()
            # Often nothing else here waits, and the display of the progress would stand still.
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as players:
        for _ in range(concurrency):
            players.start_soon(player)
    return total


async def _reward(
    trace: Trace, environment: Environment, record: RunRecord | None, judged: Judge | None, judgements: Path
) -> Reward:
    if trace.task.environment != environment.name:
        raise NotRescored(f"is of environment {trace.task.environment}")
    if trace.reward is None:
        raise NotRescored("has no reward: it was withdrawn")
    if record is None:
        raise NotRescored("its run record is missing, which has the settings of its reward")
    if CUSTOM_PART in trace.reward.parts:
        raise NotRescored("its reward has a part of the trainer's own reward function, which is not called here")
    penalty = _penalty(trace, environment.filters, record)
    given = await judged(trace) if judged else await recorded_score(trace, environment, record)
    own = await own_parts(environment, trace, given, judgements)
    return await weigh(environment.reward, trace, given, own, penalty)


async def recorded_score(trace: Trace, environment: Environment, record: RunRecord) -> Judged:
    """The server's score as it was, computed back from the stored reward.

    Raises:
        NotRescored: it cannot be, or the server would now score something else.
    """
    assert trace.reward is not None
    new = environment.reward
    if new.server is None:
        return Judged(score=0.0)
    try:
        old = RewardConfig.model_validate(record.environment["reward"])
    except (ValidationError, KeyError) as error:
        raise NotRescored("its run record has no settings of the reward that this program reads") from error
    remedy = "needs a cassette and the server"
    if new.server != old.server:
        raise NotRescored(f"reward.server was {old.server}: {remedy}")
    if record.environment.get("thinking", {}).get("reward") != environment.thinking.reward:
        raise NotRescored(f"thinking.reward has changed, and with it what the server scores: {remedy}")
    parts = {name: trace.reward.parts[name] for name in old.parts if name in trace.reward.parts}
    if missing := [name for name in new.parts if name not in parts]:
        raise NotRescored(f"the server gave no part {', '.join(missing)} then: {remedy}")
    weight, score = old.weight(Component.SCORE), 0.0
    if weight:
        # The sum without the server's own score, which is added last and so rounds as the recorded sum did.
        own = {name: trace.reward.parts[name] for name in old.own_components}
        rest = (await weigh(old, trace, Judged(score=0.0, parts=parts), own, trace.reward.penalty)).score
        score = round((trace.reward.score - rest) / weight, _DIGITS)
        again = (await weigh(old, trace, Judged(score=score, parts=parts), own, trace.reward.penalty)).score
        if abs(again - trace.reward.score) > ROUNDING:
            raise NotRescored(f"the stored reward is not the sum of its parts: {remedy}")
    elif new.weight(Component.SCORE):
        raise NotRescored(f"the score had weight 0 then, and was not recorded: {remedy}")
    return Judged(score=score, parts={name: parts[name] for name in new.parts})


def _penalty(trace: Trace, filters: FiltersConfig, record: RunRecord) -> float:
    """The filters' penalties by the marks that the trace has.

    Raises:
        NotRescored: a filter matches other turns now.
    """
    before: dict[str, dict[str, Any]] = record.environment.get("filters", {})
    penalty = 0.0
    for kind, name in _FILTERS.items():
        now = getattr(filters, name)
        if now.action is not FilterAction.PENALISE:
            continue
        for bound in ("times", "tokens"):
            if hasattr(now, bound) and before.get(name, {}).get(bound) != getattr(now, bound):
                raise NotRescored(f"filters.{name}.{bound} has changed, and the turns were marked by the old one")
        penalty += now.penalty * sum(mark.kind is kind for turn in trace.turns for mark in turn.marks)
    if filters.overlong.action is Overlong.PENALISE:
        if filters.overlong.last_share is not None:
            raise NotRescored("filters.overlong.last_share needs the tokens that were left, not recorded")
        penalty += filters.overlong.penalty * penalty_share(filters.overlong, trace.stop_reason, room=1.0)
    return penalty


def _new_record(record: RunRecord, environment: Environment) -> RunRecord:
    settings = {**record.settings, "rescored_from": record.name}
    # The turns are those of the old limits, thinking, results and strategy.
    now = {name: value for name, value in environment_identity(environment).items() if name not in _OF_TURNS}
    return replace(record, kind="rescored", environment={**record.environment, **now}, settings=settings)


class LiveScore:
    """Lets the servers score again: each world is rebuilt by the calls of a cassette, and then scored.

    Args:
        gateway: of the environment, with its servers running.

    Attributes:
        calls: number of calls that were sent again.
        differing: number of calls whose answers differ from the recorded ones.
    """

    def __init__(self, cassette: Cassette, environment: Environment, gateway: Gateway) -> None:
        self._cassette, self._environment, self._gateway = cassette, environment, gateway
        self.calls = self.differing = 0

    async def __call__(self, trace: Trace) -> Judged:
        """The score now. Raises NotRescored, GatewayError."""
        recorded, task = self._lease(trace), trace.task
        async with self._gateway.lease(trajectory=uuid4().hex, task=task.task, seed=task.seed) as session:
            for each in recorded.calls:
                if each.role not in _NOT_SENT:
                    await self._send(session, each.filled(session.trajectory), each.where)
            return await judge(self._environment, trace, session)

    def _lease(self, trace: Trace) -> CassetteLease:
        key = lease_key(self._environment.name, trace.task.task, trace.task.seed, trace.origin.identity)
        found = self._cassette.leases.get(key, [])
        if len(found) != 1:
            raise NotRescored(f"the cassette has {len(found)} recordings of it" if found else "is not in the cassette")
        return found[0]

    async def _send(self, session: Session, call: RecordedCall, where: str) -> None:
        self.calls += 1
        try:
            result = await session.send_as_recorded(call.server, call.tool, call.arguments)
        except KeyError as error:
            raise NotRescored(f"there is no tool {call.server}/{call.tool} any more") from error
        except GatewayError as error:
            if call.result is None:  # it failed then, too
                return
            raise NotRescored(f"{where}: fails now: {error}") from error
        recorded = call.result.result(0.0) if call.result else None
        self.differing += recorded is None or (result.text, result.is_error) != (recorded.text, recorded.is_error)
