"""Find what is unusual in a directory of traces: the findings of `trace explain`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from mcp_rollout.rollout.viewer import error_kinds, index_findings, record_findings
from mcp_rollout.rollout.viewer.directory import Directory
from mcp_rollout.rollout.viewer.finding import Check, Finding, Scope

MOST_SCOPES = 12
"""Runs and environments that are explained, those with most trajectories first."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What was found, and what was looked for and not found."""

    findings: list[Finding]
    absent: list[Check]

    def record(self) -> dict[str, Any]:
        """The explanation as values for JSON."""
        return {
            "status": "done",
            "findings": [asdict(finding) for finding in self.findings],
            "absent": [{"title": check.title, "threshold": check.threshold} for check in self.absent],
        }


CHECKS = (index_findings.idle_best, *error_kinds.CHECKS, *index_findings.CHECKS, *record_findings.CHECKS)
"""All that is looked for, in the order of a report."""


def explain(directory: Directory) -> Explanation:
    """Look for everything in each environment of each run.

    Raises:
        ConfigError: a record is gone or of another version.
    """
    scopes = _scopes(directory)
    found: list[Finding] = []
    absent: list[Check] = []
    for check in CHECKS:
        own = [
            replace(finding, scope=" · ".join(scope.filters.values()) if len(scopes) > 1 else "")
            for scope in scopes
            for finding in check.findings(scope)
        ]
        found += own
        absent += [] if own else [check]
    return Explanation(findings=found, absent=absent)


def _scopes(directory: Directory) -> list[Scope]:
    runs = directory.runs
    statement = f"""{runs.table} SELECT run_number, environment, count(*) AS n FROM {runs.source}
        GROUP BY 1, 2 ORDER BY 3 DESC LIMIT {MOST_SCOPES}"""
    names = runs.names
    rows: list[tuple[str, str]] = [
        (names[row["run_number"]], row["environment"]) for row in directory.traces.query(statement)
    ]
    return [Scope(directory, {"runs": run, "environment": environment}) for run, environment in rows]
