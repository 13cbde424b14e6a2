"""The examination: every clause by itself, over real servers, in trajectories of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from gateway.errors import ConfigError, GatewayError, HarnessError
from gateway.types import Role
from rollout.contract import clauses
from rollout.contract.answers import TaskItem
from rollout.contract.bench import Bench, Broken, Untested
from rollout.contract.report import Clause, ClauseResult, Outcome, Report, complete
from rollout.environment.config import Environment
from rollout.environment.startup import opened

Examine = Callable[[], Awaitable[str]]
_OWNERS: dict[str | None, Clause] = {
    Role.RESET: Clause.RESET,
    Role.START: Clause.OPENING,
    Role.REPLY: Clause.REPLY,
    Role.ELICIT: Clause.ELICIT,
    Role.SCORE: Clause.SCORE,
    Role.TASKS: Clause.TASKS,
    Role.EXPERT: Clause.EXPERT,
    Role.RELEASE: Clause.RELEASE,
    Role.SNAPSHOT: Clause.SNAPSHOT,
    Role.RESTORE: Clause.SNAPSHOT,
}
"""The clause that examines a role's tool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How an environment is examined."""

    tasks: int = 3
    """How many tasks of the test split are played; more take longer."""
    task: TaskItem | None = None
    """The one task to play instead, for environments that list none."""
    user_varies: bool = False
    """The user is a model or a person: its words may differ from one time to the next."""


async def check_environment(environment: Environment, options: Options = Options()) -> Report:
    """Examine every clause. What breaks, however it breaks, is a finding; servers may hang for as long as the
    configuration's bounds allow.

    Raises:
        ExceptionGroup, BaseException: defects of this program only.
    """
    findings: list[ClauseResult] = []
    try:
        async with (
            opened(environment, name=environment.name, source=environment.file) as gateway,
            opened(environment, name=environment.name, source=environment.file) as elsewhere,
        ):
            bench = Bench(environment=environment, gateway=gateway, user_varies=options.user_varies)
            findings.append(ClauseResult(clause=Clause.STARTS, outcome=Outcome.HOLDS, said=_started(bench)))
            findings += [await _found(Clause.ROLES, partial(clauses.roles, bench))]
            findings += [await _found(Clause.HIDDEN, partial(clauses.hidden, bench))]
            findings += [await _found(Clause.TASKS, partial(clauses.tasks, bench))]
            try:
                bench.items = await _items(bench, options)
            except GatewayError as error:
                return _report(environment, findings, because=f"there is no task to play: {error}")
            examinations: dict[Clause, Examine] = {
                Clause.RESET: partial(clauses.reset, bench, elsewhere),
                Clause.OPENING: partial(clauses.opening, bench),
                Clause.REPLY: partial(clauses.reply, bench),
                Clause.ELICIT: partial(clauses.elicit, bench),
                Clause.SCORE: partial(clauses.score, bench),
                Clause.EXPERT: partial(clauses.expert, bench),
                Clause.ISOLATION: partial(clauses.isolation, bench),
                Clause.RELEASE: partial(clauses.release, bench),
                Clause.SNAPSHOT: partial(clauses.snapshot, bench),
            }
            for clause, examine in examinations.items():
                findings.append(await _found(clause, examine))
    except (ConfigError, GatewayError) as error:
        if not findings:
            findings.append(ClauseResult(clause=Clause.STARTS, outcome=Outcome.FAILS, said=str(error)))
            return _report(environment, findings, because="the servers did not start")
        raise
    return _report(environment, findings, because="not reached")


async def _found(clause: Clause, examine: Examine) -> ClauseResult:
    """The boundary where whatever breaks becomes a finding."""
    try:
        return ClauseResult(clause=clause, outcome=Outcome.HOLDS, said=await examine())
    except Untested as reason:
        return ClauseResult(clause=clause, outcome=Outcome.UNTESTED, said=str(reason))
    except (Broken, ConfigError, GatewayError) as problem:
        blames = _blamed(problem)
        return ClauseResult(
            clause=clause,
            outcome=Outcome.FAILS,
            said=str(problem),
            blames=None if blames is clause else blames,
        )


def _blamed(problem: Exception) -> Clause | None:
    """Whose promise it is that a harness tool is there, and does what its role says."""
    if not isinstance(problem, HarnessError):
        return None
    return _OWNERS.get(problem.role) if problem.tool is not None else Clause.ROLES


async def _items(bench: Bench, options: Options) -> list[TaskItem]:
    if options.task is not None:
        return [options.task]
    if bench.environment.tasks is None:
        return [TaskItem(task="check", seed=1)]
    async with bench.lease(None) as session:
        for split in ("test", "train"):
            if items := await bench.tasks(session, split, options.tasks):
                return items[: options.tasks]
    return [TaskItem(task="check", seed=1)]


def _started(bench: Bench) -> str:
    tools = sum(len(tools) for tools in bench.gateway.catalogue.values())
    return f"{len(bench.gateway.catalogue)} servers, {tools} tools"


def _report(environment: Environment, findings: list[ClauseResult], *, because: str) -> Report:
    return Report(environment=environment.name, findings=complete(findings, because=because))
