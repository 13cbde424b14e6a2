"""The clauses of the contract and the result of each: plain records, with the same keys for every outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Clause(StrEnum):
    """What an environment promises, in the order in which it is examined."""

    STARTS = "starts"
    ROLES = "roles"
    HIDDEN = "hidden"
    TASKS = "tasks"
    RESET = "reset"
    OPENING = "opening"
    REPLY = "reply"
    ELICIT = "elicit"
    SCORE = "score"
    FUNCTIONS = "functions"
    EXPERT = "expert"
    FALSE_PASSES = "false_passes"
    ISOLATION = "isolation"
    RELEASE = "release"
    SNAPSHOT = "snapshot"
    OUTPUT = "output"


PROMISES: dict[Clause, str] = {
    Clause.STARTS: "every server starts and lists its tools",
    Clause.ROLES: "the servers that play the user, keep the score and list the tasks have the tools for it",
    Clause.HIDDEN: "the policy neither sees nor reaches a harness tool",
    Clause.TASKS: "tasks lists at most `limit` distinct tasks, the same ones again, none in both splits; `setup` works",
    Clause.RESET: "the same task and seed give the same world, again and in another process",
    Clause.OPENING: "start gives the opening message of the task's row, again and again",
    Clause.REPLY: "a repeated seq gives the same reply and moves nothing, a jump is refused, and the user ends it",
    Clause.ELICIT: "a question's answer has an action, and a repeated seq gives the same",
    Clause.SCORE: "the score is from 0 to 1, has exactly the declared parts, and is the same when asked again; "
    "a task's checks do not all hold at the start",
    Clause.FUNCTIONS: "the environment's reward functions give numbers, also where the policy says nothing",
    Clause.EXPERT: "the expert's turns can be played and score 1",
    Clause.FALSE_PASSES: "no change to the expert's trajectory raises its reward",
    Clause.ISOLATION: "trajectories that take turns come out as if they had been alone",
    Clause.RELEASE: "release may be repeated, and a reset after it gives a fresh world",
    Clause.SNAPSHOT: "restore brings back the world of the snapshot, and replies are counted on",
    Clause.OUTPUT: "servers write nothing but messages to their standard output",
}
REMEDIES: dict[Clause, str] = {
    Clause.STARTS: "start the server by hand to see why; correct its entry under `servers`",
    Clause.ROLES: 'mark the tool with _meta["mcp-rollout/role"], or name it under servers.NAME.roles',
    Clause.HIDDEN: 'mark it with _meta["mcp-rollout/role"], or name it under servers.NAME.roles; or deny it in `tools`',
    Clause.TASKS: "list each (task, seed) once, in a fixed order, with different tasks for train and test",
    Clause.RESET: "draw everything from random.Random(f'{task}/{seed}'); no hash(), no clock, no shared state",
    Clause.OPENING: "let `tasks` give as prompt what `start` says, or no prompt; let `start` change nothing",
    Clause.REPLY: "remember the answer to each seq per trajectory; refuse any other than the next with an error "
    "result; return done: true in the end",
    Clause.ELICIT: "answer {action: accept|decline|cancel, content?}, and remember the answer to each seq",
    Clause.SCORE: "return {score, parts}, 0 <= score <= 1, and the same part names always: those of reward.parts",
    Clause.FUNCTIONS: "correct the function: run withdraws each trajectory for which it gives no finite number",
    Clause.EXPERT: "play it with `mcp-rollout run ENV --engine expert` and read the trace; correct expert or score",
    Clause.FALSE_PASSES: "reward a state, not a call: once, in order, and not after the end",
    Clause.ISOLATION: 'key all state by _meta["mcp-rollout/trajectory"], or set scope: process for the server',
    Clause.RELEASE: "drop what the trajectory has, and answer {} also where there is nothing to drop",
    Clause.SNAPSHOT: "put all that tools can change into the state, as JSON; keep the replies given, and their numbers",
    Clause.OUTPUT: "print to sys.stderr, or log: a line without its end would break the next answer",
}

SERVER_ENDED = (
    "the server ended, or its connection broke, before this clause was examined; see the server's error output"
)

TOOL_RAISED = "the tool itself raised this error: correct it there"


class Outcome(StrEnum):
    HOLDS = "holds"
    DOUBTFUL = "doubtful"
    """Holds, but for what may be a hole; no failure."""
    FAILS = "fails"
    UNTESTED = "untested"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClauseResult:
    """The outcome of one clause."""

    clause: Clause
    outcome: Outcome
    said: str
    """What was observed."""
    blames: Clause | None = None
    """The clause whose tool failed here, where it is another one."""

    instead: str | None = None
    """The remedy, where it is not the clause's own."""

    @property
    def remedy(self) -> str:
        if self.outcome not in (Outcome.FAILS, Outcome.DOUBTFUL):
            return ""
        return self.instead or REMEDIES[self.clause]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The results of one environment, one for every clause."""

    environment: str
    results: tuple[ClauseResult, ...]

    @property
    def keeps_the_contract(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> list[Clause]:
        return [result.clause for result in self.results if result.outcome is Outcome.FAILS]

    def as_json(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "keeps_the_contract": self.keeps_the_contract,
            "failed": self.failed,
            "clauses": [
                {
                    "clause": result.clause,
                    "outcome": result.outcome,
                    "said": result.said,
                    "promise": PROMISES[result.clause],
                    "remedy": result.remedy,
                }
                for result in self.results
            ],
        }


def complete(results: Iterable[ClauseResult], *, because: str) -> tuple[ClauseResult, ...]:
    """Return the results in the order of the clauses, with what was not examined as untested.

    A clause that failed in a tool of another failing clause counts as untested, too: one fault is reported once.
    """
    found = {result.clause: result for result in results}
    failed = {clause for clause, result in found.items() if result.outcome is Outcome.FAILS}

    def resolved(clause: Clause) -> ClauseResult:
        result = found.get(clause)
        if result is None:
            return ClauseResult(clause=clause, outcome=Outcome.UNTESTED, said=because)
        if result.outcome is Outcome.FAILS and result.blames in failed:
            said = f"because {result.blames} fails: {result.said.splitlines()[0]}"
            return ClauseResult(clause=clause, outcome=Outcome.UNTESTED, said=said)
        return result

    return tuple(resolved(clause) for clause in Clause)
