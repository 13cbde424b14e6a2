"""The examination of an environment: each clause separately, over real servers, in separate trajectories."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mcp_rollout.gateway.errors import ConfigError, DeliveryUnknown, GatewayError, HarnessError, WorldLost
from mcp_rollout.gateway.types import Role
from mcp_rollout.rollout.contract import clauses, functions, mutations, world_clauses
from mcp_rollout.rollout.contract.clauses import ClauseDoubtful, ClauseFailed, ClauseUntested
from mcp_rollout.rollout.contract.play import CheckSetup, SetupFailed
from mcp_rollout.rollout.contract.report import (
    SERVER_ENDED,
    TOOL_RAISED,
    Clause,
    ClauseResult,
    Outcome,
    Report,
    complete,
)
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.environment.rows import listed_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import ALL

Examine = Callable[[CheckSetup], Awaitable[str]]
_WITHOUT_TASKS: dict[Clause, Examine] = {
    Clause.ROLES: clauses.roles,
    Clause.HIDDEN: clauses.hidden,
    Clause.TASKS: clauses.tasks,
}
_WITH_TASKS: dict[Clause, Examine] = {
    Clause.RESET: world_clauses.reset,
    Clause.OPENING: clauses.opening,
    Clause.REPLY: clauses.reply,
    Clause.ELICIT: clauses.elicit,
    Clause.SCORE: clauses.score,
    Clause.FUNCTIONS: functions.functions,
    Clause.EXPERT: world_clauses.expert,
    Clause.FALSE_PASSES: mutations.false_passes,
    Clause.ISOLATION: world_clauses.isolation,
    Clause.RELEASE: world_clauses.release,
    Clause.SNAPSHOT: world_clauses.snapshot,
}
"""Clauses that play tasks, in the order in which they are examined."""
_OWNERS = {Role.START: Clause.OPENING, Role.RESTORE: Clause.SNAPSHOT}
"""The clauses of roles that have none of the same name."""
_RAISED = re.compile(r"\b\w*(?:Error|Exception)\b: ")
_UNLISTED = ListedTask(task="check", seed=1)
"""What is played where the environment lists no task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How an environment is examined."""

    tasks: int = 3
    """Number of tasks of the test split to play."""
    task: ListedTask | None = None
    """The one task to play instead, for environments that list none."""
    user_varies: bool = False
    """Whether the user is a model or a person, whose words may differ from one time to the next."""


async def check_environment(
    environment: Environment, options: Options = Options(), *, progress: Callable[[str], None] = lambda doing: None
) -> Report:
    """Examine every clause.

    What breaks in a server becomes a clause that fails. Servers may hang as long as the configuration's bounds allow.

    Args:
        progress: Takes what is being done: starting, then the clause.

    Raises:
        ConfigError: a task of the environment's file cannot be read or played there, as `environment_tasks` says it.
        ExceptionGroup, BaseException: defects of this program only.
    """
    results: list[ClauseResult] = []

    def report(because: str) -> Report:
        return Report(environment=environment.name, results=complete(results, because=because))

    try:
        async with (
            opened_environment(environment) as gateway,
            # A second set of processes: what a seed is to decide must not depend on the process.
            opened_environment(environment) as elsewhere,
        ):
            setup = CheckSetup(
                environment=environment,
                gateway=gateway,
                elsewhere=elsewhere,
                user_varies=options.user_varies,
                progress=progress,
            )
            servers, tools = len(gateway.catalogue), sum(map(len, gateway.catalogue.values()))
            started = f"{servers} server{'s' * (servers != 1)}, {tools} tool{'s' * (tools != 1)}"
            results.append(ClauseResult(clause=Clause.STARTS, outcome=Outcome.HOLDS, said=started))
            results += [await _result(clause, examine, setup) for clause, examine in _WITHOUT_TASKS.items()]
            try:
                setup.items, setup.others = await _items(setup, options)
            except GatewayError as error:
                return report(f"there is no task to play: {error}")
            prepared = await _result(Clause.TASKS, clauses.setups, setup)
            if prepared.outcome is Outcome.FAILS:
                results.append(prepared)  # in the place of what the list of tasks gave
            for clause, examine in _WITH_TASKS.items():
                results.append(await _result(clause, examine, setup))
        # Now that the servers have ended: what a program prints may wait in its buffer until then.
        results.append(await _result(Clause.OUTPUT, clauses.output, setup))
    except (ConfigError, GatewayError) as error:
        if results:
            raise
        results.append(ClauseResult(clause=Clause.STARTS, outcome=Outcome.FAILS, said=str(error)))
        return report("the servers did not start")
    return report("not reached")


async def _result(clause: Clause, examine: Examine, setup: CheckSetup) -> ClauseResult:
    """Examine a clause. This is the boundary where whatever breaks becomes a clause that fails."""
    setup.progress(clause)
    try:
        return ClauseResult(clause=clause, outcome=Outcome.HOLDS, said=await examine(setup))
    except ClauseDoubtful as seen:
        return ClauseResult(clause=clause, outcome=Outcome.DOUBTFUL, said=str(seen), instead=seen.remedy)
    except ClauseUntested as reason:
        return ClauseResult(clause=clause, outcome=Outcome.UNTESTED, said=str(reason))
    except SetupFailed as problem:
        if setup.unprepared:
            said = f"because {Clause.TASKS} fails: a task to play has no world"
            return ClauseResult(clause=clause, outcome=Outcome.UNTESTED, said=said)
        # What succeeds in a first world and fails in a later one depends on more than the task.
        blames = None if clause is Clause.RESET else Clause.RESET
        return ClauseResult(clause=clause, outcome=Outcome.FAILS, said=str(problem), blames=blames)
    except (ClauseFailed, ConfigError, GatewayError) as problem:
        if clause is Clause.TASKS and isinstance(problem, ConfigError):
            raise  # the file's own faults, each with its line and remedy
        owner = _owner(problem)
        blames = None if owner is clause else owner
        remedy = problem.remedy if isinstance(problem, ClauseFailed) else None
        if isinstance(problem, DeliveryUnknown | WorldLost):
            remedy = SERVER_ENDED
        elif isinstance(problem, HarnessError) and problem.refused and _RAISED.search(str(problem)):
            remedy = TOOL_RAISED
        return ClauseResult(clause=clause, outcome=Outcome.FAILS, said=str(problem), blames=blames, instead=remedy)


def _owner(problem: Exception) -> Clause | None:
    """Return the clause that promises the harness tool which failed."""
    if not isinstance(problem, HarnessError):
        return None
    if problem.tool is None:
        return Clause.ROLES
    return _OWNERS.get(Role(problem.role)) or Clause(problem.role) if problem.role else None


async def _items(setup: CheckSetup, options: Options) -> tuple[list[ListedTask], list[ListedTask]]:
    """The tasks to play, and the others."""
    tasks = setup.environment.tasks
    if options.task is not None or tasks is None:
        return [options.task or _UNLISTED], []
    items, others = list[ListedTask](), list[ListedTask]()
    async with setup.lease(None) as session:
        for split in (ALL,) if tasks.file else ("test", "train"):
            listed = await listed_tasks(tasks, session, split, None)
            played = 0 if items else options.tasks
            items += listed[:played]
            others += listed[played:]
    return items or [_UNLISTED], others
