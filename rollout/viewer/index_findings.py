"""Findings that need the index alone."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_rollout.rollout.viewer.directory import GROUP
from mcp_rollout.rollout.viewer.filters import TRUNCATED, UNREADABLE, quoted
from mcp_rollout.rollout.viewer.finding import Found, Scope, check

STUCK_SHARE = 0.9
BEST_SHARE = 0.1
IDLE_SHARE = 0.1
FLAT_SHARE = 0.5
TRUNCATED_SHARE = 0.05
FAILING_SHARE = 0.8
FAILING_CALLS = 5
WITHDRAWN_SHARE = 0.05


@check(
    "Highest rewards without a call that succeeded",
    threshold=f"where trajectories call tools, at least {IDLE_SHARE:.0%} of the best {BEST_SHARE:.0%}, those with the "
    "same reward included, have no call without an error",
)
def idle_best(scope: Scope) -> Iterator[Found]:
    # Those with the least reward are never the best, unless all have the same.
    statement = f"""SELECT count(*), sum(tool_calls <= tool_errors), min(reward) FROM (
        SELECT reward, tool_calls, tool_errors, rank() OVER (ORDER BY reward DESC) AS place, count(*) OVER () AS n,
        min(reward) OVER () AS low, max(reward) OVER () AS high, sum(tool_calls) OVER () AS calls
        FROM trajectories WHERE {scope.played} AND reward IS NOT NULL)
        WHERE place <= 1 + n * {BEST_SHARE} AND calls > 0 AND high > 0 AND (reward > low OR low = high)"""
    ((many, idle, cut),) = scope.directory.traces.query(statement)
    if not idle or idle < IDLE_SHARE * many:
        return
    filters = {"reward_from": repr(cut), "where": "NOT withdrawn AND tool_calls <= tool_errors"}
    entries = scope.examples(scope.condition(filters), sort=["-reward", "-step"])
    yield Found(
        detail=f"{idle:,} of the {many:,} best trajectories, with a reward of up to {entries[0]['reward']:g}, have no "
        "call that succeeded: the reward can be had without the work, or the task needs none.",
        groups=[scope.group("the highest rewards", entries, filters)],
    )


@check(
    "Reward stuck in one part",
    threshold=f"at least {STUCK_SHARE:.0%} of the trajectories have a part's lowest value",
)
def stuck_parts(scope: Scope) -> Iterator[Found]:
    statement = f"""
        WITH parts AS (SELECT key, value FROM trajectories, json_each(reward_parts) WHERE {scope.played}),
        ends AS (SELECT key, min(value) AS low, max(value) AS high, count(*) AS n FROM parts GROUP BY key)
        SELECT ends.key, low, high, n, sum(value <= low) AS stuck
        FROM parts JOIN ends USING (key) GROUP BY 1, 2, 3, 4"""
    for name, low, high, count, stuck in scope.directory.traces.query(statement):
        if stuck < STUCK_SHARE * count or (low == high and low > 0):
            continue
        other = "never had another value" if low == high else f"its highest value is {high:g}"
        has_lowest = f"EXISTS (SELECT 1 FROM json_each(reward_parts) WHERE key = {quoted(name)} AND value <= {low!r})"
        entries = scope.examples(f"{scope.played} AND {has_lowest}", sort=["-step"])
        yield Found(
            about=name,
            detail=f"{stuck:,} of {count:,} trajectories have {name} {low:g}; {other}.",
            groups=[scope.group(f"{name} {low:g}", entries)],
        )


@check(
    "Groups without spread",
    threshold=f"in the last quarter of training, at least {FLAT_SHARE:.0%} of the groups have one reward only",
)
def flat_groups(scope: Scope) -> Iterator[Found]:
    if not scope.steps:
        return
    first, last = scope.quarter(last=True)
    inner = f"""SELECT step, min(id) AS id, max(reward) - min(reward) AS spread, max(reward) AS high
        FROM trajectories WHERE {scope.trained} AND reward IS NOT NULL AND step BETWEEN {first} AND {last}
        GROUP BY step, {GROUP} HAVING count(*) > 1"""
    (found,) = scope.directory.traces.query(
        f"SELECT count(*), sum(spread <= 1e-9), sum(spread <= 1e-9 AND high > 0.999) FROM ({inner})"
    )
    count, flat, full = found[0], found[1] or 0, found[2] or 0
    if not count or flat < FLAT_SHARE * count:
        return
    rows = scope.directory.traces.query(
        f"SELECT id FROM ({inner}) WHERE spread <= 1e-9 ORDER BY high, step DESC LIMIT 3"
    )
    ids = ", ".join(quoted(row["id"]) for row in rows)
    yield Found(
        detail=f"In steps {first} to {last}, {flat:,} of {count:,} groups have one reward only "
        f"({full:,} the full one): "
        "their advantages are 0, so they contribute no gradient.",
        groups=[scope.group("one of each group", scope.examples(f"id IN ({ids})"), view={"tab": "siblings"})],
    )


@check(
    "Truncation",
    threshold=f"at least {TRUNCATED_SHARE:.0%} of the trajectories ended at a limit or by a filter",
)
def truncation(scope: Scope) -> Iterator[Found]:
    reasons = ", ".join(f"'{reason}'" for reason in TRUNCATED)
    statement = f"""SELECT stop_reason, count(*) AS n FROM trajectories WHERE {scope.played}
        AND stop_reason IN ({reasons}) GROUP BY 1 ORDER BY 2 DESC"""
    found = [(row["stop_reason"], row["n"]) for row in scope.directory.traces.query(statement)]
    (count,) = scope.one("count(*)", scope.played)
    cut = sum(each for _, each in found)
    if not cut or cut < TRUNCATED_SHARE * count:
        return
    entries = scope.examples(f"{scope.played} AND stop_reason = '{found[0][0]}'", sort=["-step", "reward"])
    listed = ", ".join(f"{reason} {each:,}" for reason, each in found)
    yield Found(
        detail=f"{cut:,} of {count:,} trajectories were cut: {listed}.",
        groups=[scope.group(f"ended by {found[0][0]}", entries, {"stop": found[0][0]})],
    )


@check(
    "A tool that nearly always fails",
    threshold=f"at least {FAILING_SHARE:.0%} of a tool's calls, of {FAILING_CALLS} or more, returned an error",
)
def failing_tools(scope: Scope) -> Iterator[Found]:
    statement = f"""
        WITH played AS (SELECT calls, errors FROM trajectories WHERE {scope.played}),
        called AS (SELECT key, sum(value) AS n FROM played, json_each(calls) GROUP BY 1),
        failed AS (SELECT key, sum(value) AS n FROM played, json_each(errors) GROUP BY 1)
        SELECT key, called.n, failed.n FROM called JOIN failed USING (key) ORDER BY failed.n DESC"""
    for name, calls, errors in list(scope.directory.traces.query(statement)):
        if calls < FAILING_CALLS or errors < FAILING_SHARE * calls:
            continue
        tool = name or UNREADABLE
        filters = {"failed_tool": tool}
        entries = scope.examples(scope.condition(filters), sort=["-step", "reward"])
        yield Found(
            about=tool,
            detail=f"{errors:,} of {calls:,} calls returned an error.",
            groups=[scope.group("with such a call", entries, filters)],
        )


@check(
    "Withdrawn trajectories",
    threshold=f"at least {WITHDRAWN_SHARE:.0%} of the trajectories failed or were aborted",
)
def withdrawals(scope: Scope) -> Iterator[Found]:
    count, withdrawn = scope.one("count(*), sum(withdrawn)", scope.where)
    if not withdrawn or withdrawn < WITHDRAWN_SHARE * count:
        return
    statement = f"""SELECT coalesce(failure, stop_reason, 'unfinished') AS kind, count(*) AS n FROM trajectories
        WHERE {scope.where} AND withdrawn GROUP BY 1 ORDER BY 2 DESC LIMIT 5"""
    kinds = [f"{row['kind']} {row['n']:,}" for row in scope.directory.traces.query(statement)]
    entries = scope.examples(f"{scope.where} AND withdrawn", sort=["-step"])
    yield Found(
        detail=f"{withdrawn:,} of {count:,} trajectories are not trained on: {', '.join(kinds)}.",
        groups=[scope.group("withdrawn", entries, note=lambda each: each["error"] or "")],
    )


@check("Control tokens spelled in texts", threshold="a text of a message or of a tool's definition spells one")
def control_text(scope: Scope) -> Iterator[Found]:
    filters = {"where": "control_text > 0"}
    count, many = scope.one("sum(control_text), count(*)", scope.condition(filters))
    if not many:
        return
    yield Found(
        detail=f"{count:,} in {many:,} trajectories. In the ids they are text and not structure; a server or a policy "
        "that writes them may try to open turns.",
        groups=[
            scope.group(
                "the most",
                scope.examples(scope.condition(filters), sort=["-control_text"]),
                filters,
                note=lambda each: f"{each['control_text']:,} spelled",
            )
        ],
        weight="note",
    )


CHECKS = (
    stuck_parts,
    flat_groups,
    truncation,
    failing_tools,
    withdrawals,
    control_text,
)
"""In the order of a report."""
